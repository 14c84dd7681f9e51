"""Loops over the rows of a stack that is split by rows, as a user's own `for i in range(layers)`
reads `w[i]`: the rows are results of one op, their gradients are operands of one.

As recorded, each row is a slice of the stack, and each gradient of a row a stack of zeros with that
row, which autograd adds up: no two iterations are equal. Here they are, and become a loop.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
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


def shardings_of(graph: Graph) -> dict[Any, Sharding]:
    """Returns the shardings of weights, by name: of inputs, and of the results that are to be
    sharded so, as an optimizer's step may stand before the layers that read its weights.

    Of a stack of one's own these are parameters: rows of data that are split, such as a batch or a
    sequence, are read by an ordinary loop.
    """
    inputs = list(zip(graph.inputs, graph.shardings, strict=True))
    own = {(data.meta, sharding) for data, sharding in inputs if data.is_state}
    pairs = [*inputs, *zip(graph.roots, graph.pinned, strict=True)]
    return {
        walks.value_name(value): sharding
        for value, sharding in pairs
        if sharding is not None and (sharding.spec.stack or (value.meta, sharding) in own)
    }


def source_of(value: Value, shardings: Mapping[Any, Sharding]) -> tuple[Sharding, bool] | None:
    """Returns the sharding of the value of which a value is annotations, casts or a row, and
    whether it is a row; None where none is known."""
    is_row = False
    while (sharding := shardings.get(walks.value_name(value))) is None:
        maker = walks.origin(value)
        if maker is not None and isinstance(maker.op.lowering, row_ops.TakeRows):
            is_row, value = True, maker.operands[0]
        elif maker is not None and maker.op.name in _PASSED_ON:
            read_as = maker.op.sharding
            if not (is_row or read_as is None or read_as.spec.stack or _is_split(read_as)):
                return None  # gathered for its readers, as FSDP's parameters are
            value = maker.operands[walks.result_index(value)]
        else:
            return None
    return sharding, is_row


def rows_together(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with one op for the rows of each stack that is split by rows, and one for
    their gradients; and the number of these stacks, in words."""
    reads = _reads(graph, shardings_of(graph))
    if not reads:
        return graph, ""
    rules: dict[Node, rewrite.Rule] = {}
    # What is added before an op, and behind the last one.
    before: defaultdict[Node | None, list[_Addition]] = defaultdict(list)
    order = {node: index for index, node in enumerate(graph.nodes)}
    every = [node for by_row in reads.values() for nodes in by_row.values() for node in nodes]
    rules |= dict.fromkeys(every, Rewrite.drop)
    # Where the stacks are there, in front of all layers, so that these stay equal.
    for by_row in reads.values():
        maker = walks.origin(by_row[0][0].operands[0])
        behind_maker = 0 if maker is None else order[maker] + 1
        before[graph.nodes[behind_maker]].append(partial(_take, by_row))
    shapes = {tuple(by_row[0][0].operands[0].meta.shape) for by_row in reads.values()}
    for total in _totals(graph, shapes):
        rules |= total.rules()
        before[total.reader].append(total.stack)
    last = graph.nodes[-1]
    behind = before.pop(None, [])
    additions = {node: list(adds) for node, adds in before.items() if node is not None}
    for node in {*additions, last}:
        rules[node] = partial(
            _with_additions,
            additions.get(node, []),
            rules.get(node, Rewrite.copy),
            behind if node is last else [],
        )
    count = len(reads)
    return rewrite.rewrite(graph, rules), f"rows of {count} stack{'s' * (count > 1)}"


# The shapes of parameters that are split by rows: a later program may read one as an optimizer's
# result, and have the gradients of its rows alone.
_shapes: set[tuple[int, ...]] = set()


