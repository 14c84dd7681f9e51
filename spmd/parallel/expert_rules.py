"""The ops that layers of experts are made of: of an op on rows, what is known of its result.

transformers' `grouped_mm` and `batched_mm`, torchtitan's and other models' forms differ in how they
sort, count and put back. An op without a rule ends a stretch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..core.extend import Node, Value, lowerings, walks
from .expert_rows import ROWS, RowResult, RowStep
from .expert_stretch import ExpertStretch, KnownRows, arguments_of, dims_of

# -- The rules: of an op with an operand of a stretch, what is known of its result. None: nothing,
# it is outside.

Rule = Callable[[ExpertStretch, Node, dict[str, Any]], KnownRows | None]
RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


@_rule("aten._to_copy.default", "aten.clone.default", "aten.alias.default", "aten.detach.default")
def _copied(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts = stretch.of(arguments["self"])
    if facts is not None and facts.kind in ("ids", "ends", "counts", "choice", "token", "place"):
        return facts
    return by_element(stretch, node, arguments)


@_rule("aten.clamp.default")
def _clamped(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    """Numbers of experts of which that of no expert is the last one's: its rows add nothing."""
    facts, most = stretch.of(arguments["self"]), arguments.get("max")
    is_ids = facts is not None and facts.kind == "ids" and stretch.num_experts > 0
    return (
        facts
        if is_ids and most == stretch.num_experts - 1
        else by_element(stretch, node, arguments)
    )


