"""What is recorded and not synced: the turns of a loop run when they are finished, a long graph when it is too long."""

from collections.abc import Sequence

from .. import interrupt, metrics, pace
from ..compile import notice
from ..config import config
from ..ir.graph import Node, origin, topological
from ..ir.source import user_line
from ..lazy import recorders
from ..lazy.cell import BARRIER, LIVE, LOCK, forget_reads, pending
from ..passes import nans, turns
from ..pjrt import processes
from .abstract import recording
from .barrier import sync
from .cutting import between
from .execute import roots_of, run_schedule
from .failed import give_up
from .init import give_birth
from .placement import meshes_met
from .schedule import Piece, Root, by_mesh


def run_turns() -> None:
    """Runs the finished turns of a loop that nobody syncs (see `passes.turns`); what is behind them stays recorded. A
    graph that has no loop and has grown to `config.max_pending_ops` runs as well, up to the last line boundary.

    The first turns run as soon as they are known to be some, so that the devices need not wait; then more at a time.
    While another thread compiles or runs, recording goes on.
    """
    if processes.several() or recording() is not None:
        return pace.look_after(config.max_pending_ops)  # a barrier of one process alone would be another program
    if not BARRIER.acquire(blocking=False):
        return pace.look_after(max(config.loop_search_ops, 1))
    try:
        with LOCK, interrupt.later():
            _run_what_is_finished()
    finally:
        BARRIER.release()


def _run_what_is_finished() -> None:
    num_ops = pace.recorded_ops - pace.synced_ops
    LIVE[:] = [ref for ref in LIVE if ref() is not None]
    cells = pending()
    nodes, _ = topological([cell.value for cell in cells])
    if recorders.is_several:  # the count is of all threads' ops: each looks at its own, as it would alone
        num_ops = len(nodes)
        if num_ops < max(config.loop_search_ops, 3 * recorders.longest_step()):
            return pace.look_after(max(config.loop_search_ops, 1))
    is_due = num_ops > config.max_pending_ops
    if nans.looked_for() and is_due:
        return sync()
    ends = [] if nans.looked_for() or not config.loop_search_ops else turns.cuts(nodes, written=None, goes_on=True)
    is_loop = bool(ends)
    if not ends and is_due:
        ends = _to_the_last_line(nodes)
    if not ends:
        pace.early = 0
        if is_due:  # most of what was recorded is not needed any more
            pace.synced_ops = pace.recorded_ops
        return pace.look_after(max(num_ops, config.loop_search_ops))
    line = user_line()
    try:
        if give_birth(cells, line):
            cells = pending()
            nodes, _ = topological([cell.value for cell in cells])
            if not nodes:  # all were initial values
                pace.synced_ops = pace.recorded_ops
                return pace.look_after(max(config.loop_search_ops, 1))
            ends = turns.cuts(nodes, written=set(), goes_on=True) if is_loop else _to_the_last_line(nodes)
        if ends:
            roots = roots_of(cells)
            run_schedule(_up_to(ends, nodes, roots), nodes[ends[-1] :], roots, line, donate=True)
    except Exception as error:
        give_up(cells, error)
        pace.look_after(max(num_ops, config.loop_search_ops))  # and not at every op that follows
        raise
    forget_reads(all_of_them=False)
    left = len(nodes) - ends[-1] if ends else len(nodes)
    pace.synced_ops = pace.recorded_ops - num_ops * left // len(nodes)
    if not is_loop:
        return pace.look_after(max(config.loop_search_ops, 1))
    pace.has_cut = True
    metrics.add("loop_turns", len(ends))
    turn = num_ops * (ends[-1] - ends[-2] if len(ends) > 1 else left) // len(nodes)
    pace.early = 2 * turn + turns.SHORTEST
    pace.look_after(max(turn, min(2 * pace.wait, config.loop_search_ops)))


def _up_to(ends: Sequence[int], nodes: Sequence[Node], roots: Sequence[Root]) -> list[Piece]:
    """The pieces of a graph that end at these places; on several meshes, the pieces of each up to the last place."""
    leaves = topological([value for value, _ in roots])[1]
    meshes = list(meshes_met((cell for _, cell in roots), nodes, leaves).values())
    if len(meshes) == 1:
        return between(ends, nodes, meshes[0])
    first = set(nodes[: ends[-1]])
    return by_mesh([root for root in roots if origin(root[0]) in first], nodes[: ends[-1]], leaves)


_hinted = False


def _to_the_last_line(nodes: Sequence[Node]) -> list[int]:
    """Where to cut a graph that is too long to wait for a barrier; says once that it is."""
    global _hinted
    if not _hinted and nodes:
        _hinted = True
        notice.say(
            f"{config.max_pending_ops:,} ops were recorded without a barrier; they run now, in programs of at most "
            f"{config.max_program_ops:,} ops. Call spmd.sync() once per step, so that every step is the same program. "
            f"Recording at {user_line()}"
        )
    return turns.stretches(nodes, config.max_program_ops)