def _in_loops(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields the reads of a parameter's rows that follow each other from an end of the stack, as a
    loop over layers reads them, and the gradients of such rows: their places, else operands where
    two programs of a line or two layers differ in them alone, say which layers these are."""
    reads: defaultdict[Any, dict[Node, int]] = defaultdict(dict)
    for node in nodes:
        if (row := _row_of(node, slices.TakeRun)) is not None:
            (stack,) = node.operands
            reads[walks.value_name(stack)][node] = row
            sharding = stack.sharding if isinstance(stack, DeviceData) and stack.is_state else None
            if sharding is not None and _is_split(sharding):
                _shapes.add(tuple(stack.meta.shape))
    for row_of in reads.values():
        rows, shape = set(row_of.values()), next(iter(row_of)).operands[0].meta.shape
        is_run = len(rows) > 1 and max(rows) - min(rows) == len(rows) - 1
        if is_run and (min(rows) == 0 or max(rows) == shape[0] - 1) and tuple(shape) in _shapes:
            yield from row_of
    gradients = {node: _row_of(node, slices.Gradient) for node in nodes}
    of_shape = Counter(tuple(node.meta.shape) for node, row in gradients.items() if row is not None)
    for node, row in gradients.items():
        shape = tuple(node.meta.shape)
        if row is not None and shape in _shapes and of_shape[shape] > 1:
            yield node


points.keeps_start.append(_in_loops)

_Addition = Callable[[Rewrite], None]
_Rows = dict[int, list[Node]]  # by row, the ops that read it


def _reads(graph: Graph, shardings: Mapping[Any, Sharding]) -> dict[Any, _Rows]:
    """Returns the rows of each value that is a stack split by rows, or is cast from one, if all of
    them are read."""
    if not any(map(_is_split, shardings.values())):
        return {}
    reads: dict[Any, _Rows] = {}
    for node in graph.nodes:
        row = _row_of(node, slices.TakeRun)
        source = None if row is None else source_of(node.operands[0], shardings)
        if row is not None and source is not None and _is_split(source[0]) and not source[1]:
            reads.setdefault(walks.value_name(node.operands[0]), {}).setdefault(row, []).append(
                node
            )
    return {
        name: by_row
        for name, by_row in reads.items()
        if len(by_row) == by_row[next(iter(by_row))][0].operands[0].meta.shape[0] > 1
    }


def _is_split(sharding: Sharding) -> bool:
    dims = sharding.spec.dims
    return bool(dims and dims[0].axes) and not sharding.spec.stack


def _row_of(node: Node, kind: type[Any]) -> int | None:
    """Returns the row that an op takes of a stack, or puts in one of zeros; None for other ops."""
    if node.op.dynamic_start is None:
        return None
    moving, start = node.op.dynamic_start
    move = getattr(moving.lowering, "move", None)
    is_row = isinstance(move, kind) and move.run.is_select and not move.run.axis
    return start if is_row else None


def _with_additions(
    before: Sequence[_Addition],
    rule: rewrite.Rule,
    behind: Sequence[_Addition],
    new: Rewrite,
    node: Node,
) -> None:
    """Adds a node by its rule, and what is added before and behind it."""
    for add in before:
        add(new)
    rule(new, node)
    for add in behind:
        add(new)


def _take(nodes: _Rows, new: Rewrite) -> None:
    """Adds the op that takes all rows of a stack."""
    first = nodes[0][0]
    lowering = row_ops.TakeRows.of(first.op, range(len(nodes)))
    assert lowering is not None, "rows follow each other"
    metas = (dense_meta(first.meta.shape, first.meta.dtype),) * len(nodes)
    op = OpSpec.of("spmd.rows", lowering, metas, (first.operands[0].meta,))
    rows = walks.results(new.add(op, first.operands, first))
    new.new_values |= {read: rows[row] for row, of_row in nodes.items() for read in of_row}


# --- gradients ------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Total:
    """A sum of stacks of zeros with one row each. rows: by op that makes such a stack, its row;
    mark: the annotation that alone reads the sum; reader: the first op that reads either."""

    root: Node
    sums: list[Node]
    rows: dict[Node, int]
    mark: Node | None
    reader: Node | None
    values: dict[int, Value] = field(default_factory=dict)  # the rows so far

    def rules(self) -> Mapping[Node, rewrite.Rule]:
        left = Counter(self.rows.values())
        rules: dict[Node, rewrite.Rule] = {}
        for node, row in self.rows.items():
            left[row] -= 1
            rules[node] = partial(self._add, row, not left[row])
        dropped = [*self.sums, *([] if self.mark is None else [self.mark])]
        return rules | dict.fromkeys(dropped, Rewrite.drop)

    def _add(self, row: int, is_last: bool, new: Rewrite, node: Node) -> None:
        """Adds a row's gradient to those of the same row; annotates the last sum as the stack is,
        so that devices sum it as it will lie."""
        (value,) = node.operands
        meta = value.meta
        if row in self.values:
            op = OpSpec.of("aten.add.Tensor", self.root.op.lowering, (meta,), (meta, meta))
            value = new.add(op, (self.values[row], new.value(value)), node)
        sharding = None if self.mark is None else self.mark.op.sharding
        if is_last and sharding is not None:
            spec = Spec(sharding.spec.dims[1:])
            value = new.add(
                annotations.mark_op(meta, sharding.with_spec(spec)), (new.value(value),), node
            )
        self.values[row] = new.value(value)

    def stack(self, new: Rewrite) -> None:
        """Adds the op of the stack."""
        rows = sorted(self.values)
        operands = [self.values[row] for row in rows]
        lowering = Stacked(tuple(rows), self.root.meta.shape[0])
        metas = tuple(operand.meta for operand in operands)
        new.put(self.root, OpSpec.of(STACKED, lowering, self.root.op.metas, metas), operands)
        if self.mark is not None:
            new.copy(self.mark)


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
        if not sums:
            continue  # a single row
        reads = readers.get(root, [])
        is_marked = [node.op.name for node in reads] == ["mark_sharding"] and root not in roots
        mark = reads[0] if is_marked else None
        reads = readers.get(mark, []) if mark is not None else reads
        yield _Total(root, sums, in_order, mark, min(reads, key=order.__getitem__, default=None))


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
