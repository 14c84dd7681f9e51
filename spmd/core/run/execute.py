"""Runs a schedule: one program for each subgraph; data that is not read any more gives its memory
to results."""

# Why a buffer that others still read is copied before a program that donates it, instead of a
# program that does not: what another thread happens to read at that moment must not be part of a
# program's key, or its timing decides compilations.

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ..base import counters, state
from ..base.state import PerThread
from ..graph.graph import DeviceData, Graph, Node, Value, origin, results, topological, value_name
from ..graph.source import Line
from ..passes import on_host
from ..passes.dynamic import unpadded
from ..programs import cache
from ..record import recorders
from ..record.annotations import record_open_annotation
from ..record.record import at_once
from ..record.storage import ASIDE, READ, Storage, can_run, pending_except
from ..sharding.value import Sharding
from . import executables, inlined_calls, known_graphs
from .initialization import initialize_state
from .pjrt import transfer
from .prepare import prepared
from .recording import recording
from .schedule import (
    Flow,
    Root,
    Subgraph,
    bring,
    by_mesh,
    check_here,
)


def run(
    storages: Iterable[Storage], line: Line, *, donate: bool = True, for_read: bool = False
) -> int:
    """Runs the values of these storages, as one program for each mesh and each part of a cut graph;
    returns the number of ops.

    donate: overwritten data is donated. for_read: see `initialize_state`.
    """
    storages_here = list(storages)
    foreign_storages = pending_except(storages_here) if _has_other_readers() else []
    if donate and at_once.value is not None:
        storages_here = _without_lists(at_once.value.left_out(storages_here), storages_here)
    is_whole = donate and not foreign_storages and is_undivided()
    known, calls = known_graphs.ready(storages_here) if is_whole else None, None
    if known is None and at_once.value is None:  # lists of tokens read the ops as they are
        storages_here, calls = inlined_calls.inline(storages_here, foreign_storages)
    if calls is not None and is_whole:
        known = known_graphs.ready(storages_here)
    if known is not None:
        ready, storages = known
        graph, roots = ready.graph, list(zip(ready.graph.roots, storages, strict=True))
        if calls is not None and ready.program is not None:
            known_graphs.note(graph, storages, ready.program, calls)
        run_schedule([Subgraph(graph.nodes, graph.mesh, ready=ready)], (), roots, line, donate=True)
        return len(graph.nodes)
    needed = _needed_of(foreign_storages, storages_here) if foreign_storages else []
    # Before the roots are taken: an initial value that a step overwrites at once must not become
    # part of its program.
    if donate and _active_guard() is None:  # a guard must watch the ops of initial values, too
        initialize_state(
            storages_here, line, for_read=for_read, needed=needed, foreign_storages=foreign_storages
        )
    roots = roots_of([*storages_here, *_settled_elsewhere(needed)] if needed else storages_here)
    nodes, inputs = topological(list(map(itemgetter(0), roots)))
    if roots:
        run_schedule(by_mesh(roots, nodes, inputs), (), roots, line, donate=donate, calls=calls)
    return len(nodes)


def _without_lists(lists: Sequence[Node], storages: Sequence[Storage]) -> list[Storage]:
    """The storages of a sync that leaves these lists of tokens recorded. A token of theirs that no
    tensor holds gets a storage of its own, as a result of this sync."""
    pending = [storage for storage in storages if type(storage.value) is not DeviceData]
    values = {*lists, *(storage.value for storage in pending)}
    tokens = dict.fromkeys(operand for node in lists for operand in node.operands)
    return [
        *(storage for storage in pending if storage.value not in lists),
        *(
            Storage(token, token.meta)
            for token in tokens
            if type(token) is not DeviceData and token not in values
        ),
    ]


def is_undivided() -> bool:
    """True if the pending values of this thread are one graph, and nothing but its program sees
    them."""
    are_aside = any(ref() is not None for ref in ASIDE)
    return not (are_aside or guard.value or recording.value)


def _has_other_readers() -> bool:
    """True if other recorded values may read what a sync overwrites: those of other threads, and
    those that no sync can run."""
    return recorders.are_several or bool(can_run)


def _needed_of(
    foreign_storages: Sequence[Storage], local_storages: Sequence[Storage]
) -> list[Storage]:
    """The storages of other threads whose values the storages of this thread need."""
    nodes = set(topological([storage.value for storage in local_storages])[0])
    return [storage for storage in foreign_storages if origin(storage.value) in nodes]


