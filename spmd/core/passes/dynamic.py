"""What differs from one run of a barrier to the next and need be no new program each time: a position, a growing list.

PyTorch/XLA compiled a program per index and per length. Here the second time a barrier meets such a difference it
learns the ops that differ, and where they stand in the user's code. A position becomes an operand of the program
(`Entry.moving`). What grows from run to run, as the tokens of a generated text do, is computed by the host beside the
program, provided it is small and exact, so that no bit depends on who computes it. Nothing is learnt when anything else
differs, too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch

from .. import metrics
from ..compile import cache
from ..config import config
from ..dtypes import is_exact
from ..ir.graph import Graph, Leaf, Node, Pick, Value, origin, results
from ..ir.op import Entry
from ..ir.source import Line
from ..pjrt import processes, transfer
from ..sharding.value import Sharding
from . import again, lengths

# So many shapes of a batch have programs of their own before its length is an operand.
BATCHES = 2

# What the host takes over has at most so many elements.
LARGEST = 1 << 16

_moving: lengths.Places[bool] = lengths.Places()
_growing: lengths.Places[bool] = lengths.Places()


class Adapted(NamedTuple):
    """A graph made more like those that have programs; the ops that the host must do first; and, where only a length
    differs and yet must be a program's own, why."""

    graph: Graph
    hosted: set[Node]
    why_not: str = ""
    program: cache.Program | None = None  # where there is one already


def adapt(graph: Graph, line: Line) -> Adapted:
    """Makes a graph that has no program more like those that have one.

    The positions of moving ops become lifted numbers in the graph itself; padding makes another graph.
    """
    key, counts = graph.key(), [len(node.numbers) for node in graph.nodes]  # as it was recorded
    is_lifted = lift_positions(graph.nodes)
    hosted = hosted_in(graph)
    program = cache.find(graph) if is_lifted and not hosted else None
    if hosted or program is not None:
        return Adapted(graph, hosted, program=program)
    known = padded(graph)
    if known.graph is not graph and known.program is not None:
        again.keep(key, counts, graph, known.graph)
    return _learn(graph, line) if known.graph is graph and not known.why_not else known


def padded(graph: Graph) -> Adapted:
    """The graph with what is known to grow taken with padding, where there is a program for that or it reads data that
    has padding; else as it is, and why it cannot be padded where that is so."""
    sources = lengths.sources_of(graph) if config.pad_lengths else None
    if sources is None:
        return Adapted(graph, set())
    found = lengths.pad(graph, sources)
    if isinstance(found, lengths.Refused):
        return Adapted(graph, set(), str(found) if sources.is_settled else "")
    program = cache.find(found[0])
    is_padded = sources.is_settled or program is not None
    return Adapted(found[0] if is_padded else graph, set(), program=program)


def note_moving(some: Sequence[Node], others: Sequence[Node]) -> None:
    """Learns the positions that differ between two turns of a loop."""
    for one, other in zip(some, others, strict=True):
        if one.entry is not other.entry:
            _moving.keep(other, True)


def hosted_in(graph: Graph) -> set[Node]:
    """The ops that the host does, by what has been learnt before."""
    hosted = {node for node in graph.nodes if _growing.get(node) and _is_small(node)}
    return hosted | _host_only(hosted)


def lift_positions(nodes: Sequence[Node]) -> bool:
    """Makes the positions that are known to move lifted numbers of their ops; whether there are any."""
    is_lifted = False
    for node in nodes:
        if node.entry.moving is not None and _moving.get(node) and not lengths.grows(node):
            node.entry, position = node.entry.moving
            node.numbers = (position, *node.numbers)  # those of a random op are its key
            is_lifted = True
    return is_lifted


def _learn(graph: Graph, line: Line) -> Adapted:
    """Compares a graph with the program most like it; learns where only positions, small growing values and lengths
    differ, which is all that `adapt` can make equal."""
    before = cache.most_alike(graph, line)
    if before is None or [entry.name for entry in before.entries] != [node.entry.name for node in graph.nodes]:
        return Adapted(graph, set())
    moving: list[Node] = []
    others: list[tuple[Entry, Node]] = []
    for old, node in zip(before.entries, graph.nodes, strict=True):
        if _is_moved(old, node.entry):
            moving.append(node)
        elif old is not node.entry:
            others.append((old, node))
    small = [node for _, node in others if _is_small(node)]
    if len(small) < len(others):
        if _is_of_batches(before, graph) and cache.num_alike(graph, line) < BATCHES:
            return Adapted(graph, set())
        made = _learn_lengths(graph, before, moving, others, ())
        if made.graph is not graph or not small:
            return made
        # The host does what is small and grows, and its next result is data that grows.
        made = _learn_lengths(graph, before, moving, others, small)
        if made.why_not or not made.hosted:
            return made
    _keep_places(moving, small)
    lift_positions(graph.nodes)
    return Adapted(graph, hosted_in(graph))


def _learn_lengths(
    graph: Graph,
    before: cache.Program,
    moving: Sequence[Node],
    others: Sequence[tuple[Entry, Node]],
    hosted: Collection[Node],
) -> Adapted:
    """The graph padded, where that explains all that differs beside positions and what the host would do."""
    made = {node: lengths.grown_dims(old.metas[0], node.meta) for old, node in others if node in hosted}
    nodes = {node: dims for old, node in others if node not in made and (dims := lengths.grown(old, node)) is not None}
    leaves = _grown_data(before, graph, hosted)
    if leaves is None or not (nodes or leaves or made) or not config.pad_lengths:
        return Adapted(graph, set())
    sources = lengths.Sources(nodes, leaves, made)
    found = lengths.pad(graph, sources)
    if isinstance(found, lengths.Refused):
        return Adapted(graph, set(), str(found))
    if any(node not in found[1] for _, node in others):
        return Adapted(graph, set())
    if made:
        return Adapted(graph, set(made))
    lengths.learn(sources, graph)
    _keep_places(moving, ())
    lift_positions(graph.nodes)
    found = lengths.pad(graph, sources)
    return Adapted(graph, set(), str(found)) if isinstance(found, lengths.Refused) else Adapted(found[0], set())


