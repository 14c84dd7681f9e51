"""Loops over the rows of a stack that is split by rows, as a user's own `for i in range(layers)`
reads `w[i]`: the rows are results of one op, their gradients are operands of one.

As recorded, each row is a slice of the stack, and each gradient of a row a stack of zeros with that
row, which autograd adds up: no two iterations are equal. Here they are, and become a loop.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp

from ..core import DeviceData, Sharding, dense_meta, points
from ..core.extend import (
    Arrays,
    Graph,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Rewrite,
    Spec,
    Value,
    annotations,
    lowerings,
    rewrite,
    row_ops,
    slices,
    stack_rows,
    walks,
)

STACKED = "spmd.stacked"
_PASSED_ON = frozenset({"mark_sharding", "spmd.gather", "spmd.renew", "aten._to_copy"})


@dataclass(frozen=True, slots=True)
class Stacked(Lowering):
    """A stack of `count` rows of which the operands are these; the others are zeros."""

    rows: tuple[int, ...]
    count: int

    def lower(
        self, op: OpSpec, operands: Sequence[Any], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        by_row = dict(zip(self.rows, operands, strict=True))
        (meta,) = op.metas
        empty = jnp.zeros(meta.shape[1:], meta.struct.dtype)
        return (stack_rows.as_stack([by_row.get(row, empty) for row in range(self.count)]),)


stack_rows.TAKE_ROWS.add(Stacked)


def source_of(value: Value) -> tuple[DeviceData, bool] | None:
    """Returns the stack of which a value is a row, or annotations and casts of one, and whether
    the value is a row of it; None for other values."""
    is_row = False
    while (maker := walks.origin(value)) is not None:
        if isinstance(maker.op.lowering, row_ops.TakeRows):
            is_row, value = True, maker.operands[0]
        elif maker.op.name in _PASSED_ON:
            value = maker.operands[walks.result_index(value)]
        else:
            return None
    assert isinstance(value, DeviceData), "no op makes it"
    return value, is_row


def rows_together(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with one op for the rows of each stack that is split by rows, and one for
    their gradients; and the number of these stacks, in words."""
    split = {
        data
        for data, sharding in zip(graph.inputs, graph.shardings, strict=True)
        if sharding.spec.dims and sharding.spec.dims[0].axes and not sharding.spec.stack
    }
    reads = _reads(graph, split) if split else {}
    if not reads:
        return graph, ""
    rules: dict[Node, rewrite.Rule] = {}
    before: defaultdict[Node, list[_Rows]] = defaultdict(list)
    for nodes in reads.values():
        every = [node for of_row in nodes.values() for node in of_row]
        rules |= dict.fromkeys(every, Rewrite.drop)
        # Rows of data are taken in front of all layers, so that these stay equal.
        is_data = isinstance(every[0].operands[0], DeviceData)
        before[graph.nodes[0] if is_data else min(every, key=graph.nodes.index)].append(nodes)
    shapes = {tuple(nodes[0][0].operands[0].meta.shape) for nodes in reads.values()}
    for total in _totals(graph, shapes):
        rules |= total.rules()
    rules |= {
        node: partial(_take_before, stacks, rules.get(node, Rewrite.copy))
        for node, stacks in before.items()
    }
    count = len(reads)
    return rewrite.rewrite(graph, rules), f"rows of {count} stack{'s' * (count > 1)}"


_Rows = dict[int, list[Node]]  # by row, the ops that read it


def _reads(graph: Graph, split: set[DeviceData]) -> dict[Any, _Rows]:
    """Returns the rows of each value that is one of these stacks, or is cast from one, if all of
    them are read."""
    reads: dict[Any, _Rows] = {}
    for node in graph.nodes:
        found = _row_of(node, slices.TakeRun)
        source = source_of(node.operands[0]) if found is not None else None
        if found is not None and source is not None and source[0] in split and not source[1]:
            by_row = reads.setdefault(walks.value_name(node.operands[0]), {})
            by_row.setdefault(found, []).append(node)
    return {
        name: by_row
        for name, by_row in reads.items()
        if len(by_row) == by_row[next(iter(by_row))][0].operands[0].meta.shape[0] > 1
    }


def _row_of(node: Node, kind: type[Any]) -> int | None:
    """Returns the row that an op takes of a stack, or puts in one of zeros; None for other ops."""
    if node.op.dynamic_start is None:
        return None
    moving, start = node.op.dynamic_start
    move = getattr(moving.lowering, "move", None)
    is_row = isinstance(move, kind) and move.run.is_select and not move.run.axis
    return start if is_row else None


