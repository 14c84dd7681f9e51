"""Ops that are not synced: the iterations of a loop, which run when they are finished, and a graph
that is too long.

A sampler of fifty steps, or a training loop that prints its loss every hundred, leaves one long
graph at its sync. As one program it would take XLA a time quadratic in its length. Cut between the
iterations it is one program, run often.

Layers are no loop: each reads weights of its own. Two stretches of the graph are iterations of one
loop only when they read the same state, or state that the earlier one has written at the same
place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import (
    LOCK,
    DeviceData,
    Storage,
    config,
    counters,
    dtypes,
    messages,
    observation,
    processes,
    recording,
    syncs,
    user_line,
)
from ..core.extend import (
    SYNC_LOCK,
    Graph,
    Node,
    OpSpec,
    Value,
    dynamic,
    execute,
    failed,
    initialization,
    interrupt,
    pace,
    pass_result,
    prepare,
    recorders,
    repeats,
    schedule,
    storages,
    stretches,
    walks,
)


def run_iterations() -> None:
    """Runs the finished iterations of a loop without syncs (see `cuts`); the ops behind them stay
    recorded. A graph without a loop that has reached `config.max_pending_ops` ops runs as well, up
    to the last line boundary.

    The first iterations run as soon as they are known to be some, so that the devices need not
    wait; then more at a time. While another thread compiles or runs, recording goes on. A call that
    is recorded to be replayed is one program however it loops, unless it is too long.
    """
    if processes.several() or recording.value is not None:
        # a sync of one process alone would be another program
        return pace.look_after(config.max_pending_ops)
    if (
        observation.active_observation.value is not None
        and pace.recorded_ops - pace.synced_ops <= config.max_pending_ops
    ):
        return pace.look_after(config.max_pending_ops)
    if not SYNC_LOCK.acquire(blocking=False):
        return pace.look_after(max(config.loop_search_ops, 1))
    try:
        with LOCK, interrupt.later():
            _run_what_is_finished()
    finally:
        SYNC_LOCK.release()


def _run_what_is_finished() -> None:
    num_ops = pace.recorded_ops - pace.synced_ops
    storages.LIVE[:] = [ref for ref in storages.LIVE if ref() is not None]
    runnable, nodes = _runnable()
    # the count is of all threads' ops: each looks at its own, as it would alone
    if recorders.are_several:
        num_ops = len(nodes)
        if num_ops < max(config.loop_search_ops, 3 * recorders.longest_step.value):
            return pace.look_after(max(config.loop_search_ops, 1))
    is_due = num_ops > config.max_pending_ops
    if execute.guard.value and is_due:
        return syncs.sync()
    ends = (
        []
        if execute.guard.value or not config.loop_search_ops
        else cuts(nodes, written=None, goes_on=True)
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
        if initialization.initialize_state(runnable, line):
            runnable, nodes = _runnable()
            if not nodes:  # all were initial values
                pace.synced_ops = pace.recorded_ops
                return pace.look_after(max(config.loop_search_ops, 1))
            ends = cuts(nodes, written=set(), goes_on=True) if is_loop else _to_the_last_line(nodes)
        if ends:
            roots = execute.roots_of(runnable)
            # Annotations with open dims were recorded for it: the last ops, which stay.
            nodes, _ = walks.topological([value for value, _ in roots])
            execute.run_schedule(
                _up_to(ends, nodes, roots), nodes[ends[-1] :], roots, line, donate=True
            )
    except Exception as error:
        failed.give_up(runnable, error)
        pace.look_after(max(num_ops, config.loop_search_ops))  # not at every op that follows
        raise
    storages.forget_reads(set(nodes[: ends[-1]]) if ends else ())
    num_left = len(nodes) - ends[-1] if ends else len(nodes)
    pace.synced_ops = pace.recorded_ops - num_ops * num_left // len(nodes)
    if not is_loop:
        return pace.look_after(max(config.loop_search_ops, 1))
    pace.has_cut = True
    counters.add("loop_iterations", len(ends))
    iteration = num_ops * (ends[-1] - ends[-2] if len(ends) > 1 else num_left) // len(nodes)
    pace.early = 2 * iteration + SHORTEST
    pace.look_after(max(iteration, min(2 * pace.wait, config.loop_search_ops)))


def _runnable() -> tuple[list[Storage], Sequence[Node]]:
    """The storages to compute, without those over devices that are not here: their programs are
    only planned. And the ops that compute them."""
    pending = storages.pending()
    runnable = [
        storage
        for storage in pending
        if storage.sharding is None or storage.sharding.target is None
    ]
    return runnable, walks.topological([storage.value for storage in runnable])[0]


def _up_to(
    ends: Sequence[int], nodes: Sequence[Node], roots: Sequence[schedule.Root]
) -> list[schedule.Subgraph]:
    """The subgraphs of a graph that end at these places; on several meshes, each one's up to the
    last place."""
    inputs = walks.topological([value for value, _ in roots])[1]
    meshes = list(schedule.meshes_met((storage for _, storage in roots), nodes, inputs).values())
    if len(meshes) == 1:
        return prepare.split_at(ends, nodes, meshes[0])
    first = set(nodes[: ends[-1]])
    return schedule.by_mesh(
        [root for root in roots if walks.origin(root[0]) in first], nodes[: ends[-1]], inputs
    )


_hinted = False


def _to_the_last_line(nodes: Sequence[Node]) -> list[int]:
    """The places where a graph that is too long to wait for a sync is cut; warns, once, that it
    is."""
    global _hinted
    if not _hinted and nodes:
        _hinted = True
        messages.say(
            f"{config.max_pending_ops:,} ops without a sync run now: spmd.sync() once a step "
            f"({user_line().short()})",
            "no sync",
            f"{config.max_pending_ops:,} ops were recorded without a sync; they run now, in "
            f"programs of at most {config.max_program_ops:,} ops. Call spmd.sync() once per step, "
            f"so that every step is the same program. Recording at {user_line()}",
        )
    return stretches.stretches(nodes, config.max_program_ops)


# The fewest ops of an iteration: shorter ones are taken several at a time.
SHORTEST = 16


@dataclass(frozen=True, slots=True)
class RepeatedOps:
    """The ops of one iteration, in order (an op with a dynamic start stands for all its starts)."""

    iteration: tuple[OpSpec, ...]

    def iterations(self, symbols: Sequence[OpSpec]) -> list[int]:
        """Returns the start of the first iteration in a graph, and the ends of it and of those
        after it."""
        period = len(self.iteration)
        for start, op in enumerate(symbols[: len(symbols) - period + 1]):
            if op is self.iteration[0] and tuple(symbols[start : start + period]) == self.iteration:
                ends = [start]
                while tuple(symbols[ends[-1] : ends[-1] + period]) == self.iteration:
                    ends.append(ends[-1] + period)
                return ends
        return []


def loop_in(
    nodes: Sequence[Node], symbols: Sequence[OpSpec]
) -> tuple[RepeatedOps, list[int]] | None:
    """Returns the loop that covers most of a graph and its cuts, each a number of nodes; None if
    there is none.

    symbols: the ops, with a dynamic start one for all starts. Starts that differ between its
    iterations are operands from now on.
    """
    if len(nodes) < 2 * SHORTEST:
        return None
    start = stop = period = 0
    shares = False
    equal = repeats.periodic_stretches(
        [repeats.numbered(symbols)],
        np.zeros(len(nodes), bool),
        SHORTEST,
        fewest=2,
        shortest=SHORTEST,
    )
    position = {node: i for i, node in enumerate(nodes)}
    for first, last, likely in sorted(
        equal, key=lambda stretch: (stretch[2], stretch[0] - stretch[1], stretch[0])
    ):
        run = _longest_run(nodes[first:last], position, likely)
        if run[1] - run[0] >= max(2 * likely, stop - start + likely):
            start, stop, shares = run[0] + first, run[1] + first, run[2]
            period = likely
    if not period:
        return None
    carried = stretches.carried_bytes(nodes, position)
    # From a step to the next little is carried except the state, and the user's line changes: an
    # optimizer has places in its middle where as little is carried.
    first = min(
        range(start, start + period),
        key=lambda cut: (carried[cut], stretches.is_within_line(nodes, cut), cut),
    )
    if not shares and not carried[first + period]:
        return None  # many independent things of one kind, such as the initial values of layers
    dynamic.note_dynamic_start(nodes[start : stop - period], nodes[start + period : stop])
    loop = RepeatedOps(tuple(symbols[first : first + period]))
    while (
        first >= period
        and _are_similar(symbols[first - period : first], loop.iteration)
        and carried[first - period] <= carried[first]
    ):
        first -= period
    return loop, [first, *range(first + period, stop + 1, period)]


# The latest loops, newest first: their iterations are recognised at once.
_repeated_loops: list[RepeatedOps] = []
_KEPT = 8


def cuts(nodes: Sequence[Node], *, written: set[Node] | None, goes_on: bool) -> list[int]:
    """Returns the cuts of a graph between the iterations of a loop: of a known one, or of any that
    writes one of these values (None: of any at all).

    While the loop `goes_on`, the user may still refer to results of the last iteration, which would
    make it another program than those before: it waits until it is not the last. At a sync it is a
    program of its own, most often that of the others. A call that is recorded to be replayed is cut
    by what is in it, not by what ran before.
    """
    kept = dynamic.with_kept_start(nodes)
    symbols = [node.op if node in kept else repeats.symbol(node) for node in nodes]
    for loop in _repeated_loops if observation.active_observation.value is None else ():
        ends = loop.iterations(symbols)
        if _covers(ends, len(nodes)):
            return _inner(ends, goes_on)
    result = loop_in(nodes, symbols) if written is None or written else None
    if result is None:
        return []
    loop, ends = result
    if not _covers(ends, len(nodes)) or (
        written is not None and written.isdisjoint(nodes[ends[-2] : ends[-1]])
    ):
        return []
    _repeated_loops[:] = [loop, *_repeated_loops[: _KEPT - 1]]
    return _inner(ends, goes_on)


def between_iterations(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Cuts a graph between the iterations of a loop. In a graph that is not long these must write
    state, as the steps of a training loop do: a short loop inside a step is as well off in the
    step's program."""
    if not config.loop_search_ops:
        return ""
    written = None if len(graph.nodes) >= config.loop_search_ops else set(sync.written)
    ends = cuts(graph.nodes, written=written, goes_on=False)
    if not ends:
        return ""
    counters.add("loop_iterations", len(ends))
    return pass_result.Cut(
        graph.nodes,
        ends,
        f"{len(ends)} iterations of a loop without a sync",
        has_rest=ends[-1] < len(graph.nodes),
    )


