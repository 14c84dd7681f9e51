"""Loops whose trip count differs from run to run: an RNN over sentences of many lengths, episodes of a policy gradient.

Where the graph of a sync repeats a stretch of ops, each iteration reading results of the one before, and another run of
the sync had another number of iterations, the iterations become one op: a loop whose trip count is an operand. Results
of an iteration that are read outside are kept as ys, padded to a capacity that doubles; a backward pass is a loop of
its own, which reads the ys of the forward one in reverse order. Outside the loops padding spreads as in `padding`.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core import DeviceData, Meta, config, dense_meta
from ..core.extend import (
    PADDED,
    Bounded,
    Carry,
    Changed,
    Const,
    Graph,
    Local,
    Loop,
    Node,
    OfX,
    OpSpec,
    Outcome,
    Region,
    Source,
    Step,
    Sync,
    TupleElement,
    Value,
    Xs,
    regions,
    stretches,
    walks,
)
from . import isomorphic
from .isomorphic import Iterations, isomorphic_runs
from .loop_ops import Join, Stack, TakeRow
from .padding.case import NoRule, Pads, padded_meta
from .padding.shapes import LEAST_ITERATIONS, capacity_of
from .padding.spread import Sources, Spread, begins_at, padded_op, refusal
from .stacked_data import columns_of

# The most iterations that are peeled from a loop because they are not isomorphic to the others.
_MOST_PEELED = 4

# By the line of a sync and the ops of its graph, iterations counted once: the trip counts, or None for "scanned".
_seen: Bounded[tuple[Any, ...], tuple[int, ...] | None] = Bounded(256)


def scan(graph: Graph, sync: Sync) -> Outcome:
    """Scans the iterations of a graph, where their number is known to differ between runs.

    Iterations in which state is written are steps of a loop without a sync: `unsynced_loops` finds them.
    """
    if not config.scan_iterations or not config.loop_search_ops or len(graph.nodes) < stretches.FEWEST_ITERATIONS * 4:
        return ""
    iterations = isomorphic_runs(graph.nodes)
    in_iterations = {node for found in iterations for node in graph.nodes[found.run.start : found.run.stop]}
    if not iterations or not in_iterations.isdisjoint(sync.written):
        return ""
    key = (sync.line.code, sync.line.number, *isomorphic.collapsed(graph.nodes, iterations))
    counts = tuple(found.run.iterations for found in iterations)
    if key not in _seen.rows:
        _seen.keep(key, counts)
    if _seen.rows[key] == counts:
        return ""
    spread = None
    try:
        spread = _ScannedIterations(graph, iterations)
        result = spread.graph()
    except NoRule as why:
        return refusal(graph.nodes[0] if spread is None else spread.at, why)
    _seen.keep(key, None)
    what = f"{len(iterations)} loops with a dynamic trip count"
    return Changed(result, what, lambda graph: _scanned_again(graph, sync))


def _scanned_again(graph: Graph, sync: Sync) -> Graph:
    result = scan(graph, sync._replace(written=()))
    return result.graph if isinstance(result, Changed) else graph


class _Op(NamedTuple):
    """An op of an iteration: the sources of its operands, how its scalar arguments change, and its recorded op."""

    op: OpSpec
    sources: Sequence[Source]
    steps: Sequence[Step]
    like: Node


class _ScannedIterations(Spread):
    """Builds a graph with its iterations as loops."""

    def __init__(self, graph: Graph, iterations: Sequence[Iterations]):
        super().__init__(Sources({}, {}))
        self.old = graph
        self.iterations = iterations
        self.at = graph.nodes[0]
        self.copies: dict[DeviceData, DeviceData] = {}  # copies that fill up a stack, with their originals
        # By op inside a run: the run, the iteration and the op's place in it. By (run, op, result): the loop's result,
        # and whether it is the last iteration's alone.
        self.place: dict[Node, tuple[int, int, int]] = {}
        self.ys: dict[tuple[int, int, int], tuple[Value, bool]] = {}
        self.row_pads: dict[tuple[int, int, int], Pads] = {}
        for number, found in enumerate(iterations):
            run = found.run
            for place in range(run.start, run.stop):
                self.place[graph.nodes[place]] = (number, *divmod(place - run.start, run.period))
        self.columns = columns_of([row for found in iterations for row in found.xs if type(row[0]) is DeviceData])
        # By device data: its stack group and its row there; the stacks by group, once an op reads them.
        self.column_of = {
            device_data: (i, k) for i, column in enumerate(self.columns) for k, device_data in enumerate(column)
        }
        self.stacks: dict[int, Node] = {}
        self.lengths = self._lengths()
        counts = [len(column) for column in self.columns] + [found.run.iterations for found in iterations]
        self.most = capacity_of(max([*self.lengths, *counts]), LEAST_ITERATIONS)
        # A peeled iteration has dynamic starts, too.
        self.moved = {result for found in iterations for result in isomorphic.dynamic_starts_in(graph.nodes, found.run)}
        self.bases = [node.operands[0] for node in graph.nodes if node.op.name in _SCATTERS]

    def capacity(self, length: int) -> int:
        return self.most

    def graph(self) -> Graph:
        """Returns the new graph."""
        alone = [device_data for device_data in self.old.inputs if device_data not in self.column_of]
        sources = {device_data: (dim,) for device_data in alone if (dim := self._dynamic_dim(device_data)) is not None}
        begun = {node: dims for node in self.old.nodes if (dims := self._begins(node))}
        self.sources = Sources(begun, sources)
        starts = {found.run.start: number for number, found in enumerate(self.iterations)}
        place = 0
        while place < len(self.old.nodes):
            self.at = self.old.nodes[place]
            if place in starts:
                self._loop(starts[place])
                place = self.iterations[starts[place]].run.stop
            else:
                if not self._join(self.at):
                    self.take(self.at)
                place += 1
        for root in self.old.roots:
            maker = walks.origin(root)
            if maker is not None and self.pads_of(root):
                self.at = maker
                raise NoRule("makes a result that is kept at its own length")
        roots = [self.now(root) for root in self.old.roots]
        return self._with_inputs(dataclasses.replace(self.old, nodes=self.nodes, roots=roots))

    def _with_inputs(self, graph: Graph) -> Graph:
        """Returns the graph with its inputs in the order in which the new ops read them."""
        old = self.old
        named = {self.data.get(device_data, device_data): i for i, device_data in enumerate(old.inputs)}
        read = [operand for node in graph.nodes for operand in node.operands if type(operand) is DeviceData]
        inputs = list(dict.fromkeys([*read, *named]))
        copied = set(self.copies.values())
        shardings, donated, onto = [], [], []
        for device_data in inputs:
            like = self.copies.get(device_data, device_data)
            shardings.append(old.shardings[named[like]] if like in named else old.mesh)
            is_old = device_data in named and device_data not in copied
            donated.append(is_old and old.donated[named[device_data]])
            onto.append(old.onto[named[device_data]] if is_old else None)
        return dataclasses.replace(graph, inputs=inputs, shardings=shardings, donated=tuple(donated), onto=onto)

    # Dims as long as the trip count.

    def _lengths(self) -> set[int]:
        found: set[int] = set()
        for node in self.old.nodes:
            if node.op.name in ("aten.cat", "aten.stack") and self._rows_in(node) is not None:
                joined, part = node.meta.shape, node.operands[0].meta.shape
                found |= {size for size in joined if size not in part} if node.op.name == "aten.cat" else set()
                found |= {len(node.operands)} if node.op.name == "aten.stack" else set()
            elif node in self.place and node.op.dynamic_start is not None and self.place[node][1] == 0:
                found |= set(isomorphic.taken(node))
        counts = [iterations.run.iterations for iterations in self.iterations]
        return {size for size in found if any(0 <= size - count <= _MOST_PEELED for count in counts)}

    def _dynamic_dim(self, device_data: DeviceData) -> int | None:
        if device_data.host is None or device_data.is_state:
            return None
        return next((dim for dim, size in enumerate(device_data.meta.shape) if size in self.lengths and size > 1), None)

    def _begins(self, node: Node) -> tuple[int, ...]:
        return () if node.op.constant is not None and node not in self.bases else begins_at(node, self.lengths)

    # Values.

    def pads_of(self, value: Value) -> Pads:
        """Returns the padded dims of a value of the old graph."""
        maker = walks.origin(value)
        if maker in self.place:
            number, _, offset = self.place[maker]
            return self.row_pads[number, offset, walks.result_index(value)]
        return super().pads_of(value)

    def now(self, value: Value) -> Value:
        """Returns the new graph's value for one of the old graph; for a result of an iteration, a row of the ys."""
        if type(value) is DeviceData and value in self.column_of:
            column, place = self.column_of[value]
            return self._row_at(value, self._stack(column, self.at), place, self.at)
        maker = walks.origin(value)
        if maker not in self.place:
            return super().now(value)
        assert maker is not None
        number, iteration, offset = self.place[maker]
        kept, is_last = self.ys[number, offset, walks.result_index(value)]
        return kept if is_last else self._row_at(value, kept, iteration, maker)

    def _row_at(self, value: Value, rows: Value, place: int, like: Node) -> Value:
        """Returns one row of a stack as a value."""
        key = walks.value_name(value)
        if key not in self.made:
            meta = dense_meta(rows.meta.shape[1:], rows.meta.dtype)
            op = OpSpec.of("spmd.row", TakeRow(), (meta,), (rows.meta,), numbers="i", statics=PADDED)
            self.made[key] = self.new(op, [rows], (place,), like)
        return self.made[key]

    def _stack(self, column: int, like: Node) -> Node:
        """Returns the stack of a group's data, filled up with copies of the last row."""
        if column not in self.stacks:
            inputs = self.columns[column]
            more = [_copy(inputs[-1]) for _ in range(self.most - len(inputs))]
            self.copies |= dict.fromkeys(more, inputs[-1])
            meta = inputs[0].meta
            rows = dense_meta((self.most, *meta.shape), meta.dtype)
            op = OpSpec.of("spmd.stack", Stack(), (rows,), (meta,) * self.most, statics=PADDED)
            self.stacks[column] = self.new(op, [*inputs, *more], (), like)
        return self.stacks[column]

    # Loops.

    def _loop(self, number: int) -> None:
        found = self.iterations[number]
        run = found.run
        capacity = self.most
        nodes = self.old.nodes
        for value in (*found.sames, *found.inits):
            self.lengthen(value, nodes[run.start])
        sames, inits = [self.now(value) for value in found.sames], [self.now(value) for value in found.inits]
        same_pads = [self.pads_of(value) for value in found.sames]
        init_pads = [self.pads_of(value) for value in found.inits]
        rows, row_pads, starts, steps = [], [], [], []
        for row in found.xs:
            value, pads, start, step = self._rows(row, nodes[run.start])
            rows.append(value)
            row_pads.append(pads)
            starts.append(start)
            steps.append(step)
        body, numbers, vectors, pads_made = self._body(found, capacity, same_pads, init_pads, row_pads)
        for (offset, result), pads in zip(found.carry, init_pads, strict=True):
            if pads_made[offset][result] != pads:
                raise NoRule("carries a value whose length changes")
        keeps = sorted(self._keeps(number).items(), key=lambda item: (not item[1], item[0]))  # the last ones first
        kept = [(offset, result) for (offset, result), _ in keeps]
        num_last = sum(is_last for _, is_last in keeps)
        operands = [*sames, *inits, *rows, *vectors]
        region = _region(found, body, [*found.carry, *kept], operands, len(sames) + len(inits), len(rows))
        loop = Loop(
            region, capacity, len(sames), len(inits), (True,) * (len(rows) + len(vectors)),
            (regions.STACK,) * (len(kept) - num_last), tuple(step for op in body for step in op.steps),
            num_last=num_last, x_steps=(*steps, *[1] * len(vectors)),
        )  # fmt: skip
        op = regions.loop_op("spmd.loop", loop, [operand.meta for operand in operands], statics=PADDED)
        starts += [0] * len(vectors)
        node = self.new(op, operands, [run.iterations, *starts, *numbers], nodes[run.stop - 1])
        for index, ((offset, result), is_last) in enumerate(keeps, len(inits)):
            self.row_pads[number, offset, result] = pads_made[offset][result]
            self.ys[number, offset, result] = (TupleElement(node, index) if len(op.metas) > 1 else node, is_last)

    def _keeps(self, number: int) -> dict[tuple[int, int], bool]:
        """Returns the results of a loop that are read outside, each with whether only the last iteration's is."""
        found: dict[tuple[int, int], bool] = {}
        last = self.iterations[number].run.iterations - 1
        scanned = set(self.place)

        def reads(value: Value) -> None:
            maker = walks.origin(value)
            if maker in self.place and self.place[maker][0] == number:
                _, iteration, offset = self.place[maker]
                key = offset, walks.result_index(value)
                found[key] = found.get(key, True) and iteration == last

        for node in self.old.nodes:
            if node not in scanned or self.place[node][0] != number:
                for operand in node.operands:
                    reads(operand)
        for root in self.old.roots:
            reads(root)
        return dict(sorted(found.items()))

    def _rows(self, row: Any, like: Node) -> tuple[Value, Pads, int, int]:
        """Returns xs of a loop, with their padding, first row and step: the ys of another loop, or stacked data."""
        if type(row[0]) is DeviceData:
            (column, first), (_, second) = self.column_of[row[0]], self.column_of[row[1]]
            return self._stack(column, like), {}, first, second - first
        number, offset, result, first, step = row
        kept, is_last = self.ys[number, offset, result]
        assert not is_last, "xs are ys of the other loop"
        return kept, self.row_pads[number, offset, result], first, step

    def _body(
        self, found: Iterations, capacity: int, same_pads: list[Pads], init_pads: list[Pads], row_pads: list[Pads]
    ) -> tuple[list[_Op], list[float | int], list[DeviceData], list[tuple[Pads, ...]]]:
        """Returns the ops of an iteration on padded operands, and their scalar arguments, as many for any trip count:
        numbers that change by a constant step as the first of them, others as data."""
        run, nodes = found.run, self.old.nodes
        body: list[_Op] = []
        numbers: list[float | int] = []
        vectors: list[DeviceData] = []
        result: list[tuple[Pads, ...]] = []
        for offset, sources in enumerate(found.sources):
            iteration = [nodes[run.start + offset + run.period * i] for i in range(run.iterations)]
            ops, lists = [], []
            for node in iteration:
                dynamic_start = node.op.dynamic_start if any(node.op is not other.op for other in iteration) else None
                ops.append(node.op if dynamic_start is None else dynamic_start[0])
                lists.append(node.numbers if dynamic_start is None else (dynamic_start[1], *node.numbers))
            if any(op is not ops[0] for op in ops):
                raise NoRule("differs from iteration to iteration")
            self.at, op = iteration[0], ops[0]
            if op.sharding is not None:
                raise NoRule("annotates a result of an iteration")
            pads = [_pads(source, result, same_pads, init_pads, row_pads) for source in sources]
            before: tuple[int, ...] = ()
            results: tuple[Pads, ...] = ({},) * len(op.metas)
            begins = {} if any(pads) else dict.fromkeys(self._begins(iteration[0]), self.most)
            if any(pads) or begins:
                op, results, before = padded_op(op, pads, begins)
            own: list[Step] = [0] * len(before)
            numbers += before
            for kind, column in zip(op.numbers[len(before) :], zip(*lists, strict=True), strict=True):
                steps = {later - earlier for earlier, later in itertools.pairwise(column)}
                step = steps.pop() if len(steps) == 1 else None
                if step == 0 or (step is not None and kind == "i"):
                    own.append(int(step))
                    numbers.append(column[0])
                else:
                    dtype = np.float64 if kind == "f" else np.int64
                    array = np.zeros(capacity, dtype)
                    array[: run.iterations] = column
                    device_data = DeviceData(dense_meta((capacity,), _VECTORS[kind]), host=array)
                    own.append(OfX(len(row_pads) + len(vectors)))
                    vectors.append(device_data)
            body.append(_Op(op, sources, own, iteration[0]))
            result.append(results)
        return body, numbers, vectors, result

    # Stacks of all iterations.

    def _rows_in(self, node: Node) -> tuple[int, int, tuple[int, int, int]] | None:
        """Returns the places (from, to) of operands that are one result in all iterations of a run, and that result."""
        for at, operand in enumerate(node.operands):
            maker = walks.origin(operand)
            if maker in self.place and self.place[maker][1] == 0:
                number, _, offset = self.place[maker]
                count = self.iterations[number].run.iterations
                result = walks.result_index(operand)
                wanted = [(number, iteration, offset) for iteration in range(count)]
                given = node.operands[at : at + count]
                if [self.place.get(walks.origin(value)) for value in given] == wanted and all(  # type: ignore[arg-type]
                    walks.result_index(value) == result for value in given
                ):
                    return at, at + count, (number, offset, result)
        return None

    def _join(self, node: Node) -> bool:
        """Replaces a `stack` or `cat` of one result in all iterations by the loop's ys. Returns False for other ops."""
        found = self._rows_in(node) if node.op.name in ("aten.cat", "aten.stack") else None
        if found is None:
            return False
        start, stop, which = found
        rows, _ = self.ys[which]
        before, after = node.operands[:start], node.operands[stop:]
        part, result = node.operands[start].meta.shape, node.meta.shape
        is_stack = node.op.name == "aten.stack"
        dims = [dim for dim in range(len(result)) if is_stack or result[dim] != part[dim]]
        dim = next((dim for dim in dims if not is_stack or (*result[:dim], *result[dim + 1 :]) == part), None)
        if dim is None or self.row_pads[which] or (not is_stack and part[dim] != 1):
            raise NoRule("joins results of the iterations")
        capacity = rows.meta.shape[0] + len(before) + len(after)
        meta = padded_meta(node.meta, {dim: capacity})
        operands = [*map(self.now, before), rows, *map(self.now, after)]
        if any(self.pads_of(value) for value in (*before, *after)):
            raise NoRule("joins padded values")
        joined = Join(dim, is_stack, len(before), len(after))
        op = OpSpec.of(
            node.op.name, joined, (meta,), tuple(operand.meta for operand in operands), numbers="i", statics=PADDED
        )
        self.made[node] = self.new(op, operands, (stop - start,), node)
        self.pads[node] = {dim: capacity}
        return True


