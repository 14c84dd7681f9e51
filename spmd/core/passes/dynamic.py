"""Differences between runs of a sync that need no new program: dynamic starts, and lists that the host computes.

PyTorch/XLA compiled a program per index and per length. Here the second time that a sync meets such a difference, it
learns the ops that differ, by their places in the user's code. A start becomes an operand of the program
(`OpSpec.dynamic_start`). A list that is longer in each run, as the tokens of a generated text are, is computed by the
host next to the program, provided that it is small and exact, so that no bit depends on where it is computed. Nothing
is learnt when anything else differs, too.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

import torch

from ..base import counters, observation
from ..base.config import config
from ..base.dtypes import is_exact
from ..graph.graph import UNPADDED, DeviceData, Graph, Node, Value, origin, result_index, results
from ..graph.meta import Meta
from ..graph.op import OpSpec
from ..programs import cache
from ..run.pjrt import processes, transfer
from ..run.pjrt.host import is_forbidden
from ..sharding.value import Sharding
from . import lengths, padded_memo
from .dynamic_places import HOST, START, add, dims_of
from .outcome import Changed, OnHost, Outcome, Sync

# The number of batch shapes that have programs of their own; then the length is an operand.
BATCHES = 2

# The most elements of a host-computed value.
LARGEST = 1 << 16


def starts(graph: Graph, sync: Sync) -> Outcome:
    """Makes the known dynamic starts scalar arguments of their ops, in the graph itself."""
    if not dynamic_start_positions(graph.nodes):
        return ""
    return _with_starts(graph)


def _with_starts(graph: Graph) -> Changed:
    return Changed(graph, "starts are operands", lambda graph: graph, is_last=False)


def on_host(graph: Graph, sync: Sync) -> Outcome:
    """Has the host compute the ops that are known to differ in length, and are small.

    A call that is recorded to be replayed has them in its programs: a replay runs programs alone, and its lengths are
    those of the recording.
    """
    if observation.active() is not None:
        return ""
    return _computed_by_host(host_computed_in(graph))


def _computed_by_host(nodes: set[Node]) -> Outcome:
    return OnHost(nodes, f"{len(nodes)} ops of small lists of integers") if nodes and not is_forbidden() else ""


def dims(graph: Graph, sync: Sync) -> Outcome:
    """Pads the known dynamic dims of a graph, where there is a program for that or the graph reads padded data."""
    sources = lengths.sources_of(graph) if config.pad_lengths else None
    if sources is None:
        return ""
    found = lengths.pad(graph, sources)
    if isinstance(found, lengths.Refused):
        return str(found) if sources.reads_padded_data else ""
    program = cache.find(found[0])
    if program is None and not sources.reads_padded_data:
        return ""
    if program is not None:
        padded_memo.keep(sync.key, sync.counts, graph, found[0])
    return _padded(found[0])


def _padded(graph: Graph) -> Changed:
    return Changed(graph, "lengths are operands", _padded_again)


def _padded_again(graph: Graph) -> Graph:
    """Pads the known dynamic dims of a graph."""
    sources = lengths.sources_of(graph)
    found = None if sources is None else lengths.pad(graph, sources)
    return found[0] if isinstance(found, tuple) and not isinstance(found, lengths.Refused) else graph


def note_dynamic_start(some: Sequence[Node], others: Sequence[Node]) -> None:
    """Learns the dynamic starts: those that differ between two iterations of a loop."""
    for one, other in zip(some, others, strict=True):
        if one.op is not other.op:
            add(other, START)


def host_computed_in(graph: Graph) -> set[Node]:
    """Returns the ops that the host computes, by what has been learnt before."""
    host_computed = {node for node in graph.nodes if dims_of(node, HOST) is not None and _is_small(node)}
    return host_computed | _host_only(host_computed)


def dynamic_start_positions(nodes: Sequence[Node]) -> bool:
    """Makes the known dynamic starts scalar arguments of their ops; returns True if there are any."""
    is_scalar_argument = False
    for node in nodes:
        start = node.op.dynamic_start
        if start is not None and dims_of(node, START) is not None and not lengths.has_dynamic_dims(node):
            node.op, position = start
            node.numbers = (position, *node.numbers)  # the later numbers of a random op are its key
            is_scalar_argument = True
    return is_scalar_argument


def learn(graph: Graph, sync: Sync) -> Outcome:
    """Compares a graph with the program most similar to it.

    Learns where only starts, small host-computed values and lengths differ, which is all that the passes before can
    make equal, and makes them so.
    """
    before = cache.most_similar(graph, sync.line)
    if before is None or [op.name for op in before.entries] != [node.op.name for node in graph.nodes]:
        return ""
    if config.pad_lengths and any(node.op.name == UNPADDED for node in graph.nodes):
        return ""  # `dims` has said why its padding does not spread
    dynamic_start: list[Node] = []
    others: list[tuple[OpSpec, Node]] = []
    for old, node in zip(before.entries, graph.nodes, strict=True):
        if _is_moved(old, node.op):
            dynamic_start.append(node)
        elif old is not node.op:
            others.append((old, node))
    small = [node for _, node in others if _is_small(node)]
    if len(small) < len(others):
        if _is_of_batches(before, graph) and cache.num_equal(graph, sync.line) < BATCHES:
            return ""
        result = _learn_lengths(graph, before, dynamic_start, others, ())
        if isinstance(result, Changed) or not small:
            return result
        # The host computes the small values, and its next result is data with a dynamic dim.
        result = _learn_lengths(graph, before, dynamic_start, others, small)
        if not isinstance(result, OnHost):
            return result
    _keep_places(dynamic_start, small)
    is_changed = dynamic_start_positions(graph.nodes)
    return _computed_by_host(host_computed_in(graph)) or (_with_starts(graph) if is_changed else "")


def _learn_lengths(
    graph: Graph,
    before: cache.Program,
    dynamic_start: Sequence[Node],
    others: Sequence[tuple[OpSpec, Node]],
    host_computed: Collection[Node],
) -> Outcome:
    """Pads a graph, where padding explains all differences other than starts and host-computed values."""
    result = {node: lengths.changed_dims(old.metas[0], node.meta) for old, node in others if node in host_computed}
    nodes = {
        node: dims
        for old, node in others
        if node not in result and (dims := lengths.changed_result_dims(old, node)) is not None
    }
    inputs = _changed_data(before, graph, host_computed)
    if inputs is None or not (nodes or inputs or result) or not config.pad_lengths:
        return ""
    sources = lengths.Sources(nodes, inputs, result)
    found = lengths.pad(graph, sources)
    if isinstance(found, lengths.Refused):
        return str(found)
    if any(node not in found[1] for _, node in others):
        return ""
    if result:
        return OnHost(result, "")
    lengths.learn(sources, graph)
    _keep_places(dynamic_start, ())
    dynamic_start_positions(graph.nodes)
    found = lengths.pad(graph, sources)
    return str(found) if isinstance(found, lengths.Refused) else _padded(found[0])


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
    for nodes, what in ((dynamic_start, START), (host_computed, HOST)):
        for node in nodes:
            add(node, what)


def _is_moved(old: OpSpec, new: OpSpec) -> bool:
    if old is new or old.dynamic_start is None:
        return False
    return old.dynamic_start[0] is new or (
        new.dynamic_start is not None and old.dynamic_start[0] is new.dynamic_start[0]
    )


def _is_small(node: Node) -> bool:
    return _has_host_kernel(node, LARGEST) and all(is_exact(meta.dtype) for meta in _metas(node))


def _has_host_kernel(node: Node, largest: int) -> bool:
    return (
        node.op.on_host is not None and not processes.several() and all(meta.numel <= largest for meta in _metas(node))
    )


def _metas(node: Node) -> list[Meta]:
    return [*node.op.metas, *(operand.meta for operand in node.operands)]


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
    result: dict[Node, list[DeviceData]] = {}

    def device_data_of(value: Value) -> DeviceData:
        maker = origin(value)
        if maker is None:
            assert type(value) is DeviceData
            return value
        return result[maker][result_index(value)]

    for node in nodes:
        result[node] = compute(node, [device_data_of(operand) for operand in node.operands])
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
            if len(found) == _FEW or not _has_host_kernel(maker, largest):
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
        result = node.op.on_host(operands, node.numbers)
    return [
        DeviceData(value.meta, host=transfer.host_array(tensor).copy(), sharding=_sharding(node, inputs))
        for value, tensor in zip(results(node), result, strict=True)
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
