"""Loops in a graph without syncs: where one iteration ends and the next, the same ops on the same state, begins.

A sampler of fifty steps, or a training loop that prints its loss every hundred, leaves one long graph at its sync. As
one program it would take XLA a time quadratic in its length. Cut between the iterations it is one program, run often.

Layers are no loop: each reads weights of its own. Two stretches of the graph are iterations of one loop only when they
read the same state, or state that the earlier one has written at the same place.
"""

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base import observation
from ..base.dtypes import is_exact
from ..base.tables import Bounded
from ..ir.graph import DeviceData, Node, Value, origin, result_index, value_name
from ..ir.meta import Meta
from ..ir.op import OpSpec
from ..ir.source import node_line
from . import dynamic
from .stretches import numbered, repeated

# The fewest ops of an iteration: shorter ones are taken several at a time.
SHORTEST = 16


@dataclass(frozen=True, slots=True)
class Loop:
    """The ops of one iteration, in order (an op with a dynamic start stands for all its starts)."""

    iteration: tuple[OpSpec, ...]

    def iterations(self, symbols: Sequence[OpSpec]) -> list[int]:
        """Returns the start of the first iteration in a graph, and the ends of it and of those after it."""
        period = len(self.iteration)
        for start, symbol in enumerate(symbols[: len(symbols) - period + 1]):
            if symbol is self.iteration[0] and tuple(symbols[start : start + period]) == self.iteration:
                ends = [start]
                while tuple(symbols[ends[-1] : ends[-1] + period]) == self.iteration:
                    ends.append(ends[-1] + period)
                return ends
        return []


def loop_in(nodes: Sequence[Node]) -> tuple[Loop, list[int]] | None:
    """Returns the loop that covers most of a graph and its cuts, each a number of nodes; None if there is none.

    Starts that differ between its iterations are operands from now on.
    """
    position = {node: i for i, node in enumerate(nodes)}
    symbols = [symbol(node) for node in nodes]
    start = stop = period = 0
    shares = False
    equal = repeated([numbered(symbols)], np.zeros(len(nodes), bool), SHORTEST, fewest=2, shortest=SHORTEST)
    for first, last, likely in sorted(equal, key=lambda one: (one[2], one[0] - one[1], one[0])):
        run = _longest_run(nodes[first:last], position, likely)
        if run[1] - run[0] >= max(2 * likely, stop - start + likely):
            start, stop, shares = run[0] + first, run[1] + first, run[2]
            period = likely
    if not period:
        return None
    carried = _carried_bytes(nodes, position)
    # From a step to the next little is carried except the state, and the user's line changes: an optimizer has places
    # in its middle where as little is carried.
    first = min(range(start, start + period), key=lambda place: (carried[place], _is_within_line(nodes, place), place))
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
    symbols = [symbol(node) for node in nodes]
    for loop in _known if observation.active() is None else ():
        found = loop.iterations(symbols)
        if _covers(found, len(nodes)):
            return _inner(found, len(nodes), goes_on)
    made = loop_in(nodes) if written is None or written else None
    if made is None:
        return []
    loop, found = made
    if not _covers(found, len(nodes)) or (written is not None and written.isdisjoint(nodes[found[-2] : found[-1]])):
        return []
    _known[:] = [loop, *_known[: _KEPT - 1]]
    return _inner(found, len(nodes), goes_on)


def _covers(found: list[int], length: int) -> bool:
    """True if a loop is half of a graph or more. A shorter one, as Muon's five products of each step are, is part of a
    step: cut there, each step would be many programs, and the first steps others than the later ones."""
    return bool(found) and 2 * (found[-1] - found[0]) >= length


def _inner(found: list[int], length: int, goes_on: bool) -> list[int]:
    kept = found[:-1] if goes_on or length - found[-1] < SHORTEST else found
    return [cut for cut in kept if cut]


def stretches(nodes: Sequence[Node], length: int, *, recurs: bool = True) -> list[int]:
    """Returns the cuts of a graph without a loop into stretches of at most `length` ops.

    Equal stretches are one program, compiled once. So of several lengths the one is taken that costs least: compiling
    each kind of stretch that is new, and running each stretch in every step. recurs: the graph is a long one that will
    run often; waiting twice as long for it counts four times. Else it may run once: its new stretches count most, and
    stretches are short, so that other graphs have them, too.
    """
    symbols = [symbol(node) for node in nodes]
    lines = [place for place in range(1, len(nodes)) if not _is_within_line(nodes, place)]
    marks = _marks(symbols, lines)
    wiring = _Wiring(nodes, symbols)
    best: tuple[float, list[int], _Kinds] = (math.inf, [], {})
    for scale in (None, *_SCALES) if recurs else _SHORT_SCALES:
        ends = _by_line(nodes, length) if scale is None else _by_marks(marks, scale, length)
        kinds = wiring.kinds(ends)
        new = [places[0] for kind, places in kinds.items() if recurs or kind not in _met.rows]
        to_compile = sum(_PER_PROGRAM + wiring.num_ops(start, stop) for start, stop in new)
        cost = 2 * to_compile**2 / length + _PER_STRETCH * len(ends) if recurs else to_compile + len(ends) / 2
        if cost < best[0]:
            best = cost, ends, kinds
    for kind, places in best[2].items():
        first, last = places[0]
        for start, stop in places[1:]:
            dynamic.note_dynamic_start(nodes[first:last], nodes[start:stop])
        if not recurs:
            _met.keep(kind, True)
    return best[1]