def _covers(ends: list[int], length: int) -> bool:
    """True if a loop is half of a graph or more. A shorter one, as Muon's five products of each
    step are, is part of a step: cut there, each step would be many programs, and the first steps
    others than the later ones."""
    return bool(ends) and 2 * (ends[-1] - ends[0]) >= length


def _inner(ends: list[int], goes_on: bool) -> list[int]:
    inner_cuts = ends[:-1] if goes_on else ends
    return [cut for cut in inner_cuts if cut]


def _are_similar(some: Sequence[OpSpec], repeated_ops: Sequence[OpSpec]) -> bool:
    """True if nine in ten ops are equal: the first iteration may differ in its initial values
    (data, or just made)."""
    return len(some) == len(repeated_ops) and sum(
        a is b for a, b in zip(some, repeated_ops, strict=True)
    ) >= 0.9 * len(some)


def _longest_run(
    nodes: Sequence[Node], position: dict[Node, int], period: int
) -> tuple[int, int, bool]:
    """Returns the longest part [start, stop) of ops, each that of a period earlier, in which each
    also reads what that one reads or the next of it; and whether its iterations share state."""
    best = (0, 0, False)
    start, shares = 0, False
    for index in range(len(nodes) - period + 1):
        later = nodes[index + period] if index + period < len(nodes) else None
        kind = None if later is None else _reads(nodes[index], later, position, period)
        if kind is None:
            if index - start > best[1] - best[0]:
                best = (start, index, shares)
            start, shares = index + 1, False
        else:
            shares |= kind
    return best[0], best[1] + period, best[2]


