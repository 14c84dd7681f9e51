"""Loops in a graph without syncs: where one iteration ends and the next, the same ops on the same state, begins.

A sampler of fifty steps, or a training loop that prints its loss every hundred, leaves one long graph at its sync. As
one program it would take XLA a time quadratic in its length. Cut between the iterations it is one program, run often.

Layers are no loop: each reads weights of its own. Two stretches of the graph are iterations of one loop only when they
read the same state, or state that the earlier one has written at the same place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core import DeviceData, config, counters, dtypes, observation
from ..core.extend import Cut, Graph, Node, OpSpec, Outcome, Sync, Value, dynamic, stretches, walks

# The fewest ops of an iteration: shorter ones are taken several at a time.
SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Loop:
    """The ops of one iteration, in order (an op with a dynamic start stands for all its starts)."""

    iteration: tuple[OpSpec, ...]

    def iterations(self, symbols: Sequence[OpSpec]) -> list[int]:
        """Returns the start of the first iteration in a graph, and the ends of it and of those after it."""
        period = len(self.iteration)
        for start, op in enumerate(symbols[: len(symbols) - period + 1]):
            if op is self.iteration[0] and tuple(symbols[start : start + period]) == self.iteration:
                ends = [start]
                while tuple(symbols[ends[-1] : ends[-1] + period]) == self.iteration:
                    ends.append(ends[-1] + period)
                return ends
        return []


def loop_in(nodes: Sequence[Node], symbols: Sequence[OpSpec]) -> tuple[Loop, list[int]] | None:
    """Returns the loop that covers most of a graph and its cuts, each a number of nodes; None if there is none.

    symbols: the ops, with a dynamic start one for all starts. Starts that differ between its iterations are operands
    from now on.
    """
    start = stop = period = 0
    shares = False
    equal = stretches.repeated(
        [stretches.numbered(symbols)], np.zeros(len(nodes), bool), SHORTEST, fewest=2, shortest=SHORTEST
    )
    position = {node: i for i, node in enumerate(nodes)}
    for first, last, likely in sorted(equal, key=lambda one: (one[2], one[0] - one[1], one[0])):
        run = _longest_run(nodes[first:last], position, likely)
        if run[1] - run[0] >= max(2 * likely, stop - start + likely):
            start, stop, shares = run[0] + first, run[1] + first, run[2]
            period = likely
    if not period:
        return None
    carried = stretches.carried_bytes(nodes, position)
    # From a step to the next little is carried except the state, and the user's line changes: an optimizer has places
    # in its middle where as little is carried.
    first = min(
        range(start, start + period), key=lambda place: (carried[place], stretches.is_within_line(nodes, place), place)
    )
    if not shares and not carried[first + period]:
        return None  # many independent things of one kind, such as the initial values of layers
    dynamic.note_dynamic_start(nodes[start : stop - period], nodes[start + period : stop])
    loop = Loop(tuple(symbols[first : first + period]))
    while (
        first >= period
        and _are_similar(symbols[first - period : first], loop.iteration)
        and carried[first - period] <= carried[first]
    ):
        first -= period
    return loop, [first, *range(first + period, stop + 1, period)]


# The latest loops, newest first: their iterations are recognised at once.
_known: list[Loop] = []
_KEPT = 8


def cuts(nodes: Sequence[Node], *, written: set[Node] | None, goes_on: bool) -> list[int]:
    """Returns the cuts of a graph between the iterations of a loop: of a known one, or of any that writes one of these
    values (None: of any at all).

    The results of the last iteration are still referenced by the user, so that it is another program than those before:
    while the loop `goes_on` it waits until it is not the last; else it goes with the ops after it, if these are few.
    A call that is recorded to be replayed is cut by what is in it, not by what ran before.
    """
    symbols = [stretches.symbol(node) for node in nodes]
    for loop in _known if observation.active() is None else ():
        found = loop.iterations(symbols)
        if _covers(found, len(nodes)):
            return _inner(found, len(nodes), goes_on)
    result = loop_in(nodes, symbols) if written is None or written else None
    if result is None:
        return []
    loop, found = result
    if not _covers(found, len(nodes)) or (written is not None and written.isdisjoint(nodes[found[-2] : found[-1]])):
        return []
    _known[:] = [loop, *_known[: _KEPT - 1]]
    return _inner(found, len(nodes), goes_on)


def between_iterations(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph between the iterations of a loop. In a graph that is not long these must write state, as the steps
    of a training loop do: a short loop inside a step is as well off in the step's program."""
    if not config.loop_search_ops:
        return ""
    written = None if len(graph.nodes) >= config.loop_search_ops else set(sync.written)
    ends = cuts(graph.nodes, written=written, goes_on=False)
    if not ends:
        return ""
    counters.add("loop_iterations", len(ends))
    return Cut(graph.nodes, ends, f"{len(ends)} iterations of a loop without a sync", has_rest=True)