# The kinds of stretches into which graphs that may run once were cut lately.
_Kinds = dict[tuple[Any, ...], list[tuple[int, int]]]
_met: Bounded[tuple[Any, ...], bool] = Bounded(4096)
# The average ops of a stretch, for several ways to cut a graph.
_SHORT_SCALES = (16, 8, 4, 2)
_SCALES = (512, 128, 32, *_SHORT_SCALES)
# In ops to compile, of some 8 ms each (2 cores): the overhead of a program; and the overhead, over a hundred steps, of
# a stretch that is run by itself.
_PER_PROGRAM = 4
_PER_STRETCH = 4


def _marks(symbols: Sequence[OpSpec], lines: Sequence[int]) -> list[float]:
    """Returns for each place a number from 0 to 1 made of the ops around it, in every graph and process the same.

    A graph cut at low numbers has its cuts at equal places of recurring ops. Where the user's line changes, a quarter
    of the number is taken.
    """
    text = {symbol: zlib.crc32(f"{symbol.name}{symbol.operands}{symbol.metas}".encode()) for symbol in set(symbols)}
    words = [text[symbol] for symbol in symbols]
    marks, before, last = [], 0, 0
    for word in words:
        marks.append(((before * 31 + last * 7 + word) * 0x9E3779B1 >> 8 & 0xFFFF) / 0x10000)
        before, last = last, word
    for place in lines:
        marks[place] /= 4
    return marks


def _by_marks(marks: Sequence[float], scale: int, length: int) -> list[int]:
    """Returns the places with a mark below 1 / scale, about that many ops apart, but none further than `length`."""
    found, start, most = [], 0, min(2 * scale, length)
    for place in range(1, len(marks)):
        ops = place - start
        if ops >= most or (ops >= scale // 4 and marks[place] * scale < 1):
            found.append(place)
            start = place
    return found


class _Wiring:
    """Decides which stretches of a graph are one program: isomorphic, with the same results read later."""

    def __init__(self, nodes: Sequence[Node], symbols: Sequence[OpSpec]):
        position = {node: place for place, node in enumerate(nodes)}
        self.symbols = symbols
        self.ops = list(itertools.accumulate((len(one.lowering.elements) or 1 for one in symbols), initial=0))
        self.operands = [[_read(one, position) for one in node.operands] for node in nodes]
        self.last_read = [0] * len(nodes)
        for place, operands in enumerate(self.operands):
            for made, *_ in operands:
                if made is not None:
                    self.last_read[made] = place

    def num_ops(self, start: int, stop: int) -> int:
        """Returns the number of ops of a stretch to compile, those of a list one by one."""
        return self.ops[stop] - self.ops[start]

    def kinds(self, ends: Sequence[int]) -> "_Kinds":
        """Returns the stretches that end at these places and the one behind them, by the key of their program."""
        found: _Kinds = {}
        for start, stop in itertools.pairwise([0, *ends, len(self.symbols)]):
            kind: list[Any] = []
            outside: dict[Any, int] = {}
            for place in range(start, stop):
                kind.append((self.symbols[place], self.last_read[place] >= stop))
                for made, result, name in self.operands[place]:
                    if made is not None and made >= start:
                        kind.append((made - start, result))
                    else:
                        kind.append(~outside.setdefault(name, len(outside)))
            found.setdefault(tuple(kind), []).append((start, stop))
        return found


def _read(value: Value, position: dict[Node, int]) -> tuple[int | None, int, Any]:
    """Returns the place of the op that computes a value, its index among the op's results, and its name."""
    maker = origin(value)
    return None if maker is None else position[maker], result_index(value), value_name(value)


def _by_line(nodes: Sequence[Node], length: int) -> list[int]:
    """Returns the cuts of a graph about every `length` ops: at a line boundary with little carried across."""
    carried = _carried_bytes(nodes, {node: i for i, node in enumerate(nodes)})
    found, start = [], 0
    while len(nodes) - start > length:
        places = range(start + length // 2 + 1, start + length + 1)
        start = min(places, key=lambda place: (_is_within_line(nodes, place), carried[place], -place))
        found.append(start)
    return found


def symbol(node: Node) -> OpSpec:
    """Returns the op with a dynamic start, which is the same for all starts; other ops as they are."""
    return node.op.dynamic_start[0] if node.op.dynamic_start is not None else node.op


def _is_within_line(nodes: Sequence[Node], place: int) -> bool:
    if not place:
        return False
    before, after = node_line(nodes[place - 1]), node_line(nodes[place])
    return before.code is after.code and before.number == after.number


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
    if result_index(one) != result_index(other):
        return None
    maker, now = origin(one), position[origin(other)]  # type: ignore[index]
    if maker is None:  # the first iteration reads data where later ones read the carry
        return True if position[readers[1]] - now <= 2 * period else None
    return True if position[maker] == now else False if now - position[maker] == period else None


def _is_new_data(device_data: DeviceData, node: Node) -> bool:
    """True if data is the next batch: it came after the op that read the batch before, or is token numbers."""
    return not device_data.is_state and (device_data.serial > node.serial or is_exact(device_data.meta.dtype))


def _carried_bytes(nodes: Sequence[Node], position: dict[Node, int]) -> list[int]:
    """Returns for each place between two ops the bytes of values computed before it and read after it."""
    last: dict[Any, tuple[int, int, Meta]] = {}
    for place, node in enumerate(nodes):
        for operand in node.operands:
            maker = origin(operand)
            if maker is not None:
                last[maker, result_index(operand)] = (position[maker], place, operand.meta)
    change = [0] * (len(nodes) + 2)
    for made, read, meta in last.values():
        change[made + 1] += meta.nbytes
        change[read + 1] -= meta.nbytes
    carried, total = [], 0
    for step in change:
        total += step
        carried.append(total)
    return carried