@_rule("aten.sort.default", "aten.sort.stable")
def _sorted(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts = stretch.of(arguments["self"])
    if arguments.get("descending") or facts is None or len(node.meta.shape) != 1:
        return None
    index = walks.value_name(walks.results(node)[1])
    if facts.kind == "ids" and not facts.is_sorted:
        stretch.facts_of[index] = KnownRows("choice", is_sorted=True)
        return KnownRows("ids", is_sorted=True)
    if facts.kind == "choice":
        stretch.facts_of[index] = KnownRows("place")
    return None


@_rule("aten.floor_divide.default", "aten.div.Tensor_mode")
def _divided(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts = stretch.of(arguments["self"])
    is_whole = (
        arguments.get("rounding_mode", "floor") == "floor" and arguments["other"] == stretch.chosen
    )
    return (
        replace(facts, kind="token")
        if facts is not None and facts.kind == "choice" and is_whole
        else None
    )


@_rule("aten.histc.default")
def _counted(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts, bins = stretch.of(arguments["self"]), arguments["bins"]
    is_whole = (
        facts is not None
        and facts.kind == "ids"
        and (arguments["min"], arguments["max"]) in ((0, bins - 1), (0, bins))
    )
    return KnownRows("counts") if is_whole and stretch.has_experts((bins,)) else None


@_rule("aten.cumsum.default")
def _ends(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts = stretch.of(arguments["self"])
    return KnownRows("ends") if facts is not None and facts.kind == "counts" else None


@_rule("aten.copy.default")
def _written(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    source = arguments["src"]
    return (
        stretch.rows(source)
        if stretch.of(source) and source.meta.layout == node.meta.layout
        else None
    )


@_rule("write")
def _put_back(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    """A value written through a view of all elements."""
    base, value = node.operands
    facts = stretch.of(value)
    if (
        facts is None
        or facts.kind != "rows"
        or facts.dim
        or facts.is_split
        or base.meta.numel != value.meta.numel
    ):
        return None
    shape = (ROWS, *node.meta.shape[1:])
    return replace(
        facts, step=stretch.add(RowStep("reshape", (facts.step,), shape, node.meta.dtype))
    )


def _index(stretch: ExpertStretch, arguments: dict[str, Any]) -> KnownRows | None:
    """Facts known of the one array of indices, of the first dim."""
    indices = arguments["indices"]
    return stretch.of(indices[0]) if len(indices) == 1 and isinstance(indices[0], Value) else None


@_rule("aten.index.Tensor")
def _taken(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    index, source = _index(stretch, arguments), arguments["self"]
    if index is None:
        return None
    return _of_index(stretch, node, source, index)


def _of_index(
    stretch: ExpertStretch, node: Node, source: Value, index: KnownRows
) -> KnownRows | None:
    facts, shape = stretch.of(source), source.meta.shape
    if index.kind == "token" and facts is None and shape[0] == stretch.num_tokens:
        return KnownRows("rows", index.is_sorted, step=stretch.of_tokens(source, tuple(shape[1:])))
    if index.kind == "choice":
        natural = stretch.rows(source)
        is_taken = (
            natural is not None
            and not natural.is_sorted
            and not natural.is_split
            and natural.dim == 0
        )
        return replace(natural, is_sorted=True) if is_taken and natural is not None else None
    if (
        index.kind == "place"
        and facts is not None
        and facts.kind == "rows"
        and facts.is_sorted
        and facts.dim == 0
    ):
        return replace(facts, is_sorted=False)
    if index.kind == "ids" and facts is None and stretch.has_experts(shape):
        if len(shape) > 2:
            matrix = stretch.matrix(source)
            return (
                KnownRows("matrix", index.is_sorted, sources=matrix) if matrix is not None else None
            )
        return KnownRows(
            "rows", index.is_sorted, step=stretch.entry("expert", source, tuple(shape[1:]))
        )
    return None


@_rule("aten.index_select.default")
def _selected(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    index = stretch.of(arguments["index"])
    return (
        _of_index(stretch, node, arguments["self"], index)
        if index is not None and arguments["dim"] == 0
        else None
    )


@_rule("aten.gather.default")
def _gathered(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    """torch.gather of whole rows."""
    index = stretch.of(arguments["index"])
    is_whole = (
        arguments["dim"] == 0
        and index is not None
        and arguments["index"].meta.shape[1:] == arguments["self"].meta.shape[1:]
    )
    return (
        _of_index(stretch, node, arguments["self"], index)
        if is_whole and index is not None
        else None
    )


@_rule("aten.index_put.default")
def _put(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    index, values, base = _index(stretch, arguments), arguments["values"], arguments["self"]
    accumulates = arguments.get("accumulate", False)
    if index is None or (index.kind == "place" and not accumulates):
        return None
    if accumulates and not _is_zero(base):
        return _on_base(stretch, node, base, _added(stretch, node, index, values, True))
    if index.kind == "choice" and not accumulates and _is_counted(values, stretch.num_rows):
        return KnownRows("place")
    if index.kind in ("choice", "place"):
        facts = stretch.rows(values)
        is_from = (
            facts is not None and facts.is_sorted == (index.kind == "choice") and not facts.is_split
        )
        return (
            replace(facts, is_sorted=index.kind == "place")
            if is_from and facts is not None
            else None
        )
    return _added(stretch, node, index, values, accumulates)


def _added(
    stretch: ExpertStretch, node: Node, index: KnownRows, values: Value, accumulates: bool
) -> KnownRows | None:
    """The sum of rows by token, or by expert."""
    facts, shape = stretch.of(values) or stretch.rows(values, like=index), node.meta.shape
    if (
        facts is None
        or not accumulates
        or facts.is_sorted != index.is_sorted
        or facts.is_split
        or facts.dim
    ):
        return None
    if index.kind == "token" and facts.kind == "rows" and shape[0] == stretch.num_tokens:
        return _exit(stretch, node, "token", facts.step)
    if index.kind == "ids" and stretch.has_experts(shape) and facts.kind in ("rows", "outer"):
        return _exit(stretch, node, "expert", *(facts.sources or (facts.step,)))
    return None


@_rule("aten.scatter_add.default", "aten.index_add.default")
def _scattered(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    """Rows added to tokens."""
    index, values = (
        stretch.of(arguments["index"]),
        arguments["src" if "src" in arguments else "source"],
    )
    is_whole = arguments["dim"] == 0 and arguments.get("alpha", 1) == 1
    is_whole &= arguments["index"].meta.shape[1:] in ((), values.meta.shape[1:])
    facts = _added(stretch, node, index, values, True) if is_whole and index is not None else None
    return (
        facts if _is_zero(arguments["self"]) else _on_base(stretch, node, arguments["self"], facts)
    )


def _on_base(
    stretch: ExpertStretch, node: Node, base: Value, facts: KnownRows | None
) -> KnownRows | None:
    """A sum that is added to other values of the tokens."""
    end = stretch.exits.pop(node, None)
    if facts is None or end is None or end.kind != "token":
        return None
    step = stretch.entry("base", base, tuple(node.meta.shape[1:]))
    stretch.exits[node] = replace(end, sources=(*end.sources, step))
    return facts


def _exit(stretch: ExpertStretch, node: Node, kind: str, *sources: int) -> KnownRows:
    stretch.exits[node] = RowResult(kind, sources, tuple(node.meta.shape), node.meta.dtype)
    return KnownRows("exit")


def _is_zero(value: Value) -> bool:
    node = walks.origin(value)
    return (
        node is not None and isinstance(node.op.lowering, lowerings.Fill) and node.op.constant == 0
    )


def _is_counted(value: Value, count: int) -> bool:
    """True for 0, 1, ... below the count."""
    node = walks.origin(value)
    if node is None or node.op.name != "aten.arange.start_step":
        return False
    arguments = arguments_of(node)
    return (arguments.get("start"), arguments.get("end"), arguments.get("step", 1)) == (0, count, 1)


@_rule("aten._grouped_mm.default")
def _grouped(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    lhs, rhs, ends = (
        stretch.of(arguments["self"]),
        stretch.of(arguments["mat2"]),
        arguments.get("offs"),
    )
    known_ends = None if ends is None else stretch.of(ends)
    if (
        lhs is None
        or known_ends is None
        or known_ends.kind != "ends"
        or arguments.get("bias") is not None
    ):
        return None
    if lhs.kind != "rows" or not lhs.is_sorted:
        return None
    if rhs is None and lhs.dim == 0 and len(arguments["mat2"].meta.shape) == 3:
        matrix = stretch.matrix(arguments["mat2"])
        if matrix is None:
            return None
        step = stretch.product(lhs.step, matrix, node.meta, (ROWS, node.meta.shape[1]), node)
        return KnownRows("rows", is_sorted=True, step=step)
    if rhs is not None and rhs.kind == "rows" and rhs.is_sorted and lhs.dim == 1 and rhs.dim == 0:
        return _exit(stretch, node, "expert", lhs.step, rhs.step)
    return None


@_rule("aten.bmm.default")
def _batched(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts = stretch.of(arguments["self"]) or stretch.of(arguments["mat2"])
    sides = [
        stretch.of(side) or stretch.rows(side, like=facts)
        for side in (arguments["self"], arguments["mat2"])
    ]
    lhs, rhs = sides
    if lhs is None or rhs is None or lhs.is_sorted != rhs.is_sorted or lhs.is_split or rhs.is_split:
        return None
    _, rows, columns = node.meta.shape
    kinds, inner = (lhs.kind, rhs.kind), arguments["self"].meta.shape[2]
    if kinds == ("rows", "rows") and inner == 1:
        return KnownRows("outer", lhs.is_sorted, sources=(lhs.step, rhs.step))
    if kinds == ("matrix", "rows") and columns == 1:
        operand, is_transposed = lhs.sources
        matrix, source = (operand, not is_transposed), rhs.step
    elif kinds == ("rows", "matrix") and rows == 1:
        matrix, source = rhs.sources, lhs.step
    else:
        return None
    step = stretch.product(source, matrix, node.meta, (ROWS, rows, columns), node)
    return KnownRows("rows", lhs.is_sorted, step=step)


@_rule("aten.transpose.int")
def _transposed(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts, rank = stretch.of(arguments["self"]), len(node.meta.shape)
    dims = {arguments["dim0"] % rank, arguments["dim1"] % rank}
    if facts is None or facts.is_split:
        return None
    if facts.kind == "matrix" and dims == {1, 2}:
        operand, is_transposed = facts.sources
        return replace(facts, sources=(operand, not is_transposed))
    if facts.kind == "rows" and rank == 2:
        return replace(facts, dim=1 - facts.dim)
    return (
        _op(stretch, node, [facts.step], facts)
        if facts.kind == "rows" and not facts.dim and 0 not in dims
        else None
    )


@_rule(
    "aten.view.default", "aten._unsafe_view.default", "aten.unsqueeze.default", "aten.squeeze.dim"
)
def _viewed(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts, shape = stretch.of(arguments["self"]), tuple(node.meta.shape)
    if facts is None or facts.dim:
        return None
    if facts.kind == "token" and shape[:1] == (stretch.num_rows,):
        return facts  # with dims of size 1 behind, to be expanded
    is_whole, is_split = (
        shape[:1] == (stretch.num_rows,),
        shape[:2] == (stretch.num_tokens, stretch.chosen),
    )
    if facts.kind != "rows" or not (is_whole or (is_split and not facts.is_sorted)):
        return None
    trailing = shape[1:] if is_whole else shape[2:]
    step = stretch.steps[facts.step]
    if step.shape[1:] == trailing:
        return replace(facts, is_split=not is_whole)
    reshaped = stretch.add(RowStep("reshape", (facts.step,), (ROWS, *trailing), step.dtype))
    return replace(facts, is_split=not is_whole, step=reshaped)


@_rule("aten.expand.default")
def _expanded(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts, shape = stretch.of(arguments["self"]), tuple(node.meta.shape)
    if (
        facts is None
        or facts.dim
        or facts.is_split
        or len(shape) != len(arguments["self"].meta.shape)
    ):
        return None
    if facts.kind == "token":
        return facts
    if facts.kind != "rows":
        return None
    step = RowStep("expand", (facts.step,), (ROWS, *shape[1:]), node.meta.dtype)
    return replace(facts, step=stretch.add(step))


@_rule("aten.sum.dim_IntList")
def _summed(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    facts = stretch.of(arguments["self"])
    if facts is not None and facts.kind == "rows" and facts.is_split:
        dims = [dim % len(arguments["self"].meta.shape) for dim in arguments["dim"]]
        is_of_tokens = dims == [1] and len(stretch.steps[facts.step].shape) > 1
        return _exit(stretch, node, "token", facts.step) if is_of_tokens else None
    return _along(stretch, node, arguments)


@_rule(
    "aten.mean.dim",
    "aten.amax.default",
    "aten.amin.default",
    "aten._softmax.default",
    "aten._log_softmax.default",
    "aten._softmax_backward_data.default",
    "aten._log_softmax_backward_data.default",
    "aten.slice.Tensor",
    "aten.slice_backward.default",
    "aten.select.int",
    "aten.cat.default",
)
def _along(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    """An op along other dims than that of rows."""
    knowns = [stretch.rows(operand) if stretch.of(operand) else None for operand in node.operands]
    first = knowns[0] if knowns else None
    if first is None or any(
        facts is None or replace(facts, step=0) != replace(first, step=0) for facts in knowns
    ):
        return None
    rank = len(node.operands[0].meta.shape)
    dims = [dim % rank for dim in dims_of(node, "dim")]
    if first.dim or first.is_split or 0 in dims or not dims or "dim" not in arguments:
        return None
    return _op(stretch, node, [facts.step for facts in knowns if facts is not None], first)


@_rule("aten.where.self", "aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def by_element(stretch: ExpertStretch, node: Node, arguments: dict[str, Any]) -> KnownRows | None:
    """An op that computes each element of its own, on rows in one order."""
    first = next((stretch.rows(operand) for operand in node.operands if stretch.of(operand)), None)
    if first is None or first.dim:
        return None
    steps, rank, num_dims = list[int](), len(node.meta.shape), 1 + first.is_split
    for operand in node.operands:
        shape = tuple(operand.meta.shape)
        if stretch.of(operand) is None and len(shape) <= rank - num_dims:
            maker = walks.origin(operand)
            is_number = maker is not None and isinstance(maker.op.lowering, lowerings.Fill)
            steps.append(
                stretch.constant(operand, shape)
                if is_number
                else stretch.entry("shared", operand, shape)
            )
            continue
        rows = stretch.rows(operand, like=first)
        if rows is None or len(shape) != rank or replace(rows, step=0) != replace(first, step=0):
            return None
        steps.append(rows.step)
    return _op(stretch, node, steps, first)


def _op(stretch: ExpertStretch, node: Node, steps: Sequence[int], like: KnownRows) -> KnownRows:
    trailing = tuple(node.meta.shape[1 + like.is_split :])
    step = RowStep("op", tuple(steps), (ROWS, *trailing), node.meta.dtype, node.op, precision=None)
    return replace(like, kind="rows", step=stretch.add(step, node))
