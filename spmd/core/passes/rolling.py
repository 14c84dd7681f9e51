"""Turns that differ in number: RNN cells over sentences of many lengths, the episodes of a policy gradient.

Where a barrier's graph repeats a stretch of ops, each turn reading what the one before has made, and another run of the
barrier had another number of turns, the turns become one op: a loop whose number of turns is an operand. What others
read of a turn is kept as rows, padded to a capacity that doubles; a backward pass is a loop of its own, which reads the
rows of the forward one from behind. Outside the loops padding spreads as in `padding`.
"""

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..config import config
from ..ir.graph import Graph, Leaf, Node, Pick, Value, origin
from ..ir.meta import dense_meta, padded_meta
from ..ir.op import PADDED, Arrays, Entry, Layouts, Lowering
from ..ir.source import Line
from ..ops.padding import NoRule, Pads
from ..ops.padding_shapes import LEAST_TURNS, capacity_of
from ..tables import Bounded
from .padding import Refused, Sources, Spread
from .padding import found as found_entry

# A loop has at least so many turns.
FEWEST = 3

# So many turns at most are left out of a loop, as they do not read like the others.
_BESIDE = 4

# By the place of a barrier and the ops of its graph, turns taken once: the numbers of turns, or None for "rolled".
_seen: Bounded[tuple[Any, ...], tuple[int, ...] | None] = Bounded(256)


# --- finding turns ----------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Turns in a graph: nodes[start : start + period * count]."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count


def runs_in(nodes: Sequence[Node]) -> list[Run]:
    """The stretches of a graph that repeat, none inside another, by their symbols alone."""
    symbols = [node.entry.moving[0] if node.entry.moving is not None else node.entry for node in nodes]
    found: list[Run] = []
    free = [(0, len(nodes))]
    while free:
        low, high = free.pop()
        best = _best_run(symbols, low, high)
        if best is not None:
            found.append(best)
            free += [(low, best.start), (best.stop, high)]
    return sorted(found)


def _best_run(symbols: Sequence[Entry], low: int, high: int) -> Run | None:
    places: defaultdict[Entry, list[int]] = defaultdict(list)
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
            if place == high - period or symbols[place] is not symbols[place + period]:
                count = (place - start) // period + 1
                covered = count * period
                # A multiple of the period covers little more: the shortest is the turn.
                if count >= FEWEST and (best is None or covered > best.period * best.count + period):
                    best = Run(start, period, count)
                start = place + 1
    return best


# --- what the ops of a turn read ---------------------------------------------------------------------------------------

# Of an operand of each turn: what this turn has made (op, result); what the turn before has made (its number among the
# carried); the same for all; a row of what another loop keeps, or of stacked data, that the turn's number chooses.
INNER, CARRIED, SAME, ROW = "inner", "carried", "same", "row"
Wire = tuple[str, int, int]


