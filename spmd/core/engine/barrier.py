"""The barrier: runs what is pending, or shows the program that it would run."""

from collections.abc import Sequence

from .. import interrupt, metrics, pace
from ..compile import compiler
from ..ir.graph import Leaf, is_data, topological
from ..ir.source import user_line
from ..lazy.body import refuse
from ..lazy.cell import BARRIER, LIVE, LOCK, Cell, forget_reads, pending
from ..pjrt import processes, runs
from . import launch
from .abstract import recording
from .execute import graph_of, roots_of, run
from .failed import give_up
from .init import is_pure
from .placement import meshes_met


def sync(*, wait: bool = False) -> None:
    """Runs everything that is pending, as one program, and returns at once unless `wait`.

    State that depends on constants and random keys alone (initialisation) runs first, as a program of its own. With
    `wait` it returns when the devices are done. Errors: see `spmd.sync`.
    """
    refuse("spmd.sync()", "what is recorded there is run by nobody but the loop; call it outside")
    interrupt.watch()
    if processes.several():
        processes.collect_garbage()
    with BARRIER, LOCK, interrupt.later():
        cells = [cell for cell in pending() if recording() is not None or not _is_far_state(cell)]
        num_turns, num_ops = metrics.counter("loop_turns"), pace.recorded_ops
        if cells:
            metrics.add("syncs")
            try:
                run(cells, user_line())
            except Exception as error:
                give_up(cells, error)
                raise
        _forget_what_ran()
        pace.rest(num_ops, had_loop=num_turns < metrics.counter("loop_turns"))
    if wait:
        runs.wait()


def _is_far_state(cell: Cell) -> bool:
    """Whether it is a parameter or buffer as it begins, on devices that are not here: to be planned with, never run."""
    lies = cell.sharding
    return cell.is_state and lies is not None and lies.target is not None and is_pure(cell.value, {})


def _forget_what_ran() -> None:
    """Only what other threads have recorded while this one compiled is still to be run."""
    kept = []
    for ref in LIVE:
        cell = ref()
        if cell is not None and not is_data(cell.value):
            kept.append(ref)
        elif cell is not None:
            cell.listed = False
    LIVE[:] = kept
    forget_reads()


def pending_stablehlo(cells: Sequence[Cell] | None = None) -> str:
    """The StableHLO that the next barrier would compile, with its sharding attributes; nothing runs."""
    with BARRIER, LOCK:
        chosen = [cell for cell in (pending() if cells is None else cells) if type(cell.value) is not Leaf]
        if not chosen:
            return ""
        roots = roots_of(chosen)
        mesh, *others = meshes_met(chosen, *topological([value for value, _ in roots])).values()
        if others:
            raise ValueError(
                f"get_stablehlo: one program cannot span meshes with different devices, {list(mesh.device_ids)} and "
                f"{list(others[0].device_ids)}; pass the tensors of one of them"
            )
        graph = graph_of(roots, mesh, dies=lambda leaf: cells is None)
        return str(compiler.lower_graph(launch.formed(graph)).as_text())
