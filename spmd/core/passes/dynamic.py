"""Differences between runs of a sync that need no new program: dynamic starts, and lists that the host computes.

PyTorch/XLA compiled a program per index and per length. Here the second time that a sync meets such a difference, it
learns the ops that differ, by their places in the user's code. A start becomes an operand of the program
(`OpSpec.dynamic_start`). A list that is longer in each run, as the tokens of a generated text are, is computed by the
host next to the program, provided that it is small and exact, so that no bit depends on where it is computed. Nothing
is learnt when anything else differs, too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import torch

from ..base import counters
from ..base.config import config
from ..base.dtypes import is_exact
from ..compile import cache
from ..ir.graph import DeviceData, Graph, Node, TupleElement, Value, origin, results
from ..ir.op import OpSpec
from ..ir.source import Line
from ..pjrt import processes, transfer
from ..sharding.value import Sharding
from . import lengths, padded_memo

# The number of batch shapes that have programs of their own; then the length is an operand.
BATCHES = 2

# The most elements of a host-computed value.
LARGEST = 1 << 16

_dynamic_starts: lengths.Places[bool] = lengths.Places()
_host_computed: lengths.Places[bool] = lengths.Places()


class Adapted(NamedTuple):
    """A graph with dynamic starts and dynamic dims, as programs have them; the ops that the host computes first; and,
    where only a length differs but the graph needs a program of its own, the reason."""

    graph: Graph
    host_computed: set[Node]
    why_not: str = ""
    program: cache.Program | None = None  # where there is one already


def adapt(graph: Graph, line: Line) -> Adapted:
    """Makes a graph that has no program more like those that have one.

    Dynamic starts become scalar arguments in the graph itself; padding makes another graph.
    """
    key, counts = graph.key(), [len(node.numbers) for node in graph.nodes]  # as it was recorded
    is_scalar_argument = dynamic_start_positions(graph.nodes)
    host_computed = host_computed_in(graph)
    program = cache.find(graph) if is_scalar_argument and not host_computed else None
    if host_computed or program is not None:
        return Adapted(graph, host_computed, program=program)
    known = padded(graph)
    if known.graph is not graph and known.program is not None:
        padded_memo.keep(key, counts, graph, known.graph)
    return _learn(graph, line) if known.graph is graph and not known.why_not else known


def padded(graph: Graph) -> Adapted:
    """Returns the graph with its known dynamic dims padded, where there is a program for that or the graph reads padded
    data; else the graph itself, with the reason if it cannot be padded."""
    sources = lengths.sources_of(graph) if config.pad_lengths else None
    if sources is None:
        return Adapted(graph, set())
    found = lengths.pad(graph, sources)
    if isinstance(found, lengths.Refused):
        return Adapted(graph, set(), str(found) if sources.reads_padded_data else "")
    program = cache.find(found[0])
    is_padded = sources.reads_padded_data or program is not None
    return Adapted(found[0] if is_padded else graph, set(), program=program)


def note_dynamic_start(some: Sequence[Node], others: Sequence[Node]) -> None:
    """Learns the dynamic starts: those that differ between two iterations of a loop."""
    for one, other in zip(some, others, strict=True):
        if one.op is not other.op:
            _dynamic_starts.keep(other, True)


def host_computed_in(graph: Graph) -> set[Node]:
    """Returns the ops that the host computes, by what has been learnt before."""
    host_computed = {node for node in graph.nodes if _host_computed.get(node) and _is_small(node)}
    return host_computed | _host_only(host_computed)


def dynamic_start_positions(nodes: Sequence[Node]) -> bool:
    """Makes the known dynamic starts scalar arguments of their ops; returns True if there are any."""
    is_scalar_argument = False
    for node in nodes:
        if node.op.dynamic_start is not None and _dynamic_starts.get(node) and not lengths.has_dynamic_dims(node):
            node.op, position = node.op.dynamic_start
            node.numbers = (position, *node.numbers)  # the later numbers of a random op are its key
            is_scalar_argument = True
    return is_scalar_argument


def _learn(graph: Graph, line: Line) -> Adapted:
    """Compares a graph with the program most similar to it.

    Learns where only starts, small host-computed values and lengths differ, which is all that `adapt` can make equal.
    """
    before = cache.most_similar(graph, line)
    if before is None or [op.name for op in before.entries] != [node.op.name for node in graph.nodes]:
        return Adapted(graph, set())
    dynamic_start: list[Node] = []
    others: list[tuple[OpSpec, Node]] = []
    for old, node in zip(before.entries, graph.nodes, strict=True):
        if _is_moved(old, node.op):
            dynamic_start.append(node)
        elif old is not node.op:
            others.append((old, node))
    small = [node for _, node in others if _is_small(node)]
    if len(small) < len(others):
        if _is_of_batches(before, graph) and cache.num_equal(graph, line) < BATCHES:
            return Adapted(graph, set())
        made = _learn_lengths(graph, before, dynamic_start, others, ())
        if made.graph is not graph or not small:
            return made
        # The host computes the small values, and its next result is data with a dynamic dim.
        made = _learn_lengths(graph, before, dynamic_start, others, small)
        if made.why_not or not made.host_computed:
            return made
    _keep_places(dynamic_start, small)
    dynamic_start_positions(graph.nodes)
    return Adapted(graph, host_computed_in(graph))


def _learn_lengths(
    graph: Graph,
    before: cache.Program,
    dynamic_start: Sequence[Node],
    others: Sequence[tuple[OpSpec, Node]],
    host_computed: Collection[Node],
) -> Adapted:
    """Returns the graph padded, where padding explains all differences other than starts and host-computed values."""
    made = {node: lengths.changed_dims(old.metas[0], node.meta) for old, node in others if node in host_computed}
    nodes = {
        node: dims
        for old, node in others
        if node not in made and (dims := lengths.changed_result_dims(old, node)) is not None
    }
    inputs = _changed_data(before, graph, host_computed)
    if inputs is None or not (nodes or inputs or made) or not config.pad_lengths:
        return Adapted(graph, set())
    sources = lengths.Sources(nodes, inputs, made)
    found = lengths.pad(graph, sources)
    if isinstance(found, lengths.Refused):
        return Adapted(graph, set(), str(found))
    if any(node not in found[1] for _, node in others):
        return Adapted(graph, set())
    if made:
        return Adapted(graph, set(made))
    lengths.learn(sources, graph)
    _keep_places(dynamic_start, ())
    dynamic_start_positions(graph.nodes)
    found = lengths.pad(graph, sources)
    return Adapted(graph, set(), str(found)) if isinstance(found, lengths.Refused) else Adapted(found[0], set())


def _is_of_batches(before: cache.Program, graph: Graph) -> bool:
    """True if data other than lists of integers has another shape than before: so has the last batch of an epoch."""
    pairs = zip(before.requested.inputs, graph.inputs, strict=False)
    changed = [device_data for (meta, _), device_data in pairs if meta is not device_data.meta]
    return any(device_data.host is not None and not is_exact(device_data.meta.dtype) for device_data in changed)


def _changed_data(
    before: cache.Program, graph: Graph, host_computed: Collection[Node]
) -> dict[DeviceData, Sequence[int]] | None:
    """Returns the data of another shape than before, with the dims that differ; without data that only the host reads.

    None where the data differs in more than padding explains.
    """
    if len(before.requested.inputs) != len(graph.inputs):
        return None
    found: dict[DeviceData, Sequence[int]] = {}
    for (meta, _), device_data in zip(before.requested.inputs, graph.inputs, strict=True):
        if meta is not device_data.meta and not all(
            node in host_computed for node in graph.nodes if device_data in node.operands
        ):
            dims = lengths.changed_dims(meta, device_data.meta)
            if not dims or not lengths.may_pad(device_data, dims, graph):
                return None
            found[device_data] = dims
    return found


def _keep_places(dynamic_start: Sequence[Node], host_computed: Sequence[Node]) -> None:
    for nodes, table in ((dynamic_start, _dynamic_starts), (host_computed, _host_computed)):
        for node in nodes:
            table.keep(node, True)


def _is_moved(old: OpSpec, new: OpSpec) -> bool:
    if old is new or old.dynamic_start is None:
        return False
    return old.dynamic_start[0] is new or (
        new.dynamic_start is not None and old.dynamic_start[0] is new.dynamic_start[0]
    )


def _is_small(node: Node, largest: int = LARGEST) -> bool:
    return (
        node.op.on_host is not None
        and not processes.several()
        and all(
            is_exact(meta.dtype) and meta.numel <= largest
            for meta in (*node.op.metas, *(operand.meta for operand in node.operands))
        )
    )


def _host_only(host_computed: set[Node]) -> set[Node]:
    """Returns operands of host-computed ops that the host can compute, too, without waiting for a program."""
    can: set[Node] = set()
    for node in sorted(_behind(host_computed, _is_small), key=lambda node: node.serial):
        if all(origin(operand) is None or origin(operand) in can for operand in node.operands):
            can.add(node)
    return _behind(host_computed, can.__contains__)


def _behind(nodes: Iterable[Node], wanted: Callable[[Node], bool]) -> set[Node]:
    """Returns the wanted ops that these ops read, directly or through other wanted ops."""
    found: set[Node] = set()
    stack = [operand for node in nodes for operand in node.operands]
    while stack:
        maker = origin(stack.pop())
        if maker is not None and maker not in found and wanted(maker):
            found.add(maker)
            stack.extend(maker.operands)
    return found


def known(value: Value, nodes: Sequence[Node]) -> DeviceData:
    """Returns a value as host data, computed by the ops that `few_small` found behind it."""
    made: dict[Node, list[DeviceData]] = {}

    def device_data_of(value: Value) -> DeviceData:
        maker = origin(value)
        if maker is None:
            assert type(value) is DeviceData
            return value
        return made[maker][value.index if type(value) is TupleElement else 0]

    for node in nodes:
        made[node] = compute(node, [device_data_of(operand) for operand in node.operands])
    return device_data_of(value)


# The most ops behind a value that a read computes on the host.
_FEW = 16


def few_small(value: Value, largest: int = LARGEST) -> list[Node] | None:
    """Returns the ops behind a value, as recorded, where they are few and the host can compute them all; else None.

    A read of such a value need not wait for a program: a sampler checks whether the step before this one was the last
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