@dataclass(slots=True)
class Turns:
    """A run whose turns are alike: how each op of a turn reads, and from whom.

    carried: per carried value the op and result that make it; inits: what the first turn reads in its place. sames; rows:
    per row (run, op, result, first turn, step), or data a turn.
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
        turn = [nodes[run.start + offset + run.period * i] for i in range(run.count)]
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
        return SAME, _number(seen, (SAME, _name(first)), made.sames, first), 0
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
            key = (CARRIED, offset, result, _name(first))
            if key not in seen:
                seen[key] = len(made.carried)
                made.carried.append((offset, result))
                made.inits.append(first)
            return CARRIED, seen[key], 0
        if places[0] is not None:
            return _row(places, result, made, before, seen)  # type: ignore[arg-type]
        return None
    if all(type(value) is Leaf and not _is_state(value) for value in values):
        if len({(value.meta, value.sharding) for value in values}) == 1:
            key = tuple(values)
            return ROW, _number(seen, (ROW, key), made.rows, key), 0
    return None


def _row(places: Sequence[int], result: int, made: Turns, before: Sequence[Run], seen: dict[Any, int]) -> Wire | None:
    for number, run in enumerate(before):
        turns = [(place - run.start) // run.period for place in places]
        offsets = {(place - run.start) % run.period for place in places}
        steps = {later - earlier for earlier, later in itertools.pairwise(turns)}
        if len(offsets) == 1 and len(steps) == 1 and all(0 <= turn < run.count for turn in turns):
            row = (number, offsets.pop(), result, turns[0], steps.pop())
            return ROW, _number(seen, (ROW, row), made.rows, row), 0
    return None


def _number(seen: dict[Any, int], key: Any, listed: list[Any], item: Any) -> int:
    if key not in seen:
        seen[key] = len(listed)
        listed.append(item)
    return seen[key]


def _name(value: Value) -> Any:
    return (value.node, value.index) if type(value) is Pick else value


def _is_same(one: Value, other: Value) -> bool:
    return _name(one) == _name(other)


def _is_state(leaf: Leaf) -> bool:
    cell = leaf.holder() if leaf.holder is not None else None
    return cell is not None and cell.is_state


def alike_in(nodes: Sequence[Node]) -> list[Turns]:
    """The runs of a graph whose turns read alike; turns at the ends that do not are left out."""
    position = {node: place for place, node in enumerate(nodes)}
    found: list[Turns] = []
    for run in runs_in(nodes):
        for first, last in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)):
            shorter = Run(run.start + first * run.period, run.period, run.count - first - last)
            if shorter.count < FEWEST:
                continue
            turns = turns_of(nodes, shorter, position, [turns.run for turns in found])
            if turns is not None and (turns.carried or turns.rows):
                found.append(turns)
                break
    return found


# --- the graph with loops ----------------------------------------------------------------------------------------------


def rolled(graph: Graph, line: Line) -> Graph | Refused:
    """The graph with its turns rolled up, where their number is known to differ from run to run; else as it is."""
    if not config.roll_turns or len(graph.nodes) < FEWEST * 4:
        return graph
    turns = alike_in(graph.nodes)
    if not turns:
        return graph
    key = (line.code, line.number, *_collapsed(graph.nodes, turns))
    counts = tuple(found.run.count for found in turns)
    if key not in _seen.rows:
        _seen.keep(key, counts)
    if _seen.rows[key] == counts:
        return graph
    spread = _Rolled(graph, turns)
    try:
        made = spread.graph()
    except NoRule as why:
        return Refused(spread.at, str(why))
    _seen.keep(key, None)
    return made


def _collapsed(nodes: Sequence[Node], turns: Sequence[Turns]) -> Iterator[str]:
    """The names of a graph's ops, each turn's once."""
    at = 0
    for found in turns:
        yield from (node.entry.name for node in nodes[at : found.run.start + found.run.period])
        yield "turns"
        at = found.run.stop
    yield from (node.entry.name for node in nodes[at:])


class _Rolled(Spread):
    """A graph anew, its turns as loops."""

    def __init__(self, graph: Graph, turns: Sequence[Turns]):
        super().__init__(Sources({}, {}))
        self.old = graph
        self.turns = turns
        self.at = graph.nodes[0]
        self.copies: dict[Leaf, Leaf] = {}  # data that fills up rows, by what it is a copy of
        # By op inside a run: which run, turn and op of the turn. By (run, op, result): the loop's result, and whether
        # that is the last turn's alone.
        self.place: dict[Node, tuple[int, int, int]] = {}
        self.kept: dict[tuple[int, int, int], tuple[Value, bool]] = {}
        self.row_pads: dict[tuple[int, int, int], Pads] = {}
        for number, found in enumerate(turns):
            run = found.run
            for place in range(run.start, run.stop):
                self.place[graph.nodes[place]] = (number, *divmod(place - run.start, run.period))
        self.lengths = self._lengths()
        self.most = capacity_of(max([*self.lengths, *(found.run.count for found in turns)]), LEAST_TURNS)

    def capacity(self, length: int) -> int:
        return self.most

    def graph(self) -> Graph:
        """The whole."""
        sources = {leaf: (dim,) for leaf in self.old.leaves if (dim := self._grown_dim(leaf)) is not None}
        begun = {node: dims for node in self.old.nodes if (dims := self._begins(node))}
        self.sources = Sources(begun, sources)
        starts = {found.run.start: number for number, found in enumerate(self.turns)}
        place = 0
        while place < len(self.old.nodes):
            self.at = self.old.nodes[place]
            if place in starts:
                self._loop(starts[place])
                place = self.turns[starts[place]].run.stop
            else:
                if not self._join(self.at):
                    self.take(self.at)
                place += 1
        for root in self.old.roots:
            maker = origin(root)
            if maker is not None and self.pads_of(root):
                self.at = maker
                raise NoRule("makes what is kept at its own length")
        roots = [self.now(root) for root in self.old.roots]
        return self._with_leaves(dataclasses.replace(self.old, nodes=self.nodes, roots=roots))

    def _with_leaves(self, graph: Graph) -> Graph:
        """The graph with its leaves in the order in which the new ops read them."""
        old = self.old
        named = {self.data.get(leaf, leaf): i for i, leaf in enumerate(old.leaves)}
        read = [operand for node in graph.nodes for operand in node.operands if type(operand) is Leaf]
        leaves = list(dict.fromkeys([*read, *named]))
        lies, donated = [], []
        for leaf in leaves:
            like = self.copies.get(leaf, leaf)
            lies.append(old.lies[named[like]] if like in named else old.mesh)
            donated.append(leaf in named and leaf not in self.copies.values() and old.donated[named[leaf]])
        return dataclasses.replace(graph, leaves=leaves, lies=lies, donated=tuple(donated))

    # What is as long as there are turns.

    def _lengths(self) -> set[int]:
        found: set[int] = set()
        for node in self.old.nodes:
            if node.entry.name in ("aten.cat", "aten.stack") and self._rows_in(node) is not None:
                whole, part = node.meta.shape, node.operands[0].meta.shape
                found |= {size for size in whole if size not in part} if node.entry.name == "aten.cat" else set()
                found |= {len(node.operands)} if node.entry.name == "aten.stack" else set()
            elif node in self.place and node.entry.moving is not None and self.place[node][1] == 0:
                found |= set(_taken(node))
        counts = [turns.run.count for turns in self.turns]
        return {size for size in found if any(0 <= size - count <= _BESIDE for count in counts)}

    def _grown_dim(self, leaf: Leaf) -> int | None:
        if leaf.host is None or _is_state(leaf):
            return None
        return next((dim for dim, size in enumerate(leaf.meta.shape) if size in self.lengths and size > 1), None)

    def _begins(self, node: Node) -> tuple[int, ...]:
        if node.entry.name in ("aten.slice_backward", "aten.select_backward"):
            return tuple(dim for dim in _taken_back(node) if node.meta.shape[dim] in self.lengths)
        if node.entry.name == "aten.expand":
            given, made = node.operands[0].meta.shape, node.meta.shape
            more = len(made) - len(given)
            repeated = [dim for dim in range(len(made)) if dim < more or given[dim - more] != made[dim]]
            return tuple(dim for dim in repeated if made[dim] in self.lengths and made[dim] > 1)
        return ()

    # Values.

    def pads_of(self, value: Value) -> Pads:
        """What is padded of a value of the old graph."""
        maker = origin(value)
        if maker in self.place:
            number, _, offset = self.place[maker]
            return self.row_pads[number, offset, value.index if type(value) is Pick else 0]
        return super().pads_of(value)

    def now(self, value: Value) -> Value:
        """A value of the old graph in the new one; of a turn's, the row that the loop has kept."""
        maker = origin(value)
        if maker not in self.place:
            return super().now(value)
        assert maker is not None
        number, turn, offset = self.place[maker]
        kept, is_last = self.kept[number, offset, value.index if type(value) is Pick else 0]
        if is_last:
            return kept
        key = _name(value)
        if key not in self.made:
            meta = dense_meta(kept.meta.shape[1:], kept.meta.dtype)
            entry = Entry.of("spmd.row", _TakeRow(), (meta,), (kept.meta,), numbers="i", statics=PADDED)
            self.made[key] = self.new(entry, [kept], (turn,), maker)
        return self.made[key]

    # Loops.

    def _loop(self, number: int) -> None:
        found = self.turns[number]
        run = found.run
        capacity = self.most
        nodes = self.old.nodes
        for value in (*found.sames, *found.inits):
            self.lengthen(value, nodes[run.start])
        sames, inits = [self.now(value) for value in found.sames], [self.now(value) for value in found.inits]
        same_pads = [self.pads_of(value) for value in found.sames]
        init_pads = [self.pads_of(value) for value in found.inits]
        rows, row_pads, starts, steps = [], [], [], []
        for row in found.rows:
            value, pads, start, step = self._rows(row, capacity, nodes[run.start])
            rows.append(value)
            row_pads.append(pads)
            starts.append(start)
            steps.append(step)
        body, numbers, vectors, pads_made = self._body(found, capacity, same_pads, init_pads, row_pads)
        for (offset, result), pads in zip(found.carried, init_pads, strict=True):
            if pads_made[offset][result] != pads:
                raise NoRule("carries a value of changing length")
        keeps = self._keeps(number)
        metas, kept = [], []
        for (offset, result), is_last in keeps.items():
            meta = body[offset].entry.metas[result]
            metas.append(meta if is_last else dense_meta((capacity, *meta.shape), meta.dtype))
            kept.append((offset, result, is_last))
            self.row_pads[number, offset, result] = pads_made[offset][result]
        loop = _Loop(tuple(body), tuple(found.carried), tuple(kept), tuple(steps), len(sames), len(inits), len(rows))
        operands = [*sames, *inits, *rows, *vectors]
        values = [run.count, *starts, *[value for value, _ in numbers]]
        kinds = "i" * (1 + len(starts)) + "".join(kind for _, kind in numbers)
        entry = Entry.of(
            "spmd.turns", loop, tuple(metas), tuple(operand.meta for operand in operands), numbers=kinds, statics=PADDED
        )
        node = self.new(entry, operands, values, nodes[run.stop - 1])
        for index, (offset, result, is_last) in enumerate(kept):
            self.kept[number, offset, result] = (Pick(node, index) if len(kept) > 1 else node, is_last)

    def _keeps(self, number: int) -> dict[tuple[int, int], bool]:
        """What others read of a loop, and whether of its last turn alone."""
        found: dict[tuple[int, int], bool] = {}
        last = self.turns[number].run.count - 1
        rolled = set(self.place)

        def reads(value: Value) -> None:
            maker = origin(value)
            if maker in self.place and self.place[maker][0] == number:
                _, turn, offset = self.place[maker]
                key = offset, value.index if type(value) is Pick else 0
                found[key] = found.get(key, True) and turn == last

        for node in self.old.nodes:
            if node not in rolled or self.place[node][0] != number:
                for operand in node.operands:
                    reads(operand)
        for root in self.old.roots:
            reads(root)
        return dict(sorted(found.items()))

    def _rows(self, row: Any, capacity: int, like: Node) -> tuple[Value, Pads, int, int]:
        """The rows that a loop reads: of another one, or of data, stacked."""
        if type(row[0]) is Leaf:
            more = [_copy(row[-1]) for _ in range(capacity - len(row))]
            self.copies |= dict.fromkeys(more, row[-1])
            leaves = [*row, *more]
            meta = row[0].meta
            stacked = dense_meta((capacity, *meta.shape), meta.dtype)
            entry = Entry.of("spmd.stack", _Stack(), (stacked,), (meta,) * capacity, statics=PADDED)
            return self.new(entry, leaves, (), like), {}, 0, 1
        number, offset, result, first, step = row
        kept, is_last = self.kept[number, offset, result]
        assert not is_last, "rows that are read are kept"
        return kept, self.row_pads[number, offset, result], first, step

    def _body(
        self, found: Turns, capacity: int, same_pads: list[Pads], init_pads: list[Pads], row_pads: list[Pads]
    ) -> tuple[list["_Op"], list[tuple[float | int, str]], list[Leaf], list[tuple[Pads, ...]]]:
        """The ops of a turn, on operands with padding; their lifted numbers, which are as many for any number of turns:
        those that grow evenly by the first one, others as data."""
        run, nodes = found.run, self.old.nodes
        body: list[_Op] = []
        numbers: list[tuple[float | int, str]] = []
        vectors: list[Leaf] = []
        made: list[tuple[Pads, ...]] = []
        for offset, wires in enumerate(found.wires):
            turn = [nodes[run.start + offset + run.period * i] for i in range(run.count)]
            entries, lists = [], []
            for node in turn:
                moving = node.entry.moving if any(node.entry is not other.entry for other in turn) else None
                entries.append(node.entry if moving is None else moving[0])
                lists.append(node.numbers if moving is None else (moving[1], *node.numbers))
            if any(entry is not entries[0] for entry in entries):
                raise NoRule("differs from turn to turn")
            self.at, entry = turn[0], entries[0]
            if entry.sharding is not None:
                raise NoRule("lays out what a turn makes")
            pads = [_pads(wire, made, same_pads, init_pads, row_pads) for wire in wires]
            before: tuple[int, ...] = ()
            results: tuple[Pads, ...] = ({},) * len(entry.metas)
            begins = () if any(pads) else self._begins(turn[0])
            if any(pads) or begins:
                entry, results, before = found_entry(entry, pads, begins)
            sources: list[tuple[str, int, int]] = []
            for number in before:
                sources.append(("i", len(numbers), 0))
                numbers.append((number, "i"))
            for kind, column in zip(entry.numbers[len(before) :], zip(*lists, strict=True), strict=True):
                steps = {later - earlier for earlier, later in itertools.pairwise(column)}
                step = steps.pop() if len(steps) == 1 else None
                if step == 0 or (step is not None and kind == "i"):
                    sources.append((kind, len(numbers), int(step)))
                    numbers.append((column[0], kind))
                else:
                    dtype = np.float64 if kind == "f" else np.int64
                    array = np.zeros(capacity, dtype)
                    array[: run.count] = column
                    leaf = Leaf(dense_meta((capacity,), _VECTORS[kind]), host=array)
                    sources.append(("v", len(vectors), 0))
                    vectors.append(leaf)
            body.append(_Op(entry, tuple(wires), tuple(sources)))
            made.append(results)
        return body, numbers, vectors, made

    # Lists of all turns.

    def _rows_in(self, node: Node) -> tuple[int, int, tuple[int, int, int]] | None:
        """Where among an op's operands one value of all turns of a run stands, in order: (from, to, which)."""
        for at, operand in enumerate(node.operands):
            maker = origin(operand)
            if maker in self.place and self.place[maker][1] == 0:
                number, _, offset = self.place[maker]
                count = self.turns[number].run.count
                result = operand.index if type(operand) is Pick else 0
                wanted = [(number, turn, offset) for turn in range(count)]
                given = node.operands[at : at + count]
                if [self.place.get(origin(value)) for value in given] == wanted and all(  # type: ignore[arg-type]
                    (value.index if type(value) is Pick else 0) == result for value in given
                ):
                    return at, at + count, (number, offset, result)
        return None

    def _join(self, node: Node) -> bool:
        """Takes a `stack` or `cat` of a value of all turns: the rows as they were kept. False where it is none."""
        found = self._rows_in(node) if node.entry.name in ("aten.cat", "aten.stack") else None
        if found is None:
            return False
        start, stop, which = found
        rows, _ = self.kept[which]
        before, after = node.operands[:start], node.operands[stop:]
        part, whole = node.operands[start].meta.shape, node.meta.shape
        is_stack = node.entry.name == "aten.stack"
        dims = [dim for dim in range(len(whole)) if is_stack or whole[dim] != part[dim]]
        dim = next((dim for dim in dims if not is_stack or (*whole[:dim], *whole[dim + 1 :]) == part), None)
        if dim is None or self.row_pads[which] or (not is_stack and part[dim] != 1):
            raise NoRule("joins what the turns have made")
        capacity = rows.meta.shape[0] + len(before) + len(after)
        meta = padded_meta(node.meta, {dim: capacity})
        operands = [*map(self.now, before), rows, *map(self.now, after)]
        if any(self.pads_of(value) for value in (*before, *after)):
            raise NoRule("joins what is padded")
        joined = _Join(dim, is_stack, len(before), len(after))
        entry = Entry.of(
            node.entry.name, joined, (meta,), tuple(operand.meta for operand in operands), numbers="i", statics=PADDED
        )
        self.made[node] = self.new(entry, operands, (stop - start,), node)
        self.pads[node] = {dim: capacity}
        return True