def _covers(found: list[int], length: int) -> bool:
    """True if a loop is half of a graph or more. A shorter one, as Muon's five products of each step are, is part of a
    step: cut there, each step would be many programs, and the first steps others than the later ones."""
    return bool(found) and 2 * (found[-1] - found[0]) >= length


def _inner(found: list[int], length: int, goes_on: bool) -> list[int]:
    kept = found[:-1] if goes_on or length - found[-1] < SHORTEST else found
    return [cut for cut in kept if cut]


def _are_similar(some: Sequence[OpSpec], others: Sequence[OpSpec]) -> bool:
    """True if nine in ten ops are equal: the first iteration may differ in its initial values (data, or just made)."""
    return len(some) == len(others) and sum(a is b for a, b in zip(some, others, strict=True)) >= 0.9 * len(some)


def _longest_run(nodes: Sequence[Node], position: dict[Node, int], period: int) -> tuple[int, int, bool]:
    """Returns the longest part [start, stop) of ops, each that of a period earlier, in which each also reads what that
    one reads or the next of it; and whether its iterations share state."""
    best = (0, 0, False)
    start, shares = 0, False
    for place in range(len(nodes) - period + 1):
        later = nodes[place + period] if place + period < len(nodes) else None
        kind = None if later is None else _reads(nodes[place], later, position, period)
        if kind is None:
            if place - start > best[1] - best[0]:
                best = (start, place, shares)
            start, shares = place + 1, False
        else:
            shares |= kind
    return best[0], best[1] + period, best[2]


def _reads(node: Node, later: Node, position: dict[Node, int], period: int) -> bool | None:
    """Compares the operands of two ops a period apart: None if they are not of one loop, True if they share state."""
    found = [
        _shares(*pair, (node, later), position, period) for pair in zip(node.operands, later.operands, strict=True)
    ]
    return None if None in found else any(found)


def _shares(
    one: Value, other: Value, readers: tuple[Node, Node], position: dict[Node, int], period: int
) -> bool | None:
    """Compares two operands: True for one value of state, and for a carry; False for the next data of its kind, and for
    what is computed a period later; None for any other, such as the weights of two layers."""
    if type(other) is DeviceData:
        if one is other:
            return other.is_state
        return False if type(one) is DeviceData and _is_new_data(other, readers[0]) else None
    if walks.result_index(one) != walks.result_index(other):
        return None
    maker, now = walks.origin(one), position[walks.origin(other)]  # type: ignore[index]
    if maker is None:  # the first iteration reads data where later ones read the carry
        return True if position[readers[1]] - now <= 2 * period else None
    return True if position[maker] == now else False if now - position[maker] == period else None


def _is_new_data(device_data: DeviceData, node: Node) -> bool:
    """True if data is the next batch: it came after the op that read the batch before, or is token numbers."""
    return not device_data.is_state and (device_data.serial > node.serial or dtypes.is_exact(device_data.meta.dtype))