def compute(node: Node, inputs: Sequence[DeviceData]) -> list[DeviceData]:
    """Returns a host-computed op's results as host data, from its operands' data; counted, as every op on the host."""
    counters.add("host_ops")
    assert node.op.on_host is not None
    operands = [_host_tensor(device_data) for device_data in inputs]
    with torch.no_grad():
        made = node.op.on_host(operands, node.numbers)
    return [
        DeviceData(value.meta, host=transfer.host_array(tensor).copy(), sharding=_sharding(node, inputs))
        for value, tensor in zip(results(node), made, strict=True)
    ]


def _host_tensor(device_data: DeviceData) -> torch.Tensor:
    device_data.check()
    array = (
        device_data.host
        if device_data.host is not None
        else transfer.download(device_data.placed()[0], device_data.meta.shape)
    )
    return transfer.host_tensor(array)


def _sharding(node: Node, operands: Sequence[DeviceData]) -> Sharding | None:
    """Returns the sharding of an operand of the same rank whose sharded dims are as long as the value's; else None."""
    for operand in operands:
        sharding, shape = operand.sharding, operand.meta.shape
        if sharding is not None and len(shape) == len(node.meta.shape):
            split = [dim for dim, how in enumerate(sharding.spec.dims) if how.axes]
            if all(shape[dim] == node.meta.shape[dim] for dim in split):
                return sharding
    return None