def _settled_elsewhere(needed: Sequence[Storage]) -> list[Storage]:
    """The storages of other threads that this run settles, among those it needs.

    A thread that has overwritten data is in a step. If some of its values were settled, the rest of
    the step would be another program: its storages stay pending, unless many syncs needed their
    values, which means an idle thread.
    """
    unsettled = [storage for storage in needed if type(storage.value) is not DeviceData]
    in_step = {storage.recorder for storage in unsettled if storage.data is not None}
    for storage in unsettled:
        # Counts the syncs that have needed this value; a later write starts the count anew.
        stamp, num_syncs = storage.needed
        storage.needed = storage.stamp, num_syncs + 1 if stamp == storage.stamp else 1
    return [
        storage
        for storage in unsettled
        if storage.recorder not in in_step or storage.needed[1] > _OFTEN
    ]


_OFTEN = 8  # syncs that needed a value; after more, its thread counts as idle


class Ran(NamedTuple):
    """A program that has run, as `Observation.ran` keeps it: its graph, the roots with their
    storages, and their results."""

    program: cache.Program
    graph: Graph
    roots: Sequence[Root]
    outputs: Sequence[DeviceData]


def roots_of(storages: Iterable[Storage]) -> list[Root]:
    """The roots of the storages that have no data yet. An open annotation is recorded anew first,
    as the value's last op."""
    roots: list[Root] = []
    for storage in storages:
        if type(storage.value) is not DeviceData:
            if (sharding := storage.sharding) is not None and sharding.is_open:
                record_open_annotation(storage, sharding)
            roots.append((storage.value, storage))
    return roots


# Called with the user's line whenever a graph runs.
on_schedule: list[Callable[[Line], None]] = []


def run_schedule(
    subgraphs: Sequence[Subgraph],
    deferred_nodes: Sequence[Node],
    roots: Sequence[Root],
    line: Line,
    *,
    donate: bool,
    calls: inlined_calls.Calls | None = None,
) -> None:
    """Runs the subgraphs of a graph in order: each reads only results of earlier ones.
    `deferred_nodes` read their results and stay recorded. calls: see `known_graphs.note`."""
    cache.next_run()
    for note in on_schedule if recording.value is None else ():
        note(line)
    todo, roots_left = list(subgraphs), list(roots)
    passed: set[DeviceData] = set()  # made for later subgraphs alone
    done: set[Node | None] = set()
    rerunnable_nodes: set[Node] | None = None  # set at the first cut: ops that may run again
    # After a cut `todo` has the parts in place of their subgraph, and `flow` is found anew: values
    # have other readers.
    flow, index = _flow(todo, deferred_nodes, roots_left, passed), 0
    try:
        while index < len(todo):
            subgraph = todo[index]
            with cache.part.held((index + 1, len(todo))):
                parts = (
                    _run_on_host(subgraph, roots_left, flow)
                    if subgraph.where is None
                    else _run_subgraph(
                        subgraph, index, roots_left, flow, line, donate=donate, calls=calls
                    )
                )
            if parts:
                rerunnable_nodes = (
                    _rerunnable(roots_left)
                    if donate and rerunnable_nodes is None
                    else rerunnable_nodes
                )
                roots_left = [root for root in roots_left if origin(root[0]) not in done]
                todo, index = [*parts, *todo[index + 1 :]], 0
                flow = _flow(todo, deferred_nodes, roots_left, passed)
            else:
                done.update(subgraph.nodes)
                # Only after a cut: a graph that runs as one program drops its operands with its
                # nodes. Not in a plan, which compiles its programs later.
                if rerunnable_nodes is not None and recording.value is None:
                    flow.release(index, rerunnable_nodes)
                index += 1
    finally:
        # A storage keeps past values in case its program fails; ops that have run do not run again.
        for _, storage in roots:
            if storage.past:
                storage.past = [value for value in storage.past if origin(value) not in done]


def _rerunnable(roots: Sequence[Root]) -> set[Node]:
    """The ops that may run again: behind values that are set aside, recorded by other threads, or
    cached by views."""
    aside = [storage.value for ref in ASIDE if (storage := ref()) is not None]
    views = [view.value for view, *_ in READ if view.value is not None]
    return set(topological([*aside, *views, *_other_pending(roots)])[0])


def _flow(
    todo: Sequence[Subgraph],
    deferred_nodes: Sequence[Node],
    roots_left: Sequence[Root],
    passed: set[DeviceData],
) -> Flow:
    """The readers of each value, other recorded ops included."""
    flow = Flow(todo, deferred_nodes, roots_left, passed)
    if at_once.value is not None or _has_other_readers():
        flow.add_foreign_readers(_other_pending(roots_left))
    return flow


