"""Turns that differ in number: RNN cells over sentences of many lengths, the episodes of a policy gradient.

Where a barrier's graph repeats a stretch of ops, each turn reading what the one before has made, and another run of the
barrier had another number of turns, the turns become one op: a loop whose number of turns is an operand. What others
read of a turn is kept as rows, padded to a capacity that doubles; a backward pass is a loop of its own, which reads the
rows of the forward one from behind. Outside the loops padding spreads as in `lengths`.
"""

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from ..config import config
from ..ir.graph import Graph, Leaf, Node, Pick, Value, origin, value_name
from ..ir.meta import dense_meta, padded_meta
from ..ir.op import PADDED, Entry
from ..ir.source import Line
from ..ops.padding import NoRule, Pads
from ..ops.padding_shapes import LEAST_TURNS, capacity_of
from ..tables import Bounded
from . import alike
from .alike import CARRIED, FEWEST, INNER, ROW, SAME, Turns, Wire, alike_in, is_state
from .data_rows import columns_of
from .lengths import Refused, Sources, Spread
from .lengths import found as found_entry
from .looping import Join, Loop, Op, Stack, TakeRow

# So many turns at most are left out of a loop, as they do not read like the others.
_BESIDE = 4

# By the place of a barrier and the ops of its graph, turns taken once: the numbers of turns, or None for "rolled".
_seen: Bounded[tuple[Any, ...], tuple[int, ...] | None] = Bounded(256)


