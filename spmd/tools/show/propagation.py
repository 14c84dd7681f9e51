"""Shardings of recorded values, as the compiler chooses them: the programs of the next sync are compiled for it,
nothing runs.

The sync is recorded as a step that never runs (see `abstract`), so that storages, counters and the compile log are
afterwards what they were. The cache keeps its programs for the run (see `cache.planned_for`).
"""

from collections.abc import Sequence

from ...core import (
    LOCK,
    DeviceData,
    Sharding,
    Storage,
    XlaTensor,
    counters,
    hardware,
    recording,
    storage_of,
    syncs,
    user_line,
    view_of,
)
from ...core.extend import SYNC_LOCK, Graph, Recording, body, executables, record_calls, recordings
from ...core.extend import storages as recorders


def is_unknown() -> bool:
    """True if the compiler cannot choose now: the recording is part of a plan, or of a loop's body."""
    return recording.value is not None or bool(body.names.value)


def propagated(tensors: Sequence[XlaTensor]) -> list[Sharding | None]:
    """The shardings that the values of these tensors will have when they have run, chosen in one sync for all that is
    pending.

    None for a value that is on no devices by then. Raises the errors of a compilation, LoweringError at the first op
    that has one.
    """
    shardings: dict[tuple[int, int], Sharding] = {}
    with SYNC_LOCK, LOCK, counters.silent(), hardware.unchanged():
        while True:
            result, needed = _attempt(tensors, shardings)
            if not needed:
                return result
            shardings |= needed


def _attempt(
    tensors: Sequence[XlaTensor], known: dict[tuple[int, int], Sharding]
) -> tuple[list[Sharding | None], dict[tuple[int, int], Sharding]]:
    """The shardings, where those of programs' results are `known`; or else the first ones that must be known, too."""
    into = Recording(known)
    with recordings.recorded(into):
        storages = [_storage_of(tensor) for tensor in tensors]
        syncs.sync()
        waiting = [number for storage in storages if (number := _unknown_of(storage, into)) is not None]
        needed = set(waiting)
        while waiting:
            earlier = _read_by(into, waiting.pop()) - needed
            needed |= earlier
            waiting += earlier
        first = min(needed, default=None)
        if first is None:
            return [storage.value.sharding if type(storage.value) is DeviceData else None for storage in storages], {}
        chosen = _chosen(into.programs[first])
        return [], {(first, place): sharding for place, sharding in chosen.items()}


def _storage_of(tensor: XlaTensor) -> Storage:
    """A storage that the next sync runs and that has the tensor's value."""
    value = record_calls.read(tensor)
    if view_of(tensor) is None and storage_of(tensor).listed and recorders.is_run_here()(storage_of(tensor).recorder):
        return storage_of(tensor)
    return Storage(value, value.meta)


def _unknown_of(storage: Storage, into: Recording) -> int | None:
    """The program that makes a storage's value, where the compiler chooses its sharding and this is not known."""
    source = into.unknown.get(storage.value) if type(storage.value) is DeviceData else None
    return None if source is None else source[0]


def _read_by(into: Recording, number: int) -> set[int]:
    """The programs whose results must have a known sharding before this program's can have one."""
    return {into.unknown[device_data][0] for device_data in into.programs[number].inputs if device_data in into.unknown}


def _chosen(graph: Graph) -> dict[int, Sharding]:
    """The sharding of each result that is not pinned."""
    results = executables.planned_for(graph, user_line()).results
    return {index: sharding for index, sharding in enumerate(results) if graph.pinned[index] is None}
