"""Differences between runs of a sync that need no new program: dynamic starts, and lists that the
host computes.

PyTorch/XLA compiled a program per index and per length. Here the second time that a sync meets such
a difference, it learns the ops that differ, by their places in the user's code. A start becomes an
operand of the program (`OpSpec.dynamic_start`). A list that is longer in each run, as the tokens of
a generated text are, is computed by the host next to the program, provided that it is small and
exact, so that no bit depends on where it is computed. Nothing is learnt when anything else differs,
too.
"""

import dataclasses
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import NamedTuple

from ...core import DeviceData, Meta, cache, config, dtypes, observation
from ...core.extend import (
    Bounded,
    Graph,
    Node,
    OpSpec,
    Program,
    Rewrite,
    dynamic,
    host,
    host_ops,
    pass_result,
    record_calls,
    walks,
)
from .spread import LENGTHEN, Sources, in_place, pad, padded_on_host

# Dynamic parts of an op beside its start and its operands (by number): the dims of its result; the
# length of a small list, computed by the host.
RESULT, HOST = "result", "host"

# The number of batch shapes that have programs of their own; then the length is an operand.
BATCHES = 2


def starts(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Makes the known dynamic starts scalar arguments of their ops, in the graph itself."""
    if not dynamic.dynamic_start_positions(graph.nodes):
        return ""
    return pass_result.Changed(graph, "starts are operands", is_last=False)


def on_host(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Has the host compute the ops that are known to differ in length, and are small.

    A call that is recorded to be replayed has them in its programs: a replay runs programs alone,
    and its lengths are those of the recording. In a thread that decodes, the lists are in no graph.
    """
    if (
        record_calls.at_once.value is not None
        or observation.active_observation.value is not None
        or host.is_forbidden.value
    ):
        return ""
    nodes = {
        node for node in graph.nodes if dynamic.dims_of(node, HOST) is not None and _is_small(node)
    }
    if not nodes:
        return ""
    nodes |= _host_only(nodes)
    return pass_result.OnHost(nodes, f"{len(nodes)} ops of small lists of integers")


def dims(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Pads the known dynamic dims of a graph, where there is a program for that or the graph reads
    padded data."""
    sources = sources_of(graph) if config.pad_lengths else None
    if sources is None:
        return ""
    padded, reads_padded = (
        pad(graph, sources),
        any(node.op.name == walks.UNPADDED for node in sources.nodes),
    )
    if isinstance(padded, str):
        return padded if reads_padded else ""
    if cache.find(padded[0]) is not None:
        _keep_plan(sync.key, sync.counts, graph, padded[0])
    elif not reads_padded:
        return ""
    return pass_result.Changed(padded[0], "lengths are operands")


def learn(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Compares a graph with the program most similar to it.

    Learns where only starts, small host-computed values and lengths differ, which is all that the
    passes before can make equal, and makes them so.
    """
    program = cache.most_similar(graph, sync.line)
    if program is None or [op.name for op in program.entries] != [
        node.op.name for node in graph.nodes
    ]:
        return ""
    if config.pad_lengths and any(node.op.name == walks.UNPADDED for node in graph.nodes):
        return ""  # `dims` has said why its padding does not spread
    dynamic_start: list[Node] = []
    changed_ops: list[tuple[OpSpec, Node]] = []
    for old, node in zip(program.entries, graph.nodes, strict=True):
        if _is_moved(old, node.op):
            dynamic_start.append(node)
        elif old is not node.op:
            changed_ops.append((old, node))
    small = [
        node for _, node in changed_ops if _is_small(node) and record_calls.at_once.value is None
    ]
    if len(small) < len(changed_ops):
        if _is_of_batches(program, graph) and cache.num_equal(graph, sync.line) < BATCHES:
            return ""
        result = _learn_lengths(graph, program, dynamic_start, changed_ops, ())
        if isinstance(result, pass_result.Changed) or not small:
            return result
        # The host computes the small values, and its next result is data with a dynamic dim.
        result = _learn_lengths(graph, program, dynamic_start, changed_ops, small)
        if not isinstance(result, pass_result.OnHost):
            return result
    for node in dynamic_start:
        dynamic.add(node, dynamic.START)
    for node in small:
        dynamic.add(node, HOST)
    with_starts = starts(graph, sync)
    return on_host(graph, sync) or with_starts


def _learn_lengths(
    graph: Graph,
    program: Program,
    dynamic_start: Sequence[Node],
    changed_ops: Sequence[tuple[OpSpec, Node]],
    host_computed: Collection[Node],
) -> pass_result.Outcome:
    """Pads a graph, where padding explains all differences other than starts and host-computed
    values."""
    result = {
        node: changed_dims(old.metas[0], node.meta)
        for old, node in changed_ops
        if node in host_computed
    }
    changed = {
        node: changed_result_dims(old, node) for old, node in changed_ops if node not in result
    }
    nodes = {node: dims for node, dims in changed.items() if dims is not None}
    inputs = _changed_data(program, graph, host_computed)
    if inputs is None or not (nodes or inputs or result) or not config.pad_lengths:
        return ""
    sources = Sources(nodes, inputs, result)
    padded = pad(graph, sources)
    if isinstance(padded, str):
        return padded
    if any(node not in padded[1] for _, node in changed_ops):
        return ""
    if result:
        return pass_result.OnHost(result, "")
    for node, dims in nodes.items():
        dynamic.add(node, RESULT, dims)
    for node in graph.nodes:
        for index, operand in enumerate(node.operands):
            if type(operand) is DeviceData and operand in inputs:
                dynamic.add(node, index, inputs[operand])
    for node in dynamic_start:
        dynamic.add(node, dynamic.START)
    dynamic.dynamic_start_positions(graph.nodes)
    padded = pad(graph, sources)
    return (
        padded
        if isinstance(padded, str)
        else pass_result.Changed(padded[0], "lengths are operands")
    )


def _is_of_batches(program: Program, graph: Graph) -> bool:
    """True if data other than lists of integers has another shape than the program's, as an epoch's
    last batch."""
    pairs = zip(program.requested.inputs, graph.inputs, strict=False)
    changed = [device_data for (meta, _), device_data in pairs if meta is not device_data.meta]
    return any(
        device_data.host is not None and not dtypes.is_exact(device_data.meta.dtype)
        for device_data in changed
    )


def _changed_data(
    program: Program, graph: Graph, host_computed: Collection[Node]
) -> dict[DeviceData, Sequence[int]] | None:
    """Returns the data of another shape than the program's, with the dims that differ; without data
    for the host alone.

    None where the data differs in more than padding explains.
    """
    if len(program.requested.inputs) != len(graph.inputs):
        return None
    dims_of_data: dict[DeviceData, Sequence[int]] = {}
    for (meta, _), device_data in zip(program.requested.inputs, graph.inputs, strict=True):
        if meta is not device_data.meta and not all(
            node in host_computed for node in graph.nodes if device_data in node.operands
        ):
            dims = changed_dims(meta, device_data.meta)
            if not dims or not may_pad(device_data, dims, graph):
                return None
            dims_of_data[device_data] = dims
    return dims_of_data


def _is_moved(old: OpSpec, new: OpSpec) -> bool:
    if old is new or old.dynamic_start is None:
        return False
    return old.dynamic_start[0] is new or (
        new.dynamic_start is not None and old.dynamic_start[0] is new.dynamic_start[0]
    )


def _is_small(node: Node) -> bool:
    values = (*walks.results(node), *node.operands)
    return host_ops.has_host_kernel(node) and all(
        dtypes.is_exact(value.meta.dtype) for value in values
    )


def _host_only(host_computed: set[Node]) -> set[Node]:
    """Returns operands of host-computed ops that the host can compute, too, without waiting for a
    program."""
    can: set[Node] = set()
    for node in sorted(_behind(host_computed, _is_small), key=lambda node: node.serial):
        if all(
            walks.origin(operand) is None or walks.origin(operand) in can
            for operand in node.operands
        ):
            can.add(node)
    return _behind(host_computed, can.__contains__)


def _behind(nodes: Iterable[Node], predicate: Callable[[Node], bool]) -> set[Node]:
    """Returns the ops of a predicate that these ops read, directly or through other such ops."""
    makers: set[Node] = set()
    stack = [operand for node in nodes for operand in node.operands]
    while stack:
        maker = walks.origin(stack.pop())
        if maker is not None and maker not in makers and predicate(maker):
            makers.add(maker)
            stack.extend(maker.operands)
    return makers


def sources_of(graph: Graph) -> Sources | None:
    """Returns the known dynamic dims of a graph's ops and data; None if there are none."""
    nodes: dict[Node, Sequence[int]] = {}
    inputs: dict[DeviceData, Sequence[int]] = {}
    capacities: dict[int, int] = {}
    for node in graph.nodes:
        lowering = node.op.lowering
        if isinstance(lowering, dynamic.Unpad):
            nodes[node] = lowering.dims
            if lowering.is_marked:
                capacities |= {
                    node.meta.shape[dim]: node.op.operands[0].shape[dim] for dim in lowering.dims
                }
        if node.op.name not in dynamic.NAMES:
            continue
        if has_dynamic_dims(node):
            nodes[node] = dynamic.dims_of(node, RESULT) or ()
        for index, operand in enumerate(node.operands):
            if type(operand) is DeviceData:
                dims = dynamic.dims_of(node, index)
                if dims is not None and may_pad(operand, dims, graph):
                    inputs[operand] = dims
    return Sources(nodes, inputs, capacities=capacities) if nodes or inputs else None


def may_pad(device_data: DeviceData, dims: Sequence[int], graph: Graph) -> bool:
    """True if data may be padded: host data (a list that gets longer, a batch), or a cache extended
    by a token."""
    shape = device_data.meta.shape
    if len(shape) <= max(dims) or any(shape[dim] < 2 for dim in dims):
        return False
    if device_data.host is not None:
        return True
    return all(node.op.name == "aten.cat" for node in graph.nodes if device_data in node.operands)


def has_dynamic_dims(node: Node) -> bool:
    """True if an op's result is known to have dynamic dims; a slice from elsewhere in the same line
    has none."""
    dims = dynamic.dims_of(node, RESULT)
    dynamic_start = node.op.dynamic_start
    return (
        dims is not None
        and _is_long(node, dims)
        and (dynamic_start is None or dynamic_start[1] == 0)
    )


def _is_long(node: Node, dims: Sequence[int]) -> bool:
    """True if none of these dims of the result has size 1, which looks like a repeated dim."""
    return len(node.meta.shape) > max(dims) and all(node.meta.shape[dim] > 1 for dim in dims)


def changed_result_dims(old: OpSpec, node: Node) -> tuple[int, ...] | None:
    """Returns the dims in which an op's result differs from that of the same op of another run, on
    equal operands."""
    if len(old.metas) > 1 or old.operands != node.op.operands:
        return None
    dims = changed_dims(old.metas[0], node.meta)
    return dims if dims and _is_long(node, dims) else None


def changed_dims(old_meta: Meta, new_meta: Meta) -> tuple[int, ...]:
    """Returns the dims in which two metas of one dtype and rank differ; none where they differ
    otherwise."""
    if old_meta.dtype is not new_meta.dtype or len(old_meta.shape) != len(new_meta.shape):
        return ()
    return tuple(dim for dim, size in enumerate(new_meta.shape) if size != old_meta.shape[dim])


class _PaddedStep(NamedTuple):
    """An op of the padded graph, and the numbers in front of those of the op that it replaces.
    lengthened: the inputs, by place, that the device pads before it, each with the op for that."""

    op: OpSpec
    numbers: tuple[float | int, ...]
    lengthened: tuple[tuple[int, OpSpec], ...]


class _Plan(NamedTuple):
    """A padded graph, as what is other than in the graph that it was made of.

    steps: of each op. data: the metas of data that the host pads, by place; padded_roots: the
    places of roots with padding.
    """

    steps: tuple[_PaddedStep, ...]
    data: tuple[tuple[int, Meta], ...]
    padded_roots: tuple[int, ...]


# Where a length is an operand, each length has a graph of its own and no program of its own: the
# search for the padding would run in each warm step. So a graph that was padded once is padded
# again by its key, without the rules.
_plans: Bounded[Hashable, _Plan] = Bounded(512)


def _keep_plan(key: Hashable, counts: Sequence[int], graph: Graph, padded: Graph) -> None:
    """Keeps the padded graph of a graph with this key, whose ops had `counts` scalar arguments."""
    steps: list[_PaddedStep] = []
    lengthened: list[tuple[int, OpSpec]] = []
    for node in padded.nodes:
        if node.op.name == LENGTHEN:
            (source,) = node.operands
            lengthened.append(
                (
                    next(i for i, input_data in enumerate(graph.inputs) if input_data is source),
                    node.op,
                )
            )
        else:
            num_added = len(node.numbers) - counts[len(steps)]
            steps.append(_PaddedStep(node.op, tuple(node.numbers[:num_added]), tuple(lengthened)))
            lengthened = []
    inputs = enumerate(zip(graph.inputs, padded.inputs, strict=True))
    data = tuple((index, new.meta) for index, (old, new) in inputs if old is not new)
    roots = enumerate(zip(graph.roots, padded.roots, strict=True))
    padded_roots = tuple(index for index, (old, new) in roots if old.meta.shape != new.meta.shape)
    _plans.keep(key, _Plan(tuple(steps), data, padded_roots))


def again(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Pads a graph as an equal one was padded before, if the cache has the program."""
    plan = _plans.get(sync.key) if config.pad_lengths else None
    if plan is None or any(graph.inputs[index].host is None for index, _ in plan.data):
        return ""
    new, inputs = Rewrite(graph, is_recorded=True), list(graph.inputs)
    for index, meta in plan.data:
        new.new_values[graph.inputs[index]] = inputs[index] = padded_on_host(
            graph.inputs[index], meta
        )
    for node, step in zip(graph.nodes, plan.steps, strict=True):
        for index, op in step.lengthened:
            new.replace([inputs[index]], new.add(op, [inputs[index]], node))
        new.put(node, step.op, node.operands, (*step.numbers, *node.numbers))
    padded = in_place(dataclasses.replace(new.graph(), inputs=inputs), plan.padded_roots)
    if cache.find(padded) is None:
        return ""
    return pass_result.Changed(padded, "lengths are operands, as before")
