"""Turns that read alike: which stretches of a graph repeat, and for each operand of a turn's ops where it comes from.

Unlike `turns`, which cuts a graph into programs, a turn may be short, and may read rows of what an earlier run of turns
has made, as a backward pass does.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..ir.graph import Leaf, Node, Pick, Value, origin, value_name
from ..ir.op import Entry
from ..tables import Bounded
from .turns import symbol

# A loop has at least so many turns.
FEWEST = 3


class Run(NamedTuple):
    """Turns in a graph: nodes[start : start + period * turns]."""

    start: int
    period: int
    turns: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.turns


# A run that matters covers one of so many shares of a graph: ops in any order have runs of three everywhere.
_SHARES = 256
# By which of a graph's symbols are equal, the stretches that repeat. Where lengths differ, each run asks for them.
_known: Bounded[tuple[int, ...], list[Run]] = Bounded(256)


def runs_in(nodes: Sequence[Node]) -> list[Run]:
    """The stretches of a graph that repeat, none inside another, by their symbols alone."""
    first: dict[Entry, int] = {}
    symbols = tuple([first.setdefault(symbol(node), len(first)) for node in nodes])
    known = _known.get(symbols)
    return _known.keep(symbols, _search(symbols)) if known is None else known


def _search(symbols: Sequence[int]) -> list[Run]:
    found: list[Run] = []
    free = [(0, len(symbols))]
    while free:
        low, high = free.pop()
        best = _best_run(symbols, low, high)
        if best is not None and _SHARES * best.period * best.turns >= len(symbols):
            found.append(best)
            free += [(low, best.start), (best.stop, high)]
    return sorted(found)


def _best_run(symbols: Sequence[int], low: int, high: int) -> Run | None:
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place in range(low, high):
        places[symbols[place]].append(place)
    distances: Counter[int] = Counter()
    for at in places.values():
        for lag in (1, 2, 3, 4, 6):
            distances.update(later - earlier for earlier, later in zip(at, at[lag:], strict=False))
    best: Run | None = None
    for period in sorted(distance for distance, _ in distances.most_common(24)):
        start = low
        for place in range(low, high - period + 1):
            if place == high - period or symbols[place] != symbols[place + period]:
                count = (place - start) // period + 1
                covered = count * period
                # A multiple of the period covers little more: the shortest is the turn.
                if count >= FEWEST and (best is None or covered > best.period * best.turns + period):
                    best = Run(start, period, count)
                start = place + 1
    return best


# Of an operand of each turn: what this turn has made (op, result); what the turn before has made (its number among the
# carried); the same for all; a row of what another loop keeps, or of stacked data, that the turn's number chooses.
INNER, CARRIED, SAME, ROW = "inner", "carried", "same", "row"
Wire = tuple[str, int, int]


@dataclass(slots=True)
class Turns:
    """A run whose turns are alike: how each op of a turn reads, and from whom.

    carried: per carried value the op and result that make it; inits: what the first turn reads in its place. sames;
    rows: per row (run, op, result, first turn, step), or data a turn.
    """

    run: Run
    wires: list[list[Wire]]
    carried: list[tuple[int, int]]
    inits: list[Value]
    sames: list[Value]
    rows: list[tuple[int, int, int, int, int] | tuple[Leaf, ...]]


def turns_of(nodes: Sequence[Node], run: Run, position: dict[Node, int], before: Sequence[Run]) -> Turns | None:
    """How the turns of a run read; None where they do not read alike. before: the runs found earlier in the graph."""
    made = Turns(run, [], [], [], [], [])
    seen: dict[Any, int] = {}
    for offset in range(run.period):
        turn = [nodes[run.start + offset + run.period * i] for i in range(run.turns)]
        if len({len(node.operands) for node in turn}) > 1:
            return None
        wires: list[Wire] = []
        for values in zip(*(node.operands for node in turn), strict=True):
            wire = _wire(values, made, position, before, seen)
            if wire is None:
                return None
            wires.append(wire)
        made.wires.append(wires)
    return made


def _wire(
    values: Sequence[Value], made: Turns, position: dict[Node, int], before: Sequence[Run], seen: dict[Any, int]
) -> Wire | None:
    first, run = values[0], made.run
    result = first.index if type(first) is Pick else 0
    if all(_is_same(value, first) for value in values):
        return SAME, _number(seen, (SAME, value_name(first)), made.sames, first), 0
    later = values[1:]
    if any(
        (value.index if type(value) is Pick else 0) != (later[0].index if type(later[0]) is Pick else 0)
        for value in later
    ):
        return None
    result = later[0].index if type(later[0]) is Pick else 0
    places = [None if (maker := origin(value)) is None else position[maker] for value in values]
    if None not in places[1:]:
        offsets = [
            place - run.start - run.period * turn for turn, place in enumerate(places) if place is not None and turn
        ]
        offset = offsets[0]
        if len(set(offsets)) == 1 and 0 <= offset < run.period:
            return (INNER, offset, result) if places[0] == run.start + offset else None
        if len(set(offsets)) == 1 and -run.period <= offset < 0:
            offset += run.period
            key = (CARRIED, offset, result, value_name(first))
            if key not in seen:
                seen[key] = len(made.carried)
                made.carried.append((offset, result))
                made.inits.append(first)
            return CARRIED, seen[key], 0
        if places[0] is not None:
            return _row(places, result, made, before, seen)  # type: ignore[arg-type]
        return None
    data = tuple(value for value in values if type(value) is Leaf and not is_state(value))
    if len(data) == len(values) and len({(leaf.meta, leaf.sharding) for leaf in data}) == 1:
        return ROW, _number(seen, (ROW, data), made.rows, data), 0
    return None


def _row(places: Sequence[int], result: int, made: Turns, before: Sequence[Run], seen: dict[Any, int]) -> Wire | None:
    for number, run in enumerate(before):
        turns = [(place - run.start) // run.period for place in places]
        offsets = {(place - run.start) % run.period for place in places}
        steps = {later - earlier for earlier, later in itertools.pairwise(turns)}
        if len(offsets) == 1 and len(steps) == 1 and all(0 <= turn < run.turns for turn in turns):
            row = (number, offsets.pop(), result, turns[0], steps.pop())
            return ROW, _number(seen, (ROW, row), made.rows, row), 0
    return None


def _number(seen: dict[Any, int], key: Any, listed: list[Any], item: Any) -> int:
    if key not in seen:
        seen[key] = len(listed)
        listed.append(item)
    return seen[key]


def _is_same(one: Value, other: Value) -> bool:
    return bool(value_name(one) == value_name(other))


def is_state(leaf: Leaf) -> bool:
    cell = leaf.holder() if leaf.holder is not None else None
    return cell is not None and cell.is_state


def alike_in(nodes: Sequence[Node]) -> list[Turns]:
    """The runs of a graph whose turns read alike; turns at the ends that do not are left out."""
    position = {node: place for place, node in enumerate(nodes)}
    found: list[Turns] = []
    for run in runs_in(nodes):
        for first, last in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)):
            shorter = Run(run.start + first * run.period, run.period, run.turns - first - last)
            if shorter.turns < FEWEST:
                continue
            turns = turns_of(nodes, shorter, position, [turns.run for turns in found])
            if turns is not None and (turns.carried or turns.rows):
                found.append(turns)
                break
    return found


def collapsed(nodes: Sequence[Node], turns: Sequence[Turns]) -> Iterator[str]:
    """The names of a graph's ops, each turn's once."""
    at = 0
    for found in turns:
        yield from (node.entry.name for node in nodes[at : found.run.start + found.run.period])
        yield "turns"
        at = found.run.stop
    yield from (node.entry.name for node in nodes[at:])


def moving_in(nodes: Sequence[Node], run: Run) -> Iterator[Entry]:
    """The ops of a run whose positions differ from turn to turn, with the position as an operand."""
    for place in range(run.start, run.start + run.period):
        entries = {node.entry for node in nodes[place : run.stop : run.period]}
        if len(entries) > 1:
            yield from (entry.moving[0] for entry in entries if entry.moving is not None)


def taken(node: Node) -> list[int]:
    """How long the dim is from which an op with a position takes elements."""
    if not node.operands or node.entry.name not in ("aten.slice.Tensor", "aten.select.int"):
        return []
    given, made = node.operands[0].meta.shape, node.meta.shape
    if len(given) == len(made):
        return [size for size, part in zip(given, made, strict=True) if size != part]
    return [next(size for dim, size in enumerate(given) if (*given[:dim], *given[dim + 1 :]) == made)]


def taken_back(node: Node) -> list[int]:
    """The dims in which the gradient of such an op is longer than what it is given."""
    given, made = node.operands[0].meta.shape, node.meta.shape
    if len(given) == len(made):
        return [dim for dim, size in enumerate(made) if size != given[dim]]
    return [next(dim for dim in range(len(made)) if (*made[:dim], *made[dim + 1 :]) == given)]
