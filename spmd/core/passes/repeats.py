"""Where a graph repeats one block: layers forward, layers backward, an optimizer's parameters one after the other.

Two stretches of a graph are turns of one loop where they are the same ops, wired the same way, and what they read from
outside is the same value, what the turn before has made at the same place, or for each turn a value of its own.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..compile.region import is_annotation
from ..ir.graph import Node, Pick, Value, origin, value_name
from ..ir.loops import Carried, Inner, Loop, Result, Rows, Same, Source
from ..ir.op import Entry
from .turns import symbol

# A loop has at least so many turns, and spares at least so many ops.
FEWEST_TURNS = 3
FEWEST_OPS = 8

# An op is looked at up to this many equal ones further on; so many lengths of a turn are tried.
_LAGS = 12
_PERIODS = 16


def find_loops(nodes: Sequence[Node], roots: Sequence[Value]) -> list[Loop]:
    """The loops of a graph, in order; they do not overlap."""
    if len(nodes) < FEWEST_OPS:
        return []
    position = {node: i for i, node in enumerate(nodes)}
    symbols = [_numbered([node.entry for node in nodes])]
    if any(node.entry.moving is not None for node in nodes):
        symbols.append(_numbered([symbol(node) for node in nodes]))
    taken = np.zeros(len(nodes), bool)
    tried: set[tuple[int, int, int]] = set()
    loops: list[Loop] = []
    # What is much shorter than the longest is looked for again without it: most distances are those within long turns.
    while found := _longest(nodes, symbols, position, taken, tried):
        loops += found
    loops.sort(key=lambda loop: loop.start)
    _note_readers(loops, nodes, roots, position)
    _turn_around(loops)
    return loops


def _numbered(entries: Sequence[Entry]) -> np.ndarray:
    """A number for each op, the same for the same."""
    numbers: dict[Entry, int] = {}
    return np.array([numbers.setdefault(entry, len(numbers)) for entry in entries], np.int64)


def _longest(
    nodes: Sequence[Node],
    symbols: Sequence[np.ndarray],
    position: dict[Node, int],
    taken: np.ndarray,
    tried: set[tuple[int, int, int]],
) -> list[Loop]:
    """The loop that spares most ops of those that no loop has taken, and those that spare half as many; takes them."""
    loops: list[Loop] = []
    enough = 0
    for start, stop, period in _candidates(symbols, taken):
        if (stop - start) // period * period - period < enough:
            break
        for stretch in _free(taken, start, stop):
            if (*stretch, period) in tried:
                continue
            tried.add((*stretch, period))
            loop = _fit(nodes, position, *stretch, period)
            if loop is not None:
                loops.append(loop)
                taken[loop.start : loop.stop] = True
                enough = enough or (loop.turns - 1) * loop.period // 2
    return loops


# --- candidates: equal ops at equal distances -------------------------------------------------------------------------


def _candidates(symbols: Sequence[np.ndarray], taken: np.ndarray) -> list[tuple[int, int, int]]:
    """Stretches (start, stop, period) of what is not taken, in which every op is that of a period earlier; what spares
    most ops, first. symbols: what ops are, in one or another sense, each as a number."""
    found = {stretch for numbers in symbols for stretch in _stretches_of(numbers, taken)}
    return [(start, stop, -period) for _, period, start, stop in sorted(found, reverse=True)]


def _stretches_of(symbols: np.ndarray, taken: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Such stretches as (ops spared, -period, start, stop)."""
    symbols = np.where(taken, -1 - np.arange(len(symbols)), symbols)  # what is taken is equal to none
    for period in _periods(symbols):
        alike = np.concatenate(([False], symbols[:-period] == symbols[period:], [False]))
        edges = np.flatnonzero(alike[1:] != alike[:-1])
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            spared = (end - start) // period * period
            if spared >= max(FEWEST_OPS, (FEWEST_TURNS - 1) * period):
                yield spared, -period, start, end + period


def _periods(symbols: np.ndarray) -> list[int]:
    """The likely lengths of a turn: the distances at which most ops have an equal one; no multiples of such."""
    order = np.argsort(symbols, kind="stable")
    counts = np.zeros(len(symbols) + 1, np.int64)
    for lag in range(1, min(_LAGS, len(symbols) - 1) + 1):
        is_same = symbols[order[lag:]] == symbols[order[:-lag]]
        counts += np.bincount((order[lag:] - order[:-lag])[is_same], minlength=len(counts))
    likely: list[int] = []
    for period in np.argsort(-counts, kind="stable").tolist():
        if counts[period] < FEWEST_OPS or len(likely) == _PERIODS:
            break
        if not any(period % shorter == 0 and counts[shorter] >= counts[period] for shorter in likely):
            likely.append(period)
    return likely


