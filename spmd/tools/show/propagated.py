"""The shardings that the compiler chooses for values that are recorded and not annotated.

The programs of the next sync are compiled for it. The sync is recorded as a step that never runs,
so that storages, counters and the compile log are afterwards what they were. The cache keeps its
programs for the run.
"""

from collections.abc import Sequence

from ...core import (
    DeviceData,
    Sharding,
    Storage,
    XlaTensor,
    counters,
    in_flight,
    storage_of,
    syncs,
    user_line,
    view_of,
)
from ...core.extend import Recording, executables, recorders, recordings, views


def propagated_shardings(tensors: Sequence[XlaTensor]) -> list[Sharding | None]:
    """The shardings that the values of these tensors will have when they have run, chosen in one
    sync for all that is pending.

    None for a value that is on no devices by then. Raises the errors of a compilation,
    LoweringError at the first op that has one.
    """
    shardings: dict[tuple[int, int], Sharding] = {}
    with counters.silent(), in_flight.unchanged():
        while True:
            result, needed = _attempt(tensors, shardings)
            if not needed:
                return result
            shardings |= needed


def _attempt(
    tensors: Sequence[XlaTensor], layouts: dict[tuple[int, int], Sharding]
) -> tuple[list[Sharding | None], dict[tuple[int, int], Sharding]]:
    """The shardings, where `layouts` has those of programs' results; or else the first ones that
    must be known, too."""
    into = Recording(layouts)
    with recordings.recorded(into):
        storages = [_storage_of(tensor) for tensor in tensors]
        syncs.sync()
        values = {storage.value for storage in storages}
        needed = {number for data, (number, _) in into.unknown.items() if data in values}
        # A program's results have a known sharding only where those that it reads have one.
        for number in reversed(range(len(into.programs))):
            read = into.programs[number].inputs if number in needed else ()
            needed |= {into.unknown[data][0] for data in read if data in into.unknown}
        if not needed:
            return [
                storage.value.sharding if type(storage.value) is DeviceData else None
                for storage in storages
            ], {}
        first = min(needed)
        graph = into.programs[first]
        results = executables.planned_for(graph, user_line()).results
        return [], {
            (first, i): sharding for i, sharding in enumerate(results) if graph.pinned[i] is None
        }


def _storage_of(tensor: XlaTensor) -> Storage:
    """A storage that the next sync runs and that has the tensor's value."""
    value = views.read(tensor)
    if (
        view_of(tensor) is None
        and storage_of(tensor).listed
        and recorders.run_condition()(storage_of(tensor).recorder)
    ):
        return storage_of(tensor)
    return Storage(value, value.meta)