_VECTORS = {"f": torch.float64, "i": torch.int64}


def _copy(leaf: Leaf) -> Leaf:
    if leaf.host is not None:
        return Leaf(leaf.meta, host=leaf.host, sharding=leaf.sharding)
    buffer, lies = leaf.placed()
    return Leaf(leaf.meta, buffer=buffer, sharding=lies)


def _pads(wire: Wire, made: Sequence[tuple[Pads, ...]], sames: list[Pads], inits: list[Pads], rows: list[Pads]) -> Pads:
    kind, which, result = wire
    return made[which][result] if kind is INNER else {SAME: sames, CARRIED: inits, ROW: rows}[kind][which]


def _taken(node: Node) -> list[int]:
    """How long the dim is from which an op with a position takes elements."""
    if not node.operands or node.entry.name not in ("aten.slice.Tensor", "aten.select.int"):
        return []
    given, made = node.operands[0].meta.shape, node.meta.shape
    if len(given) == len(made):
        return [size for size, part in zip(given, made, strict=True) if size != part]
    return [next(size for dim, size in enumerate(given) if (*given[:dim], *given[dim + 1 :]) == made)]


def _taken_back(node: Node) -> list[int]:
    """The dims in which the gradient of such an op is longer than what it is given."""
    given, made = node.operands[0].meta.shape, node.meta.shape
    if len(given) == len(made):
        return [dim for dim, size in enumerate(made) if size != given[dim]]
    return [next(dim for dim in range(len(made)) if (*made[:dim], *made[dim + 1 :]) == given)]


