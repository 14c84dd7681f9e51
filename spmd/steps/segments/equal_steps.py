"""Steps of deferred calls that are equal to an earlier step: its program is launched, and no
operand, no result and no gradient of the calls is made.

A step is described without the state that its calls read and write, which guards and watched
storages know: the ops between the calls, the calls, and what others hold of their results.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core import DeviceData, Storage, counters, observation, points, syncs, user_line
from ...core.extend import (
    Bounded,
    Graph,
    Node,
    Program,
    Value,
    deferred,
    execute,
    failed,
    host_ops,
    kept_values,
    recorders,
    schedule,
    storages,
    walks,
)
from ..replay.recipe import OfArgument, OfResult, OfState, Origin
from ..replay.replay import BoundState, Found, Task


@dataclass(slots=True)
class _Step:
    """A step that is about to run. key: equal for steps that the same program computes, with the
    same state. inputs: the data that ops between the calls, and arguments, are. pending: the
    storages with results. given: the pools of gradients that are held. known: earlier steps, by
    their keys."""

    key: Hashable
    nodes: list[Node]
    inputs: list[DeviceData]
    pending: list[Storage]
    given: list[Any]
    known: Bounded[Hashable, Any]

    def storages(self) -> list[Storage]:
        """The storages of results other than state, in order."""
        return [*self.pending, *(storage for pool in self.given for storage in pool.storages)]


def _present() -> _Step | None:
    """The step of the deferred calls; None where it holds what a key does not describe."""
    calls = [*deferred.calls]
    pending = [
        storage
        for ref in storages.LIVE
        if (storage := ref()) is not None and not walks.is_data(storage.value)
    ]
    pools = [call.pool for call in calls if call.pool is not None]
    are_free = [pool.is_free() for pool in pools]
    known = next((call.steps for call in calls if call.steps is not None), None)
    runs_here = recorders.run_condition()
    is_known = (
        all(map(runs_here, [call.recorder for call in calls] + [x.recorder for x in pending]))
        and all(all(runs([x.value for x in pending])) for runs in points.can_run)
        and len(calls) == len(deferred.calls)  # none of these storages is a call's
        and all(call.is_read for call in calls)
        and all(
            is_free or pool.are_gradients() for pool, is_free in zip(pools, are_free, strict=True)
        )
    )
    if known is None or not is_known:
        return None
    read = [*(x.value for x in pending), *(x for call in calls for x in call.arguments)]
    call_of = {call.node: call for call in calls}
    nodes = sorted({*walks.topological(read)[0], *call_of}, key=lambda node: node.serial)
    place = {node: number for number, node in enumerate(nodes)}
    inputs: dict[DeviceData, int] = {}

    def name(value: Value) -> Hashable:
        node = walks.origin(value)
        if node is None:
            return inputs.setdefault(value, len(inputs))  # type: ignore[arg-type]  # it is data
        return place[node], walks.result_index(value)

    rows: list[Hashable] = []
    for node in nodes:
        call = call_of.get(node)
        rows.append(node.op if call is None else call.key)
        rows.extend(map(name, node.operands if call is None else call.arguments))
    for storage in pending:
        old = storage.data
        if old is not None and old.holder is not storage.ref:
            return None
        rows += (
            name(storage.value),
            storage.meta,
            storage.sharding,
            storage.home,
            storage.is_state,
            None if old is None else name(old),
        )
    for data in inputs:
        holder = None if data.holder is None else data.holder()
        if data.lost_reason is not None or (holder and deferred.is_watched(holder)):
            return None
        rows += data.meta, data.host is None, schedule.intended_sharding(data), holder is None
    given = [pool for pool, is_free in zip(pools, are_free, strict=True) if not is_free]
    key = walks.flags(), *are_free, *rows
    return _Step(key, nodes, [*inputs], pending, given, known)


class _Task(Task):
    """A program whose inputs other than state are given."""

    def _data_of(self, objects: Found, origin: Origin) -> DeviceData:
        if isinstance(origin, OfArgument):
            return objects.flat[origin.number]
        return super()._data_of(objects, origin)

    def returns_rows(self) -> bool:
        """True if a result that is no state has rows of an input."""
        return any(not isinstance(x, int) and min(x) < 0 for _, x, _ in self._new)


class _EqualStep:
    """The program of a step, for later steps with its key.

    Raises LookupError for a program that reads or writes other things than the step.
    """

    def __init__(self, step: _Step, program: Program, graph: Graph, values: Sequence[Storage]):
        if graph.nodes != step.nodes:
            raise LookupError("it computes other ops")
        given = {storage: number for number, storage in enumerate(step.storages())}
        place = {data: number for number, data in enumerate(step.inputs)}
        states: dict[Storage, int] = {}

        def state(storage: Storage | None) -> OfState:
            if storage is None or not deferred.is_watched(storage):
                raise LookupError("it reads or writes other tensors")
            return OfState(states.setdefault(storage, len(states)))

        inputs = [
            OfArgument(place[data])
            if data in place
            else state(None if data.holder is None else data.holder())
            for data in graph.inputs
        ]
        roots = [OfResult(0, i) if x in given else state(x) for i, x in enumerate(values)]
        self._taken = [(i, given[x]) for i, x in enumerate(values) if x in given]
        self._written = [x.ref for x in values if x not in given]
        if len(self._taken) < len(given):
            raise LookupError("others compute results of the step")
        pairs = [*zip(graph.roots, values, strict=True)]
        self._task = _Task(execute.Ran(program, graph, pairs, ()), inputs, roots)
        self._state = BoundState([*states], [self._task])
        self._orders = program.numbers

    def ready(self) -> bool:
        """Brings state to where the program reads it; False where it cannot read it."""
        is_bound = not self._state.ready() and not self._task.returns_rows()
        return is_bound and bool(deferred.calls)  # who read state meanwhile has finished them

    def run(self, step: _Step) -> int:
        """Runs the program; returns the number of its results. The caller holds the locks of a
        sync."""
        vectors: Any = walks.pack_numbers(step.nodes)
        vectors = np.array(vectors[0], np.float64), np.array(vectors[1], np.int64)
        if self._orders is not None:
            vectors = tuple(x[order] for x, order in zip(vectors, self._orders, strict=True))
        for look in points.before_run:
            look(self._task.program)
        objects = Found(step.inputs, self._state.storages(), self._state.data, (), [], {})
        calls, deferred.calls[:] = [*deferred.calls], []
        try:
            new = self._task.run(objects, vectors)
        except BaseException:
            deferred.calls[:] = calls
            self._state.give_up(self._task.program.line)
            raise
        deferred.count_up(self._written)
        results = step.storages()
        for root, number in self._taken:
            results[number].settle(new[root])
        for pool in step.given:
            pool.hold()
        return len(self._written) + len(results)


_waiting: list[_Step] = []  # the step whose program is to be kept, if any


def _is_plain() -> bool:
    """True if a sync would run the pending values as one program, and no value is kept apart."""
    is_seen = host_ops.OWN or kept_values.has_any() or observation.active_observation.value
    return not is_seen and execute.is_undivided()


def launch() -> tuple[int, int] | None:
    """Runs the deferred calls, and what else is pending, where the step is equal to one that ran;
    returns the numbers of results and of ops, or None. Joins `syncs.instead`."""
    _waiting.clear()
    step = _present() if deferred.calls and _is_plain() else None
    if step is None:
        return None
    known: _EqualStep | None = step.known.get(step.key)
    if known is None or not known.ready():
        _waiting.append(step)
        return None
    for note in execute.on_schedule:
        note(user_line())
    counters.add("syncs")
    counters.add("replayed_steps")
    counters.add_sample("TensorsGraphSize", len(step.nodes))
    try:
        return known.run(step), len(step.nodes)
    except Exception as error:
        failed.give_up(storages.pending(), error)
        raise


def note_run(program: Program, graph: Graph) -> None:
    """Keeps the program of a step that is not known; joins `points.before_recorded_run`."""
    if not _waiting:
        return
    step = _waiting.pop()
    names = {walks.value_name(storage.value): storage for storage in storages.pending()}
    values = [names.get(walks.value_name(root)) for root in graph.roots]
    if None in values:
        return
    try:
        step.known.keep(step.key, _EqualStep(step, program, graph, values))  # type: ignore[arg-type]
    except LookupError:
        return


syncs.instead.append(launch)
points.before_recorded_run.append(note_run)
