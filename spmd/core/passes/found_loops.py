"""Stretches of isomorphic iterations become ops: the graph with a loop in place of each."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..graph.graph import Graph, Node, TupleElement, Value, origin, results, value_name
from ..graph.loops import PUT_ROW, Candidate
from ..graph.meta import dense_meta
from ..graph.op import OpSpec
from ..loop.found_loop import found_loop
from ..loop.row_ops import PutRow, TakeRows
from .rewrite import Rewrite


def with_loops(graph: Graph, candidates: Sequence[Candidate]) -> Graph:
    """Returns the graph with these stretches, which do not overlap, as ops."""
    return _WithLoops(graph, candidates).made()


@dataclasses.dataclass(slots=True)
class _Stack:
    """The stack of a y, with room for values from outside: by row, the name of the value; the rows that are there."""

    names: dict[int, Any]
    rows: list[int]


class _WithLoops(Rewrite):
    """Rebuilds a graph with stretches of it as ops."""

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        super().__init__(graph)
        self.starts = {candidate.start: candidate for candidate in candidates}
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.over = {
            value_name(graph.roots[i]): device_data
            for device_data, i in zip(graph.inputs, graph.onto, strict=False)
            if i is not None
        }
        self.late: defaultdict[Node, list[tuple[_Stack, int]]] = defaultdict(list)  # rows that an op makes later

    def made(self) -> Graph:
        """Returns the new graph."""
        end = 0
        for index, node in enumerate(self.old.nodes):
            if index in self.starts:
                self._loop(self.starts[index])
                end = self.starts[index].stop
            elif index >= end:
                self._copy(node)
        return self.graph()

    def _copy(self, node: Node) -> None:
        self.copy(node)
        for stack, row in self.late.get(node, ()):
            self._put(stack, row, node)

    def _loop(self, candidate: Candidate) -> None:
        self._early(candidate)
        first = candidate.nodes[candidate.start]

        def is_before(value: Value) -> bool:
            maker = origin(value)
            return maker is None or self.position[maker] < candidate.start

        found = found_loop(candidate, self.over, is_before)
        numbers = [self.numbers[candidate.node(iteration, place)][k] for place, iteration, k in found.numbers]
        body = [self.old.sources.get(node, (node,))[0] for node in found.body]
        result = results(self.add(found.op, found.operands, first, numbers, body))
        self.now |= {name: result[index] for name, index in found.results.items()}
        for y, names, late in found.stacks:
            stack = _Stack(names, y.rows_of(candidate.iterations))
            for row, value in late.items():
                stack.names[row] = value_name(value)
                maker = origin(value)
                assert maker is not None, "data is there before"
                self.late[maker].append((stack, row))

    def _early(self, candidate: Candidate) -> None:
        """Adds the ops of all iterations that have another start in each and read no result of the loop."""
        taken: set[int] = set()
        for place in sorted(candidate.early):
            nodes, positions = candidate.at(place), candidate.positions(place)
            operands = {value_name(node.operands[0]) for node in nodes if node.operands}
            assert positions is not None, "its start differs between iterations"
            rows = TakeRows.of(nodes[0].op, positions)
            if rows is not None and len(operands) == 1 and not nodes[0].numbers:
                metas = (dense_meta(nodes[0].meta.shape, nodes[0].meta.dtype),) * len(nodes)
                op = OpSpec.of("spmd.rows", rows, metas, (nodes[0].operands[0].meta,))
                self.replace(nodes, self.add(op, nodes[0].operands[:1], nodes[0]))
                taken.add(place)
        for place in range(candidate.start, candidate.stop):
            at = (place - candidate.start) % candidate.period
            if at in candidate.early and at not in taken:
                self._copy(candidate.nodes[place])

    def _put(self, stack: _Stack, row: int, node: Node) -> None:
        """Adds an op that writes a value into its row of a stack."""
        values = [self.now[stack.names[at]] for at in stack.rows]
        new = self.now[stack.names[row]]
        rows = sorted([*stack.rows, row])
        put = PutRow(row, rows.index(row))
        meta = dense_meta(new.meta.shape, new.meta.dtype)
        op = OpSpec.of(PUT_ROW, put, (meta,) * len(rows), tuple(value.meta for value in (*values, new)))
        result = self.add(op, (*values, new), node)
        stack.rows = rows
        self.now |= {stack.names[at]: TupleElement(result, index) for index, at in enumerate(rows)}
