"""The barrier: runs what is pending, or shows the program that it would run."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import interrupt, metrics, pace
from ..compile import compiler
from ..ir.graph import Graph, Leaf, is_data, topological
from ..ir.source import user_line
from ..lazy import recorders
from ..lazy.annotate import unmarked_entry
from ..lazy.body import refuse
from ..lazy.cell import BARRIER, LIVE, LOCK, Cell, forget_reads, pending
from ..lazy.record import NOWHERE, record
from ..lazy.tensor import XlaTensor
from ..lazy.views import read
from ..pjrt import processes, runs
from . import launch
from .abstract import recording
from .execute import graph_of, roots_of, run
from .failed import give_up
from .init import is_pure
from .placement import meshes_met


@dataclass(frozen=True, slots=True)
class Synced:
    """What a barrier did.

    Attributes:
        line: the user's line that called or needed it. num_tensors: how many values it computed.
        num_programs: how many programs it handed to the devices, which may still run. compiled: the lines of the ledger
            of those that were compiled for it, oldest first.
    """

    line: str
    num_tensors: int
    num_programs: int
    compiled: tuple[metrics.CompileRecord, ...]


# Called after each barrier, in order, with what it did.
AFTER: "OrderedDict[int, Callable[[Synced], Any]]" = OrderedDict()
_telling = threading.local()  # .now: this thread calls them, and the barriers that they start are nobody's concern


class Watch:
    """What has been run and compiled since it was made, for those who want to know."""

    def __init__(self) -> None:
        self.is_on = bool(AFTER) and recording() is None and not getattr(_telling, "now", False)
        if self.is_on:
            self.num_runs, self.last = metrics.counter("runs"), metrics.last_compile()

    def tell(self, num_tensors: int) -> None:
        """Tells all; the caller holds no lock."""
        if not self.is_on:
            return
        num_programs = max(metrics.counter("runs") - self.num_runs, 0)
        done = Synced(str(user_line()), num_tensors, num_programs, metrics.compiled_since(self.last))
        _telling.now = True
        try:
            for function in [*AFTER.values()]:
                function(done)
        finally:
            _telling.now = False


def sync(*, wait: bool = False, for_read: bool = False) -> None:
    """Runs everything that this thread has recorded, as one program, and returns at once unless `wait`.

    What other threads have recorded runs where that needs it, or where they have ended. State that depends on constants
    and random keys alone (initialisation) runs first, as a program of its own. With `wait` it returns when the devices
    are done. for_read: it is for the sake of a value. Errors: see `spmd.sync`.
    """
    refuse("spmd.sync()", "what is recorded there is run by nobody but the loop; call it outside")
    interrupt.watch()
    if processes.several():
        processes.collect_garbage()
    with BARRIER, LOCK, interrupt.later():
        watch = Watch()
        cells = [cell for cell in pending() if recording() is not None or not _is_far_state(cell)]
        num_turns, num_ops, num_nodes = metrics.counter("loop_turns"), pace.recorded_ops, 0
        if cells:
            metrics.add("syncs")
            try:
                num_nodes = run(cells, user_line(), for_read=for_read)
            except Exception as error:
                give_up(cells, error)
                raise
        _forget_what_ran()
        had_loop = num_turns < metrics.counter("loop_turns")
        pace.rest(num_ops, had_loop=had_loop)
        if not had_loop:
            recorders.note_step(num_nodes)
    if wait:
        runs.wait()
    watch.tell(len(cells))


def _is_far_state(cell: Cell) -> bool:
    """Whether it is a parameter or buffer as it begins, on devices that are not here: to be planned with, never run."""
    lies = cell.sharding
    return cell.is_state and lies is not None and lies.target is not None and is_pure(cell.value, {})


def _forget_what_ran() -> None:
    """Only what other threads have recorded is still to be run."""
    kept = []
    for ref in LIVE:
        cell = ref()
        if cell is not None and not is_data(cell.value):
            kept.append(ref)
        elif cell is not None:
            cell.listed = False
    LIVE[:] = kept
    forget_reads()


def stablehlo(tensors: Sequence[XlaTensor] | None = None) -> str:
    """The StableHLO of these values, or of what the next barrier would compile, with its sharding attributes; nothing
    runs."""
    with BARRIER, LOCK:
        graph = _graph_of(tensors, "get_stablehlo")
        return "" if graph is None else str(compiler.lower_graph(launch.formed(graph)).as_text())


def hlo(tensors: Sequence[XlaTensor] | None = None) -> str:
    """The same as XLA has partitioned and optimised it: compiled, and not run."""
    with BARRIER, LOCK:
        graph = _graph_of(tensors, "get_hlo")
        return "" if graph is None else str(launch.planned_for(graph, user_line()).executable.as_text())


def _graph_of(tensors: Sequence[XlaTensor] | None, caller: str) -> Graph | None:
    chosen = pending() if tensors is None else list(map(_wanted, tensors))
    if not chosen:
        return None
    roots = roots_of(chosen)
    mesh, *others = meshes_met(chosen, *topological([value for value, _ in roots])).values()
    if others:
        raise ValueError(
            f"{caller}: one program cannot span meshes with different devices, {list(mesh.device_ids)} and "
            f"{list(others[0].device_ids)}; pass the tensors of one of them"
        )
    return graph_of(roots, mesh, dies=lambda leaf: tensors is None)


def _wanted(tensor: XlaTensor) -> Cell:
    """A cell with a recorded value for what a tensor is: its own, or one of what a view shows, or of data as it is."""
    cell, view = tensor._cell, tensor._view
    if view is None and type(cell.value) is not Leaf:
        return cell
    value = read(tensor)
    meta = cell.meta if view is None else view.meta.layout
    if type(value) is Leaf:
        value = record(unmarked_entry(meta), (value,), (), NOWHERE)
    return Cell(value, meta, cell.sharding if view is None else view.sharding)