# --- lowering ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Op:
    """An op of a turn: what it reads, and where each of its lifted numbers comes from: one that grows evenly from turn
    to turn ("f" or "i", which, by how much), or a list of one a turn ("v", which, 0)."""

    entry: Entry
    wires: tuple[Wire, ...]
    numbers: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Loop(Lowering):
    """Turns: a loop whose number of turns is the first lifted integer, those behind it where each row begins.

    kept: by op and result, and whether the last turn's alone. steps: how far the next turn's row is. The operands: what
    is the same for all turns, what the first one reads of the carried, rows, lists of numbers.
    """

    body: tuple[_Op, ...]
    carried: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int, bool], ...]
    steps: tuple[int, ...]
    num_sames: int
    num_inits: int
    num_rows: int

    @property
    def opaque(self) -> bool:
        return any(op.entry.lowering.opaque for op in self.body)

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        ends = list(itertools.accumulate((self.num_sames, self.num_inits, self.num_rows)))
        sames, inits = operands[: ends[0]], operands[ends[0] : ends[1]]
        rows, vectors = operands[ends[1] : ends[2]], operands[ends[2] :]
        count, starts, evenly = numbers[0], numbers[1 : 1 + self.num_rows], numbers[1 + self.num_rows :]

        def turn(number: jax.Array, state: Any) -> Any:
            carried, kept = state
            values: list[tuple[jax.Array, ...]] = []
            for one in self.body:
                given = [_read(wire, number, values, carried, sames, rows, starts, self.steps) for wire in one.wires]
                lifted = [
                    vectors[which][number] if kind == "v" else evenly[which] + step * number
                    if step else evenly[which]
                    for kind, which, step in one.numbers
                ]  # fmt: skip
                values.append(one.entry.lower(given, lifted, [None] * len(given)))
            made = [values[offset][result] for offset, result, _ in self.kept]
            after = [
                new if is_last else jax.lax.dynamic_update_index_in_dim(old, new, number, 0)
                for old, new, (_, _, is_last) in zip(kept, made, self.kept, strict=True)
            ]
            return tuple(values[offset][result] for offset, result in self.carried), tuple(after)

        empty = tuple(jnp.zeros(meta.shape, meta.struct.dtype) for meta in op.metas)
        return jax.lax.fori_loop(0, count, turn, (tuple(inits), empty))[1]


