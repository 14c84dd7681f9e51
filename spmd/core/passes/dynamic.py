"""What differs from one run of a barrier to the next and need be no new program each time: a position, a growing list.

PyTorch/XLA compiled a program per index and per length. Here the second time a barrier meets such a difference it
learns the ops that differ, and where they stand in the user's code. A position becomes an operand of the program
(`Entry.moving`). What grows from run to run, as the tokens of a generated text do, is computed by the host beside the
program, provided it is small and exact, so that no bit depends on who computes it. Nothing is learnt when anything else
differs, too.
"""

from collections.abc import Sequence
from types import CodeType

import jax
import torch

from .. import metrics
from ..compile import cache
from ..dtypes import is_exact
from ..ir.graph import Graph, Leaf, Node, Pick, Value, origin, results
from ..ir.op import Entry
from ..ir.source import Line, line_number
from ..pjrt import transfer
from ..sharding.value import Sharding
from ..tables import Bounded

# What the host takes over has at most so many elements.
LARGEST = 1 << 16

_Place = tuple[CodeType | None, int, str]
_moving: Bounded[_Place, bool] = Bounded(4096)
_growing: Bounded[_Place, bool] = Bounded(4096)


def adapt(graph: Graph, line: Line) -> set[Node]:
    """Makes a graph that has no program more like those that have one; returns the ops that the host must do first.

    The positions of moving ops become lifted numbers in the graph itself.
    """
    hosted = apply(graph)
    if hosted or cache.find(graph) is not None or not _learn(graph, line):
        return hosted
    return apply(graph)


def note_moving(some: Sequence[Node], others: Sequence[Node]) -> None:
    """Learns the positions that differ between two turns of a loop."""
    for one, other in zip(some, others, strict=True):
        if one.entry is not other.entry:
            _moving.keep(_learnt_at(other), True)


def apply(graph: Graph) -> set[Node]:
    """`adapt`, by what has been learnt before."""
    lift_positions(graph.nodes)
    hosted = {node for node in graph.nodes if _growing.get(_learnt_at(node)) and _is_small(node)} if _growing else set()
    return hosted | _host_only(graph, hosted)


def lift_positions(nodes: Sequence[Node]) -> None:
    """Makes the positions that are known to move lifted numbers of their ops."""
    for node in nodes if _moving else ():
        if node.entry.moving is not None and _moving.get(_learnt_at(node)):
            node.entry, position = node.entry.moving
            node.numbers = (position, *node.numbers)  # those of a random op are its key


def _learnt_at(node: Node) -> _Place:
    return node.code, line_number(node.code, node.instruction), node.entry.name


def _learn(graph: Graph, line: Line) -> bool:
    """Compares a graph with the program most like it; True where only positions and small growing values differ."""
    before = cache.most_alike(graph, line)
    if before is None or [entry.name for entry in before.entries] != [node.entry.name for node in graph.nodes]:
        return False
    moving: set[_Place] = set()
    growing: set[_Place] = set()
    for old, node in zip(before.entries, graph.nodes, strict=True):
        if old is node.entry:
            continue
        if _is_moved(old, node.entry):
            moving.add(_learnt_at(node))
        elif _is_small(node):
            growing.add(_learnt_at(node))
        else:
            return False
    for learnt, table in ((moving, _moving), (growing, _growing)):
        for place in learnt:
            table.keep(place, True)
    return bool(moving or growing)


def _is_moved(old: Entry, new: Entry) -> bool:
    return old.moving is not None and new.moving is not None and old.moving[0] is new.moving[0]


def _is_small(node: Node, largest: int = LARGEST) -> bool:
    return (
        node.entry.on_host is not None
        and jax.process_count() == 1
        and all(
            is_exact(meta.dtype) and meta.numel <= largest
            for meta in (*node.entry.metas, *(operand.meta for operand in node.operands))
        )
    )


def _host_only(graph: Graph, hosted: set[Node]) -> set[Node]:
    """What hosted ops read and the host can compute, too, from what is there: it must not wait for a program."""
    can: set[Node] = set()
    for node in graph.nodes:
        if _is_small(node) and all(origin(operand) is None or origin(operand) in can for operand in node.operands):
            can.add(node)
    needed: set[Node] = set()
    stack = [operand for node in hosted for operand in node.operands]
    while stack:
        maker = origin(stack.pop())
        if maker in can and maker not in needed:
            needed.add(maker)
            stack.extend(maker.operands)
    return needed


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
            split = [dim for dim, axes in enumerate(sharding.spec) if axes]
            if all(shape[dim] == node.meta.shape[dim] for dim in split):
                return sharding
    return None
