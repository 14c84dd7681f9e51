"""Loops in place of isomorphic stretches of a graph, and values that are computed before a loop
begins.

XLA may defer a computation that no loop needs until the loop has ended. For the gradient of a
language model's LM head, a product that reads all logits and is read by the optimizer alone, that
keeps the logits while all layers run backward.
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ..graph.graph import Graph, Name, Node, TupleElement, Value, origin, results, value_name
from ..graph.meta import dense_meta
from ..graph.op import OpSpec
from ..graph.rewrite import Rewrite, Rule, rewrite
from ..loop.found_loop import Candidate, found_loop, written_over
from ..loop.loop_op import Loop
from ..loop.row_ops import PUT_ROW, WAIT, PutRow, TakeRows, WaitForAll
from ..lower.lower import FOUND_LOOP


def with_loops(graph: Graph, candidates: Sequence[Candidate]) -> Graph:
    """Returns the graph with one loop op in place of each of these stretches, which do not
    overlap."""
    loops = _Loops(graph)
    for candidate in candidates:
        first, *rest_of_loop = graph.nodes[candidate.start : candidate.stop]
        loops.rules |= {
            first: partial(loops.loop, candidate),
            **dict.fromkeys(rest_of_loop, Rewrite.drop),
        }
    return rewrite(graph, loops.rules)


class _Loops:
    """The rules that put loops in the place of stretches of a graph, and later values into the
    stacks of their ys."""

    def __init__(self, graph: Graph):
        self.rules: dict[Node, Rule] = {}
        self.position = {node: index for index, node in enumerate(graph.nodes)}
        self.over = written_over(graph)

    def loop(self, candidate: Candidate, new: Rewrite, first_op: Node) -> None:
        """Adds the loop of a candidate."""
        self._add_early(candidate, new)

        def is_before(value: Value) -> bool:
            maker = origin(value)
            return maker is None or self.position[maker] < candidate.start

        loop = found_loop(candidate, self.over, is_before)
        numbers = [
            new.numbers[candidate.node(iteration, i)][number_index]
            for i, iteration, number_index in loop.numbers
        ]
        body = [new.old.sources.get(node, (node,))[0] for node in loop.body]
        loop_results = results(new.add(loop.op, loop.operands, first_op, numbers, body))
        new.new_values |= {name: loop_results[index] for name, index in loop.results.items()}
        # Later values of a stack are written into it where they are computed.
        for y, names, late in loop.stacks:
            rows = y.rows_of(candidate.iterations)
            for row, value in late.items():
                maker = origin(value)
                assert maker is not None, "data is there before"
                self.rules[maker] = partial(
                    _put, self.rules.get(maker, Rewrite.copy), names, rows, row
                )

    def _add_early(self, candidate: Candidate, new: Rewrite) -> None:
        """Adds, for all iterations, the ops whose dynamic start differs per iteration and that read
        no result of the loop."""
        sliced_indices: set[int] = set()
        for index in sorted(candidate.early):
            nodes, positions = candidate.ops_at(index), candidate.positions(index)
            operand_names = {value_name(node.operands[0]) for node in nodes if node.operands}
            assert positions is not None, "its start differs between iterations"
            # Slices of one array, side by side, are one op whose results are rows.
            rows = TakeRows.of(nodes[0].op, positions)
            if rows is not None and len(operand_names) == 1 and not nodes[0].numbers:
                metas = (dense_meta(nodes[0].meta.shape, nodes[0].meta.dtype),) * len(nodes)
                op = OpSpec.of("spmd.rows", rows, metas, (nodes[0].operands[0].meta,))
                new.replace(nodes, new.add(op, nodes[0].operands[:1], nodes[0]))
                sliced_indices.add(index)
        for index in range(candidate.start, candidate.stop):
            op_index = (index - candidate.start) % candidate.period
            if op_index in candidate.early and op_index not in sliced_indices:
                new.copy(candidate.nodes[index])


def _put(
    rule: Rule, names: Mapping[int, Name], rows: list[int], row: int, new: Rewrite, node: Node
) -> None:
    """Adds an op by its rule, and a second op that writes the result into a row of a y's stack.

    names: the names of the stack's values, by row. rows: the rows that are filled so far; the new
    row is added.
    """
    rule(new, node)
    value = new.new_values[names[row]]
    operands = *(new.new_values[names[known_row]] for known_row in rows), value
    bisect.insort(rows, row)
    meta = dense_meta(value.meta.shape, value.meta.dtype)
    op = OpSpec.of(
        PUT_ROW,
        PutRow(row, rows.index(row)),
        (meta,) * len(rows),
        tuple(operand.meta for operand in operands),
    )
    put_row = new.add(op, operands, node)
    new.new_values |= {
        names[known_row]: TupleElement(put_row, index) for index, known_row in enumerate(rows)
    }


class _Hoisted(NamedTuple):
    """values: the late values that are computed before a loop begins. ops: the ops behind the loop
    that are moved in front of it with them."""

    values: list[Value]
    ops: list[Node]


def hoist(graph: Graph) -> tuple[Graph, str]:
    """Returns the graph with `late_values` computed before its loops, and their number, in words.
    An op in front of a loop waits for the values and for the carry."""
    hoisted = late_values(graph)
    if not hoisted:
        return graph, ""
    rules: dict[Node, Rule] = {loop: partial(_wait, late) for loop, late in hoisted.items()}
    rules |= dict.fromkeys((node for late in hoisted.values() for node in late.ops), Rewrite.drop)
    return rewrite(
        graph, rules
    ), f", {sum(len(late.values) for late in hoisted.values())} values before them"


def _wait(late: _Hoisted, new: Rewrite, node: Node) -> None:
    """Adds the ops of late values, an op that waits for them and for the carry of a loop, and the
    loop."""
    for op in late.ops:
        new.copy(op)
    loop = node.op.lowering
    assert isinstance(loop, Loop)
    carry = node.operands[loop.num_constants : loop.num_before_xs]
    entering = {value_name(value): value for value in (*late.values, *carry)}
    metas = tuple(value.meta for value in entering.values())
    wait = OpSpec.of(WAIT, WaitForAll(), metas, metas)
    new.replace(
        entering.values(), new.add(wait, entering.values(), node, (), new.old.sources[node][:1])
    )
    new.copy(node)


def late_values(graph: Graph) -> dict[Node, _Hoisted]:
    """Returns the late values of each loop with a carry that are smaller than their operands:
    computed after the loop, they would keep the operands alive."""
    loops = [(index, node) for index, node in enumerate(graph.nodes) if _has_carry(node)]
    outside = {node for node in graph.nodes if node.op.name != FOUND_LOOP}
    readers = _readers(graph, outside)
    hoisted = {}
    # The late values of a loop stand between the loop before it and itself.
    start = 0
    for loop, node in loops:
        nodes = [
            (index, graph.nodes[index])
            for index in range(start, loop)
            if graph.nodes[index] in outside
        ]
        late = _late(nodes, loop, readers)
        values = [
            value for name, value in late.items() if _saves_memory(name, value, loop, late, readers)
        ]
        if values:
            ends = [_smallest(value, graph, outside, readers) for value in values]
            hoisted[node] = _Hoisted(
                [value for value, _ in ends], [node for _, ops in ends for node in ops]
            )
        start = loop + 1
    return hoisted


def _has_carry(node: Node) -> bool:
    return (
        node.op.name == FOUND_LOOP
        and isinstance(node.op.lowering, Loop)
        and node.op.lowering.num_carried > 0
    )


def _readers(graph: Graph, outside: set[Node]) -> dict[Name, list[int]]:
    """Returns, by name, the places of the readers of values that no loop computes; a result of the
    graph is read behind all ops."""
    readers: defaultdict[Name, list[int]] = defaultdict(list)
    for index, operands in enumerate([*(node.operands for node in graph.nodes), graph.roots]):
        for operand in operands:
            if origin(operand) in outside:
                readers[value_name(operand)].append(index)
    return readers


def _late(
    nodes: Sequence[tuple[int, Node]], loop: int, readers: Mapping[Name, list[int]]
) -> dict[Name, Value]:
    """Returns the results of these ops that the loop does not depend on, by name.

    The results of one op count separately: XLA computes each without the others.
    """
    late: dict[Name, Value] = {}
    late_indices: set[int] = set()
    for index, node in reversed(nodes):
        value_of_name = {value_name(value): value for value in results(node)}
        late_names = {
            name
            for name in value_of_name
            if all(reader > loop or reader in late_indices for reader in readers.get(name, ()))
        }
        late |= {name: value_of_name[name] for name in late_names}
        if len(late_names) == len(value_of_name):
            late_indices.add(index)
    return late


def _saves_memory(
    name: Name,
    value: Value,
    loop: int,
    late: Mapping[Name, Value],
    readers: Mapping[Name, list[int]],
) -> bool:
    """True if a late value is read after a loop and takes fewer bytes than the operands that stay
    in memory until it is computed."""
    if all(reader <= loop for reader in readers.get(name, ())):
        return False
    # Back through the late ops, to the operands that nothing else reads behind the loop.
    visited: set[Name] = set()
    kept_bytes: dict[Name, int] = {}
    pending = [value]
    while pending:
        maker = origin(pending.pop())
        assert maker is not None, "device data is not late"
        for operand in maker.operands:
            operand_name = value_name(operand)
            if operand_name in visited:
                continue
            visited.add(operand_name)
            if operand_name in late:
                pending.append(operand)
            elif all(reader < loop for reader in readers.get(operand_name, (loop,))):
                kept_bytes[operand_name] = operand.meta.nbytes
    return sum(kept_bytes.values()) > value.meta.nbytes


def _smallest(
    value: Value, graph: Graph, outside: set[Node], readers: Mapping[Name, list[int]]
) -> tuple[Value, list[Node]]:
    """Returns the value with the smallest shard among a value and the chain of ops that read it
    alone, and the ops up to there: a gradient is smallest when it is sharded like its weight."""
    ops: list[Node] = []
    # shard_share: the part of the value that one device has.
    shard_share, min_bytes, num_ops = 1.0, float(value.meta.nbytes), 0
    reader_indices = readers.get(value_name(value), ())
    while len(reader_indices) == 1 and reader_indices[0] < len(graph.nodes):
        node = graph.nodes[reader_indices[0]]
        is_plain = len(node.operands) == len(node.op.metas) == 1 and not node.op.lowering.elements
        if node not in outside or not is_plain or node.numbers:
            break  # scalar arguments are assigned in the order of the ops
        if node.op.sharding is not None:
            shard_share = math.prod(node.op.sharding.shard_shape(node.meta.shape)) / max(
                node.meta.numel, 1
            )
        ops.append(node)
        if shard_share * node.meta.nbytes < min_bytes:
            min_bytes, num_ops = shard_share * node.meta.nbytes, len(ops)
        reader_indices = readers.get(node, ())
    return (ops[num_ops - 1], ops[:num_ops]) if num_ops else (value, [])