def rolled(graph: Graph, line: Line, *, written: Collection[Node] = ()) -> Graph | Refused:
    """The graph with its turns rolled up, where their number is known to differ from run to run; else as it is. Turns
    in which state is `written` are steps of a loop that nobody syncs: `turns` has them."""
    if not config.roll_turns or not config.loop_search_ops or len(graph.nodes) < FEWEST * 4:
        return graph
    turns = alike_in(graph.nodes)
    rolled_up = {node for found in turns for node in graph.nodes[found.run.start : found.run.stop]}
    if not turns or not rolled_up.isdisjoint(written):
        return graph
    key = (line.code, line.number, *alike.collapsed(graph.nodes, turns))
    counts = tuple(found.run.turns for found in turns)
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
        self.columns = columns_of([row for found in turns for row in found.rows if type(row[0]) is Leaf])
        # By each leaf of a column, which that is and its place there; the columns stacked, once something reads them.
        self.column_of = {leaf: (i, k) for i, column in enumerate(self.columns) for k, leaf in enumerate(column)}
        self.stacks: dict[int, Node] = {}
        self.lengths = self._lengths()
        counts = [len(column) for column in self.columns] + [found.run.turns for found in turns]
        self.most = capacity_of(max([*self.lengths, *counts]), LEAST_TURNS)
        # A turn that stands outside its loop has positions, too.
        self.moved = {made for found in turns for made in alike.moving_in(graph.nodes, found.run)}
        self.bases = [node.operands[0] for node in graph.nodes if node.entry.name in _SCATTERS]

    def capacity(self, length: int) -> int:
        return self.most

    def graph(self) -> Graph:
        """The whole."""
        alone = [leaf for leaf in self.old.leaves if leaf not in self.column_of]
        sources = {leaf: (dim,) for leaf in alone if (dim := self._grown_dim(leaf)) is not None}
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
        copied = set(self.copies.values())
        lies, donated, onto = [], [], []
        for leaf in leaves:
            like = self.copies.get(leaf, leaf)
            lies.append(old.lies[named[like]] if like in named else old.mesh)
            is_old = leaf in named and leaf not in copied
            donated.append(is_old and old.donated[named[leaf]])
            onto.append(old.onto[named[leaf]] if is_old else None)
        return dataclasses.replace(graph, leaves=leaves, lies=lies, donated=tuple(donated), onto=onto)

    # What is as long as there are turns.

    def _lengths(self) -> set[int]:
        found: set[int] = set()
        for node in self.old.nodes:
            if node.entry.name in ("aten.cat", "aten.stack") and self._rows_in(node) is not None:
                whole, part = node.meta.shape, node.operands[0].meta.shape
                found |= {size for size in whole if size not in part} if node.entry.name == "aten.cat" else set()
                found |= {len(node.operands)} if node.entry.name == "aten.stack" else set()
            elif node in self.place and node.entry.moving is not None and self.place[node][1] == 0:
                found |= set(alike.taken(node))
        counts = [turns.run.turns for turns in self.turns]
        return {size for size in found if any(0 <= size - count <= _BESIDE for count in counts)}

    def _grown_dim(self, leaf: Leaf) -> int | None:
        if leaf.host is None or is_state(leaf):
            return None
        return next((dim for dim, size in enumerate(leaf.meta.shape) if size in self.lengths and size > 1), None)

    def _begins(self, node: Node) -> tuple[int, ...]:
        if node.entry.name in ("aten.slice_backward", "aten.select_backward"):
            return tuple(dim for dim in alike.taken_back(node) if node.meta.shape[dim] in self.lengths)
        if node.entry.name == "aten.expand":
            given, made = node.operands[0].meta.shape, node.meta.shape
            more = len(made) - len(given)
            repeated = [dim for dim in range(len(made)) if dim < more or given[dim - more] != made[dim]]
            return tuple(dim for dim in repeated if made[dim] in self.lengths and made[dim] > 1)
        if node.entry.constant is not None and node in self.bases:
            return tuple(dim for dim, size in enumerate(node.meta.shape) if size in self.lengths)
        if node.entry.name.startswith("aten.arange"):
            return tuple(dim for dim, size in enumerate(node.meta.shape) if size in self.lengths and size > 1)
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
        if type(value) is Leaf and value in self.column_of:
            column, place = self.column_of[value]
            return self._row_at(value, self._stack(column, self.at), place, self.at)
        maker = origin(value)
        if maker not in self.place:
            return super().now(value)
        assert maker is not None
        number, turn, offset = self.place[maker]
        kept, is_last = self.kept[number, offset, value.index if type(value) is Pick else 0]
        return kept if is_last else self._row_at(value, kept, turn, maker)

    def _row_at(self, value: Value, rows: Value, place: int, like: Node) -> Value:
        """A value that is one of these rows."""
        key = value_name(value)
        if key not in self.made:
            meta = dense_meta(rows.meta.shape[1:], rows.meta.dtype)
            entry = Entry.of("spmd.row", TakeRow(), (meta,), (rows.meta,), numbers="i", statics=PADDED)
            self.made[key] = self.new(entry, [rows], (place,), like)
        return self.made[key]

    def _stack(self, column: int, like: Node) -> Node:
        """The data of a column as rows, filled up with copies of the last."""
        if column not in self.stacks:
            leaves = self.columns[column]
            more = [_copy(leaves[-1]) for _ in range(self.most - len(leaves))]
            self.copies |= dict.fromkeys(more, leaves[-1])
            meta = leaves[0].meta
            rows = dense_meta((self.most, *meta.shape), meta.dtype)
            entry = Entry.of("spmd.stack", Stack(), (rows,), (meta,) * self.most, statics=PADDED)
            self.stacks[column] = self.new(entry, [*leaves, *more], (), like)
        return self.stacks[column]

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
            value, pads, start, step = self._rows(row, nodes[run.start])
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
        loop = Loop(tuple(body), tuple(found.carried), tuple(kept), tuple(steps), len(sames), len(inits), len(rows))
        operands = [*sames, *inits, *rows, *vectors]
        values = [run.turns, *starts, *[value for value, _ in numbers]]
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
        last = self.turns[number].run.turns - 1
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

    def _rows(self, row: Any, like: Node) -> tuple[Value, Pads, int, int]:
        """The rows that a loop reads: of another one, or of data, stacked."""
        if type(row[0]) is Leaf:
            (column, first), (_, second) = self.column_of[row[0]], self.column_of[row[1]]
            return self._stack(column, like), {}, first, second - first
        number, offset, result, first, step = row
        kept, is_last = self.kept[number, offset, result]
        assert not is_last, "rows that are read are kept"
        return kept, self.row_pads[number, offset, result], first, step

    def _body(
        self, found: Turns, capacity: int, same_pads: list[Pads], init_pads: list[Pads], row_pads: list[Pads]
    ) -> tuple[list["Op"], list[tuple[float | int, str]], list[Leaf], list[tuple[Pads, ...]]]:
        """The ops of a turn, on operands with padding; their lifted numbers, which are as many for any number of turns:
        those that grow evenly by the first one, others as data."""
        run, nodes = found.run, self.old.nodes
        body: list[Op] = []
        numbers: list[tuple[float | int, str]] = []
        vectors: list[Leaf] = []
        made: list[tuple[Pads, ...]] = []
        for offset, wires in enumerate(found.wires):
            turn = [nodes[run.start + offset + run.period * i] for i in range(run.turns)]
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
                    array[: run.turns] = column
                    leaf = Leaf(dense_meta((capacity,), _VECTORS[kind]), host=array)
                    sources.append(("v", len(vectors), 0))
                    vectors.append(leaf)
            body.append(Op(entry, tuple(wires), tuple(sources)))
            made.append(results)
        return body, numbers, vectors, made

    # Lists of all turns.

    def _rows_in(self, node: Node) -> tuple[int, int, tuple[int, int, int]] | None:
        """Where among an op's operands one value of all turns of a run stands, in order: (from, to, which)."""
        for at, operand in enumerate(node.operands):
            maker = origin(operand)
            if maker in self.place and self.place[maker][1] == 0:
                number, _, offset = self.place[maker]
                count = self.turns[number].run.turns
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
        joined = Join(dim, is_stack, len(before), len(after))
        entry = Entry.of(
            node.entry.name, joined, (meta,), tuple(operand.meta for operand in operands), numbers="i", statics=PADDED
        )
        self.made[node] = self.new(entry, operands, (stop - start,), node)
        self.pads[node] = {dim: capacity}
        return True


_VECTORS = {"f": torch.float64, "i": torch.int64}
# Ops that write into a value which autograd has made of zeros for them.
_SCATTERS = ("aten.scatter_add", "aten.index_put")


def _copy(leaf: Leaf) -> Leaf:
    if leaf.host is not None:
        return Leaf(leaf.meta, host=leaf.host, sharding=leaf.sharding)
    buffer, lies = leaf.placed()
    return Leaf(leaf.meta, buffer=buffer, sharding=lies)


def _pads(wire: Wire, made: Sequence[tuple[Pads, ...]], sames: list[Pads], inits: list[Pads], rows: list[Pads]) -> Pads:
    kind, which, result = wire
    return made[which][result] if kind is INNER else {SAME: sames, CARRIED: inits, ROW: rows}[kind][which]
