"""How recorded values will lie, by the compiler: the programs of the next barrier are compiled for it, nothing runs.

The barrier is recorded as a step that never runs (see `abstract`), so that cells, counters and the ledger are
afterwards what they were. The cache keeps its programs for the run (see `cache.planned_for`).
"""

from collections.abc import Sequence

from .. import metrics
from ..ir.graph import Graph, Leaf
from ..ir.source import user_line
from ..lazy import body, recorders, views
from ..lazy.cell import BARRIER, LOCK, Cell
from ..lazy.tensor import XlaTensor
from ..pjrt import runs
from ..sharding.value import Sharding
from . import barrier, launch
from .abstract import Recording, recorded, recording


def is_unknown() -> bool:
    """Whether the compiler cannot be asked now: what is recorded is part of a plan, or of a loop's body."""
    return recording() is not None or bool(body.names())


def propagated(tensors: Sequence[XlaTensor]) -> list[Sharding | None]:
    """How the values of these tensors will lie when they have run, chosen in one barrier for all that is pending.

    None for what lies nowhere by then. Raises what compiling raises, LoweringError at the first.
    """
    known: dict[tuple[int, int], Sharding] = {}
    with BARRIER, LOCK, metrics.silent(), runs.unchanged():
        while True:
            found, needed = _attempt(tensors, known)
            if not needed:
                return found
            known |= needed


def _attempt(
    tensors: Sequence[XlaTensor], known: dict[tuple[int, int], Sharding]
) -> tuple[list[Sharding | None], dict[tuple[int, int], Sharding]]:
    """How they lie where the results of programs lie as `known`; and what must be known besides, first of all."""
    into = Recording(known)
    with recorded(into):
        cells = [_cell_of(tensor) for tensor in tensors]
        barrier.sync()
        waiting = [number for cell in cells if (number := _unknown_of(cell, into)) is not None]
        needed = set(waiting)
        while waiting:
            before = _read_by(into, waiting.pop()) - needed
            needed |= before
            waiting += before
        first = min(needed, default=None)
        if first is None:
            return [cell.value.sharding if type(cell.value) is Leaf else None for cell in cells], {}
        chosen = _chosen(into.programs[first])
        return [], {(first, place): lies for place, lies in chosen.items()}


def _cell_of(tensor: XlaTensor) -> Cell:
    """A cell that the next barrier runs and that has the tensor's value."""
    value = views.read(tensor)
    if tensor._view is None and tensor._cell.listed and recorders.is_run_here()(tensor._cell.recorder):
        return tensor._cell
    return Cell(value, value.meta)


def _unknown_of(cell: Cell, into: Recording) -> int | None:
    """The program that makes a cell's value, where that lies as the compiler likes and this is not known."""
    place = into.unknown.get(cell.value) if type(cell.value) is Leaf else None
    return None if place is None else place[0]


def _read_by(into: Recording, number: int) -> set[int]:
    """The programs of whose results the layout must be known before that of this program's."""
    return {into.unknown[leaf][0] for leaf in into.programs[number].leaves if leaf in into.unknown}


def _chosen(graph: Graph) -> dict[int, Sharding]:
    """How each result lies that nobody has pinned."""
    results = launch.planned_for(graph, user_line()).results
    return {place: lies for place, lies in enumerate(results) if graph.pinned[place] is None}