def _take_before(stacks: Sequence[_Rows], rule: rewrite.Rule, new: Rewrite, node: Node) -> None:
    """Adds the ops that take all rows of these stacks, and then a node by its rule."""
    for nodes in stacks:
        first = nodes[0][0]
        lowering = row_ops.TakeRows.of(first.op, range(len(nodes)))
        assert lowering is not None, "rows follow each other"
        metas = (dense_meta(first.meta.shape, first.meta.dtype),) * len(nodes)
        op = OpSpec.of("spmd.rows", lowering, metas, (first.operands[0].meta,))
        rows = walks.results(new.add(op, first.operands, first))
        new.new_values |= {read: rows[row] for row, of_row in nodes.items() for read in of_row}
    rule(new, node)


# --- gradients ------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Total:
    """A sum of stacks of zeros with one row each. rows: by op that makes such a stack, its row;
    sharding: of the sum, where an annotation alone reads it."""

    root: Node
    sums: list[Node]
    rows: dict[Node, int]
    sharding: Sharding | None
    values: dict[int, Value] = field(default_factory=dict)  # the rows so far

    def rules(self) -> Mapping[Node, rewrite.Rule]:
        left = Counter(self.rows.values())
        rules: dict[Node, rewrite.Rule] = {}
        for node, row in self.rows.items():
            left[row] -= 1
            rules[node] = partial(self._add, row, not left[row])
        if self.root in self.rows:
            return {}  # a single row
        return rules | dict.fromkeys(self.sums, Rewrite.drop) | {self.root: self._stack}

    def _add(self, row: int, is_last: bool, new: Rewrite, node: Node) -> None:
        """Adds a row's gradient to those of the same row; annotates the last sum as the stack is,
        so that devices sum it as it will lie."""
        (value,) = node.operands
        meta = value.meta
        if row in self.values:
            op = OpSpec.of("aten.add.Tensor", self.root.op.lowering, (meta,), (meta, meta))
            value = new.add(op, (self.values[row], new.value(value)), node)
        if is_last and self.sharding is not None:
            spec = Spec(self.sharding.spec.dims[1:])
            mark = annotations.mark_op(meta, self.sharding.with_spec(spec))
            value = new.add(mark, (value,), node)
        self.values[row] = new.value(value)

    def _stack(self, new: Rewrite, node: Node) -> None:
        rows = sorted(self.values)
        operands = [self.values[row] for row in rows]
        lowering = Stacked(tuple(rows), node.meta.shape[0])
        metas = tuple(operand.meta for operand in operands)
        new.put(node, OpSpec.of(STACKED, lowering, node.op.metas, metas), operands)


def _totals(graph: Graph, shapes: set[tuple[int, ...]]) -> Iterator[_Total]:
    """Yields the sums of rows' gradients in a graph, of stacks with these shapes."""
    readers: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        for operand in node.operands:
            readers.setdefault(walks.value_name(operand), []).append(node)
    roots = set(map(walks.value_name, graph.roots))
    parts: dict[Node, tuple[list[Node], dict[Node, int]]] = {}  # by sum: sums, rows
    for node in graph.nodes:
        row = _row_of(node, slices.Gradient)
        if row is not None and tuple(node.meta.shape) in shapes:
            parts[node] = [], {node: row}
        elif _is_sum(node) and all(
            operand in parts and len(readers[operand]) == 1 and operand not in roots
            for operand in node.operands
        ):
            both = [parts.pop(operand) for operand in node.operands]  # type: ignore[arg-type]
            parts[node] = (
                [*both[0][0], *both[1][0], node],
                both[0][1] | both[1][1],
            )
    order = {node: index for index, node in enumerate(graph.nodes)}
    for root, (sums, rows) in parts.items():
        in_order = {node: rows[node] for node in sorted(rows, key=order.__getitem__)}
        reads = readers.get(root, [])
        marks = [node.op.sharding for node in reads if node.op.name == "mark_sharding"]
        is_marked = len(reads) == len(marks) == 1 and root not in roots
        yield _Total(root, sums, in_order, marks[0] if is_marked else None)


def _is_sum(node: Node) -> bool:
    if node.op.name != "aten.add.Tensor" or len(set(map(id, node.operands))) != 2:
        return False
    call = node.op.lowering
    is_plain = isinstance(call, lowerings.Call) and not node.op.numbers
    return is_plain and dict(call.arguments).get("alpha", 1) == 1  # type: ignore[attr-defined]


points.COMPILE_PASSES.insert(
    [name for name, *_ in points.COMPILE_PASSES].index("scan layers"),
    ("rows of stacks", rows_together, None),
)