def _region(
    found: Iterations, body: Sequence[_Op], wanted: Sequence[tuple[int, int]], operands: Sequence[Value], fixed: int,
    num_rows: int,
) -> Region:  # fmt: skip
    """Returns the body of a loop: its inputs are the first `fixed` operands, and a row of each of the others."""
    metas = [operand.meta if i < fixed else _row_meta(operand.meta) for i, operand in enumerate(operands)]
    inputs = [DeviceData(meta, is_abstract=True) for meta in metas]
    start: dict[type, int] = {Const: 0, Carry: len(found.sames), Xs: fixed}
    nodes: list[Node] = []

    def value_of(which: int, result: int) -> Value:
        node = nodes[which]
        return TupleElement(node, result) if len(node.op.metas) > 1 else node

    for op, sources, steps, like in body:
        given = [
            value_of(*source) if isinstance(source, Local) else inputs[start[type(source)] + source.slot]
            for source in sources
        ]
        nodes.append(Node(op, tuple(given), (0,) * len(steps), like.code, like.instruction, like.sequence))
    return Region(nodes, inputs, [value_of(*result) for result in wanted])


def _row_meta(meta: Meta) -> Meta:
    return dense_meta(meta.shape[1:], meta.dtype)


_VECTORS = {"f": torch.float64, "i": torch.int64}
# Ops that write into zeros which autograd has made for them.
_SCATTERS = ("aten.scatter_add", "aten.index_put")


def _copy(device_data: DeviceData) -> DeviceData:
    if device_data.host is not None:
        return DeviceData(device_data.meta, host=device_data.host, sharding=device_data.sharding)
    buffer, sharding = device_data.placed()
    return DeviceData(device_data.meta, buffer=buffer, sharding=sharding)


def _pads(
    source: Source, made: Sequence[tuple[Pads, ...]], sames: list[Pads], inits: list[Pads], rows: list[Pads]
) -> Pads:
    if isinstance(source, Local):
        return made[source.place][source.result]
    outside: dict[type, list[Pads]] = {Const: sames, Carry: inits, Xs: rows}
    return outside[type(source)][source.slot]