def _is_of_batches(before: cache.Program, graph: Graph) -> bool:
    """Whether data that is no list of integers has another shape than before: the last batch of an epoch has, too."""
    pairs = zip(before.asked.leaves, graph.leaves, strict=False)
    changed = [leaf for (meta, _), leaf in pairs if meta is not leaf.meta]
    return any(leaf.host is not None and not is_exact(leaf.meta.dtype) for leaf in changed)


def _grown_data(before: cache.Program, graph: Graph, hosted: Collection[Node]) -> dict[Leaf, Sequence[int]] | None:
    """The data of another shape than before, and in which dims, beside what only the host reads; None where that is
    more than padding explains."""
    if len(before.asked.leaves) != len(graph.leaves):
        return None
    found: dict[Leaf, Sequence[int]] = {}
    for (meta, _), leaf in zip(before.asked.leaves, graph.leaves, strict=True):
        if meta is not leaf.meta and not all(node in hosted for node in graph.nodes if leaf in node.operands):
            dims = lengths.grown_dims(meta, leaf.meta)
            if not dims or not lengths.can_grow(leaf, dims, graph):
                return None
            found[leaf] = dims
    return found


def _keep_places(moving: Sequence[Node], growing: Sequence[Node]) -> None:
    for nodes, table in ((moving, _moving), (growing, _growing)):
        for node in nodes:
            table.keep(node, True)


def _is_moved(old: Entry, new: Entry) -> bool:
    if old is new or old.moving is None:
        return False
    return old.moving[0] is new or (new.moving is not None and old.moving[0] is new.moving[0])


def _is_small(node: Node, largest: int = LARGEST) -> bool:
    return (
        node.entry.on_host is not None
        and not processes.several()
        and all(
            is_exact(meta.dtype) and meta.numel <= largest
            for meta in (*node.entry.metas, *(operand.meta for operand in node.operands))
        )
    )


def _host_only(hosted: set[Node]) -> set[Node]:
    """What hosted ops read and the host can compute, too, from what is there: it must not wait for a program."""
    can: set[Node] = set()
    for node in sorted(_behind(hosted, _is_small), key=lambda node: node.serial):
        if all(origin(operand) is None or origin(operand) in can for operand in node.operands):
            can.add(node)
    return _behind(hosted, can.__contains__)


def _behind(nodes: Iterable[Node], wanted: Callable[[Node], bool]) -> set[Node]:
    """The wanted ops that these read, and those that they read in turn."""
    found: set[Node] = set()
    stack = [operand for node in nodes for operand in node.operands]
    while stack:
        maker = origin(stack.pop())
        if maker is not None and maker not in found and wanted(maker):
            found.add(maker)
            stack.extend(maker.operands)
    return found


def known(value: Value, nodes: Sequence[Node]) -> Leaf:
    """A value as host data, by the ops that `few_small` found behind it."""
    made: dict[Node, list[Leaf]] = {}

    def leaf_of(value: Value) -> Leaf:
        maker = origin(value)
        if maker is None:
            assert type(value) is Leaf
            return value
        return made[maker][value.index if type(value) is Pick else 0]

    for node in nodes:
        made[node] = compute(node, [leaf_of(operand) for operand in node.operands])
    return leaf_of(value)


# A read looks at so many ops behind a value.
_FEW = 16


def few_small(value: Value, largest: int = LARGEST) -> list[Node] | None:
    """The ops behind a value, in the order of recording, where the host can do them all and they are few; else None.

    A read of such a value need not wait for a program: a sampler asks whether the step before this one was the last
    (`if timestep - 20 >= 0`), and would wait for the whole network. largest: the elements of an array that is small.
    """
    found: set[Node] = set()
    stack = [value]
    while stack:
        maker = origin(stack.pop())
        if maker is not None and maker not in found:
            if len(found) == _FEW or not _is_small(maker, largest):
                return None
            found.add(maker)
            stack.extend(maker.operands)
    return sorted(found, key=lambda node: node.serial)


def compute(node: Node, leaves: Sequence[Leaf]) -> list[Leaf]:
    """A hosted op's results as host data, of its operands' data. Counted, as every op on the host is."""
    metrics.add("host_ops")
    assert node.entry.on_host is not None
    operands = [_host_tensor(leaf) for leaf in leaves]
    with torch.no_grad():
        made = node.entry.on_host(operands, node.numbers)
    return [
        Leaf(value.meta, host=transfer.host_array(tensor).copy(), sharding=_sharding(node, leaves))
        for value, tensor in zip(results(node), made, strict=True)
    ]


def _host_tensor(leaf: Leaf) -> torch.Tensor:
    leaf.check()
    array = leaf.host if leaf.host is not None else transfer.download(leaf.placed()[0], leaf.meta.shape)
    return transfer.host_tensor(array)


def _sharding(node: Node, operands: Sequence[Leaf]) -> Sharding | None:
    """Where a growing value lies: as the one it grew from, unless it is the split dim that grew."""
    for operand in operands:
        sharding, shape = operand.sharding, operand.meta.shape
        if sharding is not None and len(shape) == len(node.meta.shape):
            split = [dim for dim, how in enumerate(sharding.spec.dims) if how.axes]
            if all(shape[dim] == node.meta.shape[dim] for dim in split):
                return sharding
    return None