def _read(
    wire: Wire, number: jax.Array, values: Any, carried: Any, sames: Arrays, rows: Arrays, starts: Arrays,
    steps: Sequence[int],
) -> jax.Array:  # fmt: skip
    kind, which, result = wire
    if kind == INNER:
        return values[which][result]
    if kind == ROW:
        return jax.lax.dynamic_index_in_dim(rows[which], starts[which] + steps[which] * number, 0, keepdims=False)
    return carried[which] if kind == CARRIED else sames[which]


@dataclass(frozen=True, slots=True)
class _TakeRow(Lowering):
    """One row of what a loop has kept."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jax.lax.dynamic_index_in_dim(operands[0], numbers[0], 0, keepdims=False),)


@dataclass(frozen=True, slots=True)
class _Stack(Lowering):
    """The operands as rows."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jnp.stack(operands),)


@dataclass(frozen=True, slots=True)
class _Join(Lowering):
    """Values and the rows of a loop along a dim: `before` of them, the rows, of which only the run knows how many count,
    and `after` behind these."""

    dim: int
    is_stack: bool
    before: int
    after: int

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        *first, rows = operands[: self.before + 1]
        last = operands[self.before + 1 :]
        rows = jnp.moveaxis(rows if self.is_stack else jnp.squeeze(rows, self.dim + 1), 0, self.dim)
        if self.is_stack:
            first, last = ([jnp.expand_dims(array, self.dim) for array in arrays] for arrays in (first, last))
        room = [(0, self.after if dim == self.dim else 0) for dim in range(rows.ndim)]
        made = jnp.pad(jnp.concatenate([*first, rows], self.dim), room)
        if last:
            new = jnp.concatenate(last, self.dim)
            made = jax.lax.dynamic_update_slice_in_dim(made, new, numbers[0] + self.before, self.dim)
        return (made,)
