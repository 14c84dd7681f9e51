"""A layer of experts in a graph: what is known of the values of its rows, as steps of a body.

Rows begin where a value of tokens is taken for each choice, in the order of the choices or sorted
by expert, and end where a token's choices are added up; backward is the same. The ops between must
work row by row.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import bfloat16, float16

from ..core.extend import Node, Value, calls, lowerings, walks
from .expert_rows import ROWS, RowResult, RowStep, Shape

ANNOTATIONS = frozenset(
    {"mark_sharding", "spmd.renew", "spmd.gather", "spmd.unmarked", "spmd.wait"}
)
VIEWS = frozenset(
    {
        "aten.view",
        "aten._unsafe_view",
        "aten.unsqueeze",
        "aten.squeeze.dim",
        "aten.clone",
        "aten.alias",
    }
)
_NARROW = (bfloat16, float16)


@dataclass(frozen=True, slots=True)
class KnownRows:
    """Facts known of a value of a stretch.

    kind: "ids", the expert of each row; "choice", its choice; "token", its token; "place", the row
    of each choice; "counts" and "ends", rows by expert; "rows", a value of each row; "matrix", its
    expert's; "outer", a product of two values. dim: of rows; is_split: its parts are tokens and
    choices. step: of rows. sources: the place of a matrix's operand, and whether it is transposed;
    the steps of a product's factors. Steps have rows in front.
    """

    kind: str
    is_sorted: bool = False
    dim: int = 0
    is_split: bool = False
    step: int = -1
    sources: tuple[Any, ...] = ()


@dataclass(eq=False)
class ExpertStretch:
    """The ops on the choices of one layer. choices: the value of experts, [..., chosen]."""

    choices: Value
    index: int
    facts_of: dict[Any, KnownRows] = field(default_factory=dict)
    nodes: dict[Node, None] = field(default_factory=dict)
    steps: list[RowStep] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    made_of: dict[int, Node] = field(default_factory=dict)  # the op of a step
    exits: dict[Node, RowResult] = field(default_factory=dict)
    num_experts: int = 0
    entries: dict[Any, int] = field(default_factory=dict)

    @property
    def chosen(self) -> int:
        return self.choices.meta.shape[-1]

    @property
    def num_rows(self) -> int:
        return self.choices.meta.numel

    @property
    def num_tokens(self) -> int:
        return self.num_rows // self.chosen

    def of(self, value: Value) -> KnownRows | None:
        return self.facts_of.get(walks.value_name(value))

    # -- Steps.

    def add(self, step: RowStep, node: Node | None = None) -> int:
        self.steps.append(step)
        if node is not None:
            self.made_of[len(self.steps) - 1] = node
        return len(self.steps) - 1

    def place(self, value: Value) -> int:
        """The place of an operand of the op."""
        names = list(map(walks.value_name, self.operands))
        if walks.value_name(value) not in names:
            self.operands.append(value)
            return len(names)
        return names.index(walks.value_name(value))

    def entry(self, kind: str, value: Value, trailing: Shape) -> int:
        """The step that takes a row's value of an operand."""
        key = kind, walks.value_name(value), trailing
        if key not in self.entries:
            shape = trailing if kind == "shared" else (ROWS, *trailing)
            self.entries[key] = self.add(
                RowStep(kind, (self.place(value),), shape, value.meta.dtype)
            )
        return self.entries[key]

    def of_tokens(self, value: Value, trailing: Shape) -> int:
        """The step that takes the row's token; of a value that was widened, the narrow one is
        taken."""
        base, casts = value, list[Node]()
        while (
            (node := walks.origin(base)) is not None
            and isinstance(node.op.lowering, lowerings.Call)
            and node.operands
        ):
            source, is_cast = node.operands[0], node.op.name == "aten._to_copy"
            if source.meta.numel != base.meta.numel or not self._has_tokens(source.meta.shape):
                break
            is_wider = (
                base.meta.dtype.itemsize > source.meta.dtype.itemsize
                and source.meta.dtype.is_floating_point
            )
            if not (
                node.op.name in VIEWS
                or (is_cast and base.meta.dtype.is_floating_point and is_wider)
            ):
                break
            casts += [node] if is_cast else []
            base = source
        step = self.entry("token", base, trailing)
        for node in reversed(casts):
            key = "cast", step, node.meta.dtype
            if key not in self.entries:
                cast = RowStep("op", (step,), (ROWS, *trailing), node.meta.dtype, node.op)
                self.entries[key] = self.add(cast, node)
            step = self.entries[key]
        return step

    def _has_tokens(self, shape: Shape) -> bool:
        """True if the first dims of a shape are the tokens."""
        count = 1
        for size in shape:
            if count == self.num_tokens:
                return True
            count *= size
        return count == self.num_tokens

    def natural(self, value: Value) -> int | None:
        """The step of a value in the order of the choices that no op of the stretch has made; None
        if it has no rows.

        value: [rows, ...] or [tokens, chosen, ...].
        """
        shape = value.meta.shape
        is_split = shape[:2] == (self.num_tokens, self.chosen) and shape[:1] != (self.num_rows,)
        if not is_split and shape[:1] != (self.num_rows,):
            return None
        trailing = tuple(shape[1 + is_split :])
        node = walks.origin(value)
        while (
            node is not None
            and node.op.name in VIEWS
            and node.operands[0].meta.numel == node.meta.numel
        ):
            node = walks.origin(node.operands[0])
        if node is not None and node.op.name == "aten.expand":
            of_tokens, of_choices = node.operands[0].meta.shape, node.meta.shape
            is_repeated = of_choices[:2] == (self.num_tokens, self.chosen) and of_tokens[:2] == (
                self.num_tokens,
                1,
            )
            if is_repeated and of_tokens[2:] == of_choices[2:]:
                return self.of_tokens(node.operands[0], trailing)
        return self.entry("choice", value, trailing)

    def constant(self, value: Value, shape: Shape) -> int:
        """The step of a value that is one number."""
        maker = walks.origin(value)
        assert maker is not None
        return self.add(RowStep("op", (), shape, value.meta.dtype, maker.op), maker)

    def rows(self, value: Value, like: KnownRows | None = None) -> KnownRows | None:
        """Facts on a value's rows; of one that was made elsewhere, in the order of the choices."""
        facts = self.of(value)
        if facts is not None:
            if facts.kind == "ids":
                step = self.entries.get("ids")
                if step is None:
                    step = self.entries["ids"] = self.add(
                        RowStep("ids", (), (ROWS,), value.meta.dtype)
                    )
                return (
                    KnownRows("rows", facts.is_sorted, step=step)
                    if self.steps[step].dtype == value.meta.dtype
                    else None
                )
            return facts if facts.kind == "rows" else None
        is_split = value.meta.shape[:1] != (self.num_rows,)
        maker = walks.origin(value)
        if like is not None and maker is not None and isinstance(maker.op.lowering, lowerings.Fill):
            step = self.constant(value, (ROWS, *value.meta.shape[1 + is_split :]))
            return replace(like, kind="rows", is_split=is_split, step=step)
        natural = None if like is not None and like.is_sorted else self.natural(value)
        return None if natural is None else KnownRows("rows", is_split=is_split, step=natural)

    # -- Operands whose first dim is that of experts.

    def matrix(self, value: Value) -> tuple[int, bool] | None:
        """The place of the operand with a matrix for each expert, and whether it is transposed."""
        is_transposed = False
        while (node := walks.origin(value)) is not None and node.op.name == "aten.transpose.int":
            if {dim % 3 for dim in dims_of(node, "dim0", "dim1")} != {1, 2}:
                break
            value, is_transposed = node.operands[0], not is_transposed
        return (self.place(value), is_transposed) if self.has_experts(value.meta.shape) else None

    def has_experts(self, shape: Shape) -> bool:
        self.num_experts = self.num_experts or (shape[0] if shape else 0)
        return bool(shape) and shape[0] == self.num_experts

    def product(
        self, rows: int, matrix: tuple[int, bool], meta: Any, shape: Shape, node: Node
    ) -> int:
        is_narrow = any(operand.meta.dtype in _NARROW for operand in node.operands)
        precision = None if is_narrow else node.op.lowering.precision or "highest"  # type: ignore[attr-defined]
        operand, is_transposed = matrix
        return self.add(
            RowStep("product", (rows, operand), shape, meta.dtype, None, is_transposed, precision)
        )


def dims_of(node: Node, *names: str) -> list[int]:
    """Arguments of a call that are dims."""
    arguments = dict(node.op.lowering.arguments)  # type: ignore[attr-defined]  # of a `Call`
    values = [arguments[name] for name in names if arguments.get(name) is not None]
    return [dim for value in values for dim in (value if isinstance(value, list) else [value])]


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a call: values, numbers, and what is static."""
    call = node.op.lowering
    assert isinstance(call, lowerings.Call)
    return {
        name: calls.fill(x, node.operands.__getitem__, node.numbers.__getitem__)
        for name, x in call.arguments
    }