def _reads(node: Node, later: Node, position: dict[Node, int], period: int) -> bool | None:
    """Compares the operands of two ops a period apart: None if they are not of one loop, True if
    they share state."""
    shares = [
        _shares(*pair, (node, later), position, period)
        for pair in zip(node.operands, later.operands, strict=True)
    ]
    return None if None in shares else any(shares)


def _shares(
    earlier_value: Value,
    later_value: Value,
    readers: tuple[Node, Node],
    position: dict[Node, int],
    period: int,
) -> bool | None:
    """Compares two operands: True for one value of state, and for a carry; False for the next data
    of its kind, and for what is computed a period later; None for any other, such as the weights of
    two layers."""
    if type(later_value) is DeviceData:
        if earlier_value is later_value:
            return later_value.is_state
        return (
            False
            if type(earlier_value) is DeviceData and _is_new_data(later_value, readers[0])
            else None
        )
    if walks.result_index(earlier_value) != walks.result_index(later_value):
        return None
    maker, later_index = walks.origin(earlier_value), position[walks.origin(later_value)]  # type: ignore[index]
    if maker is None:  # the first iteration reads data where later ones read the carry
        return True if position[readers[1]] - later_index <= 2 * period else None
    return (
        True
        if position[maker] == later_index
        else False
        if later_index - position[maker] == period
        else None
    )


def _is_new_data(device_data: DeviceData, node: Node) -> bool:
    """True if data is the next batch: it came after the op that read the batch before, or is token
    numbers."""
    return not device_data.is_state and (
        device_data.serial > node.serial or dtypes.is_exact(device_data.meta.dtype)
    )
