"""Stretches of isomorphic iterations become ops: the graph with a loop in place of each."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..ir.graph import Graph, Node, TupleElement, Value, origin, results, value_name
from ..ir.loops import PUT_ROW, Candidate
from ..ir.meta import dense_meta
from ..ir.op import OpSpec
from ..lower.found_loop import found_loop
from ..lower.row_ops import PutRow, TakeRows


def with_loops(graph: Graph, candidates: Sequence[Candidate]) -> Graph:
    """Returns the graph with these stretches, which do not overlap, as ops.

    All its nodes are new: their scalar arguments are places among those of the recorded ops.
    """
    return _Rewrite(graph, candidates).graph()


@dataclasses.dataclass(slots=True)
class _Stack:
    """The stack of a y, with room for values from outside: by row, the name of the value; the rows that are there."""

    names: dict[int, Any]
    rows: list[int]


class _Rewrite:
    """Makes the nodes of the new graph in order."""

    def __init__(self, graph: Graph, candidates: Sequence[Candidate]):
        self.old = graph
        self.starts = {candidate.start: candidate for candidate in candidates}
        self.position = {node: place for place, node in enumerate(graph.nodes)}
        self.over = {
            value_name(graph.roots[i]): device_data
            for device_data, i in zip(graph.inputs, graph.onto, strict=False)
            if i is not None
        }
        self.numbers = _places_of_numbers(graph.nodes)
        self.nodes: list[Node] = []
        self.sources: dict[Node, Sequence[Node]] = {}
        self.now: dict[Any, Value] = {}  # by the name of a value of the old graph
        self.late: defaultdict[Node, list[tuple[_Stack, int]]] = defaultdict(list)  # rows that an op makes later

    def graph(self) -> Graph:
        end = 0
        for place, node in enumerate(self.old.nodes):
            if place in self.starts:
                self._loop(self.starts[place])
                end = self.starts[place].stop
            elif place >= end:
                self._copy(node)
        roots = list(map(self._value, self.old.roots))
        return dataclasses.replace(
            self.old, nodes=self.nodes, roots=roots, recorded=self.old.recorded or self.old, sources=self.sources
        )

    def _value(self, value: Value) -> Value:
        return value if origin(value) is None and value not in self.now else self.now[value_name(value)]

    def _copy(self, node: Node) -> None:
        made = self._add(node.op, node.operands, self.numbers[node], node, (node,))
        self.now |= zip(map(value_name, results(node)), results(made), strict=True)
        for stack, row in self.late.get(node, ()):
            self._put(stack, row, node)

    def _add(
        self, op: OpSpec, operands: Sequence[Value], numbers: Sequence[int], like: Node, sources: Sequence[Node]
    ) -> Node:
        made = Node(op, tuple(map(self._value, operands)), numbers, like.code, like.instruction, like.sequence)
        self.nodes.append(made)
        self.sources[made] = sources
        return made

    def _loop(self, candidate: Candidate) -> None:
        self._early(candidate)
        first = candidate.nodes[candidate.start]

        def is_before(value: Value) -> bool:
            maker = origin(value)
            return maker is None or self.position[maker] < candidate.start

        found = found_loop(candidate, self.over, is_before)
        numbers = [self.numbers[candidate.node(iteration, place)][k] for place, iteration, k in found.numbers]
        made = results(self._add(found.op, found.operands, numbers, first, found.body))
        self.now |= {name: made[index] for name, index in found.results.items()}
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
                made = self._add(op, nodes[0].operands[:1], (), nodes[0], nodes[:1])
                self.now |= zip(nodes, results(made), strict=True)
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
        made = Node(op, (*values, new), (), node.code, node.instruction, node.sequence)
        self.nodes.append(made)
        self.sources[made] = (node,)
        stack.rows = rows
        self.now |= {stack.names[at]: TupleElement(made, index) for index, at in enumerate(rows)}


def _places_of_numbers(nodes: Sequence[Node]) -> dict[Node, list[int]]:
    """Returns the places of the scalar arguments of each op among the floats and among the integers of all."""
    count = {"f": 0, "i": 0}
    found: dict[Node, list[int]] = {}
    for node in nodes:
        found[node] = places = []
        for kind in node.op.numbers if node.numbers else "":
            places.append(count[kind])
            count[kind] += 1
    return found