def _run_on_host(subgraph: Subgraph, roots: Sequence[Root], flow: Flow) -> Sequence[Subgraph]:
    """Computes a subgraph's results without a program, and gives them as data to the ops that read
    them. Returns [], as it is never cut."""
    result: dict[Hashable, DeviceData] = {}
    for node in subgraph.nodes:
        node.operands = tuple(result.get(value_name(operand), operand) for operand in node.operands)
        inputs = [operand for operand in node.operands if type(operand) is DeviceData]
        result |= zip(
            map(value_name, results(node)),
            on_host.compute(node.op, inputs, node.numbers),
            strict=True,
        )
    flow.substitute(result)
    for value, storage in roots:
        device_data = result.get(value_name(value))
        if device_data is not None:
            _settle(storage, value, device_data)
    return []


def _run_subgraph(
    subgraph: Subgraph,
    index: int,
    roots_left: list[Root],
    flow: Flow,
    line: Line,
    *,
    donate: bool,
    calls: inlined_calls.Calls | None,
) -> Sequence[Subgraph]:
    """Runs one subgraph; if a pass cuts it, nothing runs, and its parts are returned to run in its
    place. roots_left: roots of the whole schedule that have not run."""
    roots = flow.roots_of(index)
    active_guard = _active_guard()
    if active_guard is not None:
        _run_guarded(active_guard, subgraph, roots, flow, line)
        return []

    def dies(device_data: DeviceData) -> bool:
        return donate and flow.last.get(device_data, -1) <= index

    def pending_graph() -> Graph:
        return executables.graph_of(roots, subgraph.where, dies=dies, passed=flow.passed)

    ready = subgraph.ready
    if ready is None:
        graph = pending_graph()
        check_here(graph.mesh)
        ready = prepared(graph, subgraph, roots_left, flow, line, donate=donate)
        # A graph that no pass has changed becomes a known graph: later syncs compare with it.
        is_whole = donate and ready.graph is graph and not flow.subgraph_of
        if is_whole and ready.program is not None and is_undivided():
            for noted_calls in (None, calls) if calls is not None else (None,):
                known_graphs.note(graph, [x for _, x in roots], ready.program, noted_calls)
    if ready.parts:
        return ready.parts
    plan = recording.value
    if plan is not None:
        _settle_all(ready.graph, roots, plan.run(ready.graph), flow)
        return []
    graph, program = ready.graph, ready.program
    if program is None:
        executables.compile_unlocked(graph, "step", line, ready.why_not)
        # Other threads may have recorded and annotated during the compilation: their reads keep
        # data alive, and their annotations apply.
        if _has_other_readers():
            flow.add_foreign_readers(_other_pending([*roots_left, *roots]))
        ready = prepared(pending_graph(), subgraph, roots_left, flow, line, donate=donate)
        if ready.parts:
            return ready.parts
        graph = ready.graph
        program = ready.program or executables.program_for(graph, "step", line)
    # Uploads and moves come after the compilation, so that a program that does not fit has moved
    # nothing.
    bring(graph.inputs, graph.shardings, stays=False)
    outputs = _run_program(program, _with_spares(graph, program.donated, flow), line)
    observing = state.active_observation.value
    if observing is not None:
        observing.ran.append(Ran(program, graph, roots, outputs))
    _settle_all(graph, roots, outputs, flow)
    return []


class GuardError(FloatingPointError):
    """Raised where a guard refuses the results of a program; no storage has taken one. `value`: the
    op or data that it blames."""

    def __init__(self, message: str, value: Value):
        super().__init__(message)
        self.value = value


class ValueGuard(Protocol):
    """Checks the values of a thread's programs before any storage takes a result
    (`spmd.nan_guard`)."""

    def watched(self, graph: Graph) -> tuple[Graph, list[Value]]:
        """Returns the graph with a further root, a vector of flags, and the value of each flag."""

    def look(
        self, graph: Graph, values: list[Value], flags: np.ndarray, targets: Sequence[Storage]
    ) -> None:
        """Raises GuardError for a value with a flag that must not be set. targets: the storages
        that take the graph's results."""

    def check_cast(self, source: torch.Tensor, dtype: torch.dtype) -> None:
        """Raises for CPU data that the host must not cast to this dtype."""


guard = PerThread[ValueGuard | None](None)


def _active_guard() -> ValueGuard | None:
    """The thread's guard; None in a recording, which runs nothing."""
    return None if recording.value is not None else guard.value


