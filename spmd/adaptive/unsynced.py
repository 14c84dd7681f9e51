"""Runs ops that are not synced: the iterations of a loop when they are finished, a graph when it is too long."""

from collections.abc import Sequence

from ..core import LOCK, Storage, config, counters, messages, observation, processes, recording, syncs, user_line
from ..core.extend import (
    LIVE,
    SYNC_LOCK,
    Node,
    Root,
    Subgraph,
    nans,
    pace,
    pending,
    running,
    schedule,
    stretches,
    walks,
)
from ..core.extend import storages as core_storages
from . import unsynced_loops


def run_iterations() -> None:
    """Runs the finished iterations of a loop without syncs (see `passes.unsynced_loops`); the ops behind them stay
    recorded. A graph without a loop that has reached `config.max_pending_ops` ops runs as well, up to the last line
    boundary.

    The first iterations run as soon as they are known to be some, so that the devices need not wait; then more at a
    time. While another thread compiles or runs, recording goes on. A call that is recorded to be replayed is one
    program however it loops, unless it is too long.
    """
    if processes.several() or recording() is not None:
        return pace.look_after(config.max_pending_ops)  # a sync of one process alone would be another program
    if observation.active() is not None and pace.recorded_ops - pace.synced_ops <= config.max_pending_ops:
        return pace.look_after(config.max_pending_ops)
    if not SYNC_LOCK.acquire(blocking=False):
        return pace.look_after(max(config.loop_search_ops, 1))
    try:
        with LOCK, running.later():
            _run_what_is_finished()
    finally:
        SYNC_LOCK.release()


def _run_what_is_finished() -> None:
    num_ops = pace.recorded_ops - pace.synced_ops
    LIVE[:] = [ref for ref in LIVE if ref() is not None]
    storages = _runnable()
    nodes, _ = walks.topological([storage.value for storage in storages])
    if (
        core_storages.has_several_recorders()
    ):  # the count is of all threads' ops: each looks at its own, as it would alone
        num_ops = len(nodes)
        if num_ops < max(config.loop_search_ops, 3 * core_storages.longest_step()):
            return pace.look_after(max(config.loop_search_ops, 1))
    is_due = num_ops > config.max_pending_ops
    if nans.guard.kinds and is_due:
        return syncs.sync()
    ends = (
        [] if nans.guard.kinds or not config.loop_search_ops else unsynced_loops.cuts(nodes, written=None, goes_on=True)
    )
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
        if schedule.initialize_state(storages, line):
            storages = _runnable()
            nodes, _ = walks.topological([storage.value for storage in storages])
            if not nodes:  # all were initial values
                pace.synced_ops = pace.recorded_ops
                return pace.look_after(max(config.loop_search_ops, 1))
            ends = unsynced_loops.cuts(nodes, written=set(), goes_on=True) if is_loop else _to_the_last_line(nodes)
        if ends:
            roots = schedule.roots_of(storages)
            schedule.run_schedule(_up_to(ends, nodes, roots), nodes[ends[-1] :], roots, line, donate=True)
    except Exception as error:
        schedule.give_up(storages, error)
        pace.look_after(max(num_ops, config.loop_search_ops))  # not at every op that follows
        raise
    core_storages.forget_reads(set(nodes[: ends[-1]]) if ends else ())
    left = len(nodes) - ends[-1] if ends else len(nodes)
    pace.synced_ops = pace.recorded_ops - num_ops * left // len(nodes)
    if not is_loop:
        return pace.look_after(max(config.loop_search_ops, 1))
    pace.has_cut = True
    counters.add("loop_iterations", len(ends))
    iteration = num_ops * (ends[-1] - ends[-2] if len(ends) > 1 else left) // len(nodes)
    pace.early = 2 * iteration + unsynced_loops.SHORTEST
    pace.look_after(max(iteration, min(2 * pace.wait, config.loop_search_ops)))


def _runnable() -> list[Storage]:
    """The storages to compute, without those over devices that are not here: their programs are only planned."""
    return [storage for storage in pending() if storage.sharding is None or storage.sharding.target is None]


def _up_to(ends: Sequence[int], nodes: Sequence[Node], roots: Sequence[Root]) -> list[Subgraph]:
    """The subgraphs of a graph that end at these places; on several meshes, each one's up to the last place."""
    inputs = walks.topological([value for value, _ in roots])[1]
    meshes = list(schedule.meshes_met((storage for _, storage in roots), nodes, inputs).values())
    if len(meshes) == 1:
        return schedule.between(ends, nodes, meshes[0])
    first = set(nodes[: ends[-1]])
    return schedule.by_mesh([root for root in roots if walks.origin(root[0]) in first], nodes[: ends[-1]], inputs)


_hinted = False


def _to_the_last_line(nodes: Sequence[Node]) -> list[int]:
    """The places where a graph that is too long to wait for a sync is cut; warns, once, that it is."""
    global _hinted
    if not _hinted and nodes:
        _hinted = True
        messages.say(
            f"{config.max_pending_ops:,} ops without a sync run now: spmd.sync() once a step ({user_line().short()})",
            "no sync",
            f"{config.max_pending_ops:,} ops were recorded without a sync; they run now, in programs of at most "
            f"{config.max_program_ops:,} ops. Call spmd.sync() once per step, so that every step is the same program. "
            f"Recording at {user_line()}",
        )
    return stretches.cuts(nodes, config.max_program_ops)