def _free(taken: np.ndarray, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The parts of a stretch that no loop has."""
    for is_taken, group in itertools.groupby(range(start, stop), key=taken.__getitem__):
        if not is_taken:
            places = list(group)
            yield places[0], places[-1] + 1


# --- the wiring -------------------------------------------------------------------------------------------------------

# How an operand of a turn is wired, as a number: made outside (or in a turn before the one before), by the turn before,
# else by this turn. What is made at one place has a number, too.
_OUTSIDE = -1
_BEFORE = 1 << 60
_WIDTH = 1 << 24


def _fit(nodes: Sequence[Node], position: dict[Node, int], start: int, stop: int, period: int) -> Loop | None:
    """The longest loop in a stretch of equal ops, or None where its turns are wired differently."""
    turns = (stop - start) // period
    spare = stop - start - turns * period
    if turns < FEWEST_TURNS or (turns - 1) * period < FEWEST_OPS:
        return None
    if spare:
        start += _least_carried(nodes, position, start, period, spare)
    wiring = [_wiring(nodes, position, start + turn * period, period) for turn in range(turns)]
    best = (0, 0)
    for first, last in _stretches(wiring):
        first, last = _usable(nodes, position, start, period, wiring, first, last)
        if last - first > best[1] - best[0]:
            best = (first, last)
    first, last = best
    if last - first < FEWEST_TURNS or (last - first - 1) * period < FEWEST_OPS:
        return None
    return _loop(nodes, position, start + first * period, period, last - first)


def _least_carried(nodes: Sequence[Node], position: dict[Node, int], start: int, period: int, spare: int) -> int:
    """How many ops later turns are best taken to begin: where they hand least to each other."""
    reach: dict[Any, tuple[int, int, int]] = {}
    for place in range(start + period, start + 2 * period):
        for operand in nodes[place].operands:
            maker = origin(operand)
            made = -1 if maker is None else position[maker]
            if made >= max(start, place - period):
                reach[value_name(operand)] = (made, place, operand.meta.nbytes)
    carried = np.zeros(period, np.int64)
    for made, read, nbytes in reach.values():
        for cut in range(made + 1, read + 1):
            carried[(cut - start) % period] += nbytes
    return int(np.argmin(carried[: min(spare, period - 1) + 1]))


def _wiring(nodes: Sequence[Node], position: dict[Node, int], base: int, period: int) -> tuple[int, ...]:
    """How each operand of one turn is wired."""
    wired = []
    before = base - period
    for place in range(base, base + period):
        for operand in nodes[place].operands:
            kind = type(operand)
            if kind is Node:
                made = position[operand]  # type: ignore[index]
                result = 0
            elif kind is Pick:
                made = position[operand.node]  # type: ignore[union-attr]
                result = operand.index  # type: ignore[union-attr]
            else:
                wired.append(_OUTSIDE)
                continue
            if made >= base:
                wired.append((made - base) * _WIDTH + result)
            elif made >= before:
                wired.append(_BEFORE + (made - before) * _WIDTH + result)
            else:
                wired.append(_OUTSIDE)
    return tuple(wired)


def _stretches(wiring: list[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Turns (first, behind the last) that are wired alike; the turn before them, too, where it may be their first."""
    first = 0
    while first < len(wiring):
        last = first + 1
        while last < len(wiring) and wiring[last] == wiring[first]:
            last += 1
        if first and _may_begin(wiring[first - 1], wiring[first]):
            yield first - 1, last
        else:
            yield first, last
        first = last


def _may_begin(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a turn may be the first of turns that are wired so: it reads data where they read what it has made."""
    return all(a == b or (not 0 <= a < _BEFORE and not 0 <= b < _BEFORE) for a, b in zip(one, other, strict=True))


def _usable(
    nodes: Sequence[Node],
    position: dict[Node, int],
    start: int,
    period: int,
    wiring: list[tuple[int, ...]],
    first: int,
    last: int,
) -> tuple[int, int]:
    """The turns without the first ones of which some later turn but the next reads something: those run before."""
    for turn in range(first + 2, last):
        base = start + turn * period
        operands = itertools.chain.from_iterable(node.operands for node in nodes[base : base + period])
        for operand, wired in zip(operands, wiring[turn], strict=True):
            maker = origin(operand) if wired == _OUTSIDE else None
            if maker is not None and position[maker] >= start + first * period:
                first = (position[maker] - start) // period + 1
    return first, last


def _loop(nodes: Sequence[Node], position: dict[Node, int], start: int, period: int, turns: int) -> Loop | None:
    """The loop of these turns, which are wired alike; None where it takes other positions in each and has no weights.

    (So does the recurrence of a cell over its inputs, which is no layer; see `passes.rolling`.)
    """
    early, is_moving = _early(nodes, position, start, period, turns)

    def is_inside(value: Value) -> bool:
        maker = origin(value)
        place = -1 if maker is None else position[maker] - start
        return place >= 0 and place % period not in early

    carried: dict[Any, tuple[int, Result, Value]] = {}
    same: dict[Any, tuple[int, Value]] = {}
    rows: dict[tuple[Any, ...], tuple[int, tuple[Value, ...]]] = {}
    sources: list[tuple[Source, ...]] = []
    stop = start + turns * period
    for place in range(start, start + period):
        taken: list[Source] = []
        for k, operand in enumerate(() if place - start in early else nodes[place].operands):
            if is_inside(operand):
                taken.append(Inner(position[origin(operand)] - start, _index(operand)))  # type: ignore[index]
                continue
            values = tuple([nodes[i].operands[k] for i in range(place, stop, period)])
            if is_inside(values[1]):
                result = position[origin(values[1])] - start, _index(values[1])  # type: ignore[index]
                key = (result, value_name(operand))
                taken.append(Carried(carried.setdefault(key, (len(carried), result, operand))[0]))
                continue
            names = tuple(map(value_name, values))
            if all(name is names[0] or name == names[0] for name in names):
                taken.append(Same(same.setdefault(names[0], (len(same), operand))[0]))
            else:
                taken.append(Rows(rows.setdefault(names, (len(rows), values))[0]))
        sources.append(tuple(taken))
    if is_moving and not any(_is_weight(values[0]) for _, values in rows.values()):
        return None
    return Loop(
        nodes,
        start,
        period,
        turns,
        tuple(sources),
        early,
        tuple((result, initial) for _, result, initial in carried.values()),
        tuple(value for _, value in same.values()),
        tuple(values for _, values in rows.values()),
    )


def _early(
    nodes: Sequence[Node], position: dict[Node, int], start: int, period: int, turns: int
) -> tuple[frozenset[int], bool]:
    """The places of a turn whose op takes another position in each and reads nothing that the loop makes; whether any
    op takes another position."""
    early: set[int] = set()
    is_moving = False
    for place in range(period):
        turn = nodes[start + place : start + period * turns : period]
        if all(node.entry is turn[0].entry for node in turn):
            continue
        is_moving = True
        makers = [origin(operand) for node in turn for operand in node.operands]
        places = [position[maker] - start for maker in makers if maker is not None]
        if all(made < 0 or made % period in early for made in places):
            early.add(place)
    return frozenset(early), is_moving


def _is_weight(value: Value) -> bool:
    """Whether a value is data, or what an annotation makes of it, as a gather of a weight, or of its cast, does."""
    maker = origin(value)
    return maker is None or is_annotation(maker)


def _index(value: Value) -> int:
    return value.index if type(value) is Pick else 0


# --- what others read of the loops ------------------------------------------------------------------------------------


def _note_readers(
    loops: Sequence[Loop], nodes: Sequence[Node], roots: Sequence[Value], position: dict[Node, int]
) -> None:
    """Finds which results of each loop are read outside of it."""
    owner: list[Loop | None] = [None] * len(nodes)
    for loop in loops:
        for place in range(loop.start, loop.stop):
            owner[place] = None if (place - loop.start) % loop.period in loop.early else loop
    read: defaultdict[int, dict[Result, set[int]]] = defaultdict(dict)

    def note(value: Value, reader: Loop | None) -> None:
        maker = origin(value)
        if maker is None:
            return
        made = position[maker]
        loop = owner[made]
        if loop is not None and loop is not reader:
            turn, place = divmod(made - loop.start, loop.period)
            read[id(loop)].setdefault((place, _index(value)), set()).add(turn)

    for node, reader in zip(nodes, owner, strict=True):
        for operand in node.operands:
            note(operand, reader)
    for root in roots:
        note(root, None)
    as_rows = {value_name(value) for loop in loops for values in loop.rows for value in values}
    as_rows |= {value_name(operand) for node in nodes if node.entry.lowering.takes_rows for operand in node.operands}
    wanted = set(map(value_name, roots))
    for loop in loops:
        for result, turns in read[id(loop)].items():
            (loop.last if turns == {loop.turns - 1} else loop.kept).append(result)
            before, end = loop.name(loop.turns - 2, result), loop.name(loop.turns - 1, result)
            if end in as_rows or wanted.issuperset((before, end)):
                loop.ended.add(result)


def _turn_around(loops: Sequence[Loop]) -> None:
    """Numbers rows of all loops alike: a backward pass goes through those of the forward from the last on."""
    row: dict[Any, int] = {}
    for loop in loops:
        votes: Counter[int] = Counter()
        for values in loop.rows:
            one, other = (row.get(value_name(value)) for value in values[:2])
            if one is not None and other is not None:
                votes[other - one] += 1
        loop.backwards = votes[-1] > votes[1]
        for values in loop.rows:
            for turn, value in enumerate(values):
                row.setdefault(value_name(value), loop.row(turn))
        for result in loop.kept:
            for place, name in enumerate(loop.names(result)):
                row.setdefault(name, place)