def _settle_all(
    graph: Graph, roots: Sequence[Root], outputs: Sequence[DeviceData], flow: Flow
) -> None:
    """Stores the results of a run in storages, and as operands of later subgraphs."""
    # A pass may have padded a root: its storage then takes a view without the padding.
    settled: list[DeviceData | Node] = [
        data if value is root or data.meta.shape == value.meta.shape else unpadded(data, value)
        for (value, _), root, data in zip(roots, graph.roots, outputs, strict=True)
    ]
    if flow.readers:
        flow.substitute(
            {value_name(value): data for (value, _), data in zip(roots, settled, strict=True)}
        )
    for (value, storage), data, output in zip(roots, settled, outputs, strict=True):
        _settle(storage, value, data, output.sharding)


def _with_spares(graph: Graph, donated: Sequence[bool], flow: Flow) -> Graph:
    """The graph with copies of the donated inputs that other threads' ops still read.

    Its key stays the same: timing must not decide which program runs.
    """
    if not flow.read_elsewhere:
        return graph
    # Donation is a part of the key and stays: the program takes the memory of the copy.
    inputs = list(graph.inputs)
    for index, (device_data, is_donated) in enumerate(zip(graph.inputs, donated, strict=True)):
        if is_donated and device_data in flow.read_elsewhere:
            inputs[index] = _copy_of(device_data)
    return graph if inputs == graph.inputs else dataclasses.replace(graph, inputs=inputs)


def _copy_of(device_data: DeviceData) -> DeviceData:
    """A copy of device data, to be donated in its place: in the same row, where it is a row of a
    store."""
    counters.add("buffers_spared")
    copy = DeviceData(device_data.meta, sharding=device_data.sharding)
    if device_data.store is not None:
        device_data.store.pass_on(device_data.row, copy)
    else:
        buffer, sharding = device_data.placed()
        copy.take(transfer.copied(buffer, sharding), sharding)
    return copy


def _other_pending(roots: Sequence[Root]) -> list[Value]:
    """The pending values that are not roots of this run."""
    names = {value_name(value) for value, _ in roots}
    return [
        storage.value for storage in pending_except(()) if value_name(storage.value) not in names
    ]


def _settle(
    storage: Storage, value: Value, result: DeviceData | Node, sharding: Sharding | None = None
) -> None:
    """Gives a storage its computed value. A storage written meanwhile keeps the value for the case
    that the newer one fails.
    """
    if type(result) is Node:
        if storage.value is value:
            storage.settle_unpadded(result, sharding)
        return
    assert type(result) is DeviceData
    # A storage that was written while its program was compiled keeps the newer value; the older one
    # is what it goes back to.
    if storage.value is value:
        storage.settle(result)
    elif type(storage.value) is not DeviceData:
        storage.home, storage.data, result.holder = result.sharding, result, storage.ref


def _run_program(program: cache.Program, graph: Graph, line: Line) -> list[DeviceData]:
    """Runs a graph, and marks the data that it has overwritten as lost.

    The caller keeps signals out (see `syncs.sync`): between the launch and the storages' taking of
    the results, nothing holds the state.
    """
    try:
        outputs = executables.run(program, graph)
    except BaseException:
        for device_data in graph.inputs:
            if device_data.is_lost():
                device_data.give_up(
                    f"its buffer was donated to the run at {line}, which did not finish"
                )
        raise
    # From here on a read of the old data is an error with this reason, and no silent read of
    # overwritten memory.
    refilled = {*outputs}  # an input whose result has taken its place is an output as well
    for device_data, is_donated in zip(graph.inputs, program.donated, strict=True):
        if is_donated and device_data not in refilled:
            device_data.give_up("it was overwritten in place")
    return outputs


def _run_guarded(
    active_guard: ValueGuard, subgraph: Subgraph, roots: list[Root], flow: Flow, line: Line
) -> None:
    """Runs a subgraph inside a guard: nothing is donated, and no storage takes its result where the
    guard raises."""
    graph = executables.graph_of(roots, subgraph.where)
    # The watched graph is another program, compiled once; the step without a guard keeps its own.
    watched, values = active_guard.watched(graph)
    program = executables.program_for(watched, "step", line)
    bring(graph.inputs, graph.shardings)
    outputs = executables.run(program, watched)
    if values:
        active_guard.look(
            graph, values, np.asarray(outputs.pop().placed()[0]), [storage for _, storage in roots]
        )
    _settle_all(graph, roots, outputs, flow)
