"""Lowerings of aten calls, as data: a rule with its arguments, a fill, an op with a dynamic
start."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._ops import OpOverload

from ...ops import RULES, Rule, folds, sharded
from ...ops.floats import cast
from ...ops.partition import FOREIGN, PARTITION_RULES, partitioned
from ...ops.registry import rule_arguments
from ...ops.shape import Move, move_of
from ..base.dtypes import to_numpy_dtype
from ..graph.op import (
    Arrays,
    Layouts,
    Lowering,
    OpSpec,
    Slot,
    contains_function,
    draws_of,
    starts,
)
from ..lower.stack_rows import TAKE_ROWS, Made, Stacked, StackRow, plain, scalars
from .overloads import Kwargs, Large, Number, Operand, TorchValue


def _with_dtype(array: jax.Array, dtype: np.dtype) -> jax.Array:
    return array if array.dtype == dtype and not array.weak_type else cast(array, dtype)


@dataclass(frozen=True, slots=True)
class Call(Lowering):
    """An overload's rule: arguments placed, dtypes promoted, results cast.

    arguments: by name, tensors and scalar arguments replaced by their indices. compute: dtype of
    promoted operands, or None. precision: jax's word for less than full float32 in products.
    writes: the result is written into an operand. shape_only: the rule reads only its operands'
    shapes and dtypes.
    """

    overload: OpOverload
    arguments: tuple[tuple[str, TorchValue], ...]
    compute: np.dtype | None = None
    precision: str | None = None
    writes: bool = False
    shape_only: bool = False
    foreign: Rule | None = None

    @property
    def rule(self) -> Rule:
        # A rule of another package travels with the call, so that a program file needs no table of
        # it.
        return self.foreign or RULES[self.overload]

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        """Calls the rule on promoted arrays, and casts its results to torch's dtypes."""
        rule = self.rule

        def put_back(value: TorchValue) -> TorchValue:
            """Replaces the index of an operand or number by its promoted array."""
            if type(value) is Operand:
                return (
                    op.operands[value].struct
                    if self.shape_only
                    else self._promoted(operands[value])
                )
            if type(value) is Number:
                return self._promoted(numbers[value])
            if type(value) is Large:
                return self._promoted(jnp.asarray(np.uint64(value)))
            return value

        by_name = dict(self.arguments)
        positional, keywords = _rule_arguments(self.overload, by_name)
        arguments = jax.tree.map(put_back, list(positional))
        named = {name: jax.tree.map(put_back, value) for name, value in keywords.items()}
        if rule.wants_returns:
            named["returns"] = _result_structs(op)
        if rule.wants_draw:
            named["draw"] = (numbers[-2], numbers[-1])
        # A call that goes along a dim, takes its result's shape or draws needs the array in torch's
        # shape.
        needs_torch_shape = rule.wants_returns or rule.wants_draw or "dim" in by_name
        is_elementwise = rule.promote is not None and len(op.metas) == 1 and not needs_torch_shape
        # Per call, since one graph may mix settings.
        with (
            jax.default_matmul_precision(self.precision)
            if self.precision
            else contextlib.nullcontext()
        ):
            partitioned_result = (
                partitioned(self.overload, arguments, named)
                if self.overload in PARTITION_RULES
                else None
            )
            if partitioned_result is not None:
                flat: tuple[jax.Array, ...] = tuple(jax.tree.leaves(partitioned_result))
            elif is_elementwise:
                flat = (folds.called(rule.function, arguments, named, op.metas[0].shape),)
            else:
                flat = tuple(jax.tree.leaves(rule.function(*arguments, **named)))
        # torch's result dtype is the meta kernel's; jax's promotion of the rule may be wider.
        if rule.promote is not None or self.writes:
            flat = tuple(
                _with_dtype(array, meta.struct.dtype)
                for array, meta in zip(flat, op.metas, strict=True)
            )
        # In place the target's shape stays, though the operands broadcast to it.
        if self.writes:
            flat = tuple(
                jnp.broadcast_to(array, meta.shape)
                for array, meta in zip(flat, op.metas, strict=True)
            )
        return flat

    def _promoted(self, array: jax.Array) -> jax.Array:
        return (
            array
            if self.compute is None
            else sharded.note_source(_with_dtype(array, self.compute), sharded.source_of(array))
        )


@dataclass(frozen=True, slots=True)
class Join(Call):
    """A join of tensors. Rows of one array, as all layers' logits, are reshaped instead."""

    def lower(
        self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        # Rows of a loop's stack: the stack is an array already, and joining its rows again would
        # copy it.
        (meta,), shape = op.metas, op.operands[0].shape
        if not shape and any(isinstance(operand, StackRow) for operand in operands):
            return (scalars(operands),)
        stacked = Stacked.of(operands) if len(operands) > 1 else None
        if stacked is None:
            # The zero-argument super() does not work in a dataclass with slots, which is made
            # twice.
            return Call.lower(self, op, list(map(plain, operands)), numbers, layouts)
        dim = dict(self.arguments).get("dim", 0) % len(meta.shape)
        joined = jnp.moveaxis(cast(stacked.alone(), meta.struct.dtype), 0, dim)
        return (joined.reshape(meta.shape),)


TAKE_ROWS.add(Join)
CALLS: dict[OpOverload, type[Call]] = {
    torch.ops.aten.cat.default: Join,
    torch.ops.aten.stack.default: Join,
}


@dataclass(frozen=True, slots=True)
class Fill(Lowering):
    """A result filled with the op's constant."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        (meta,) = op.metas
        value = numbers[0] if op.constant == "lifted" else np.asarray(op.constant)
        return (jnp.full(meta.shape, cast(jnp.asarray(value), meta.struct.dtype)),)


@dataclass(frozen=True, slots=True)
class DynamicStart(Lowering):
    """An op with its start index as a scalar argument."""

    move: Move

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        start, *draw = numbers  # a draw's key, where there is one
        return (self.move(operands, start, *([tuple(draw)] if draw else ())),)


# --- rows of the tables by lowering (see `graph.op`) ----------------------------------------------


@contains_function.register
def _contains_function(lowering: Call) -> bool:
    return lowering.foreign is not None or lowering.overload in FOREIGN


@starts.register
def _start(lowering: Call, op: OpSpec) -> tuple[OpSpec, int] | None:
    """`with_dynamic_start` of a call."""
    shapes = [meta.shape for meta in op.operands]
    return with_dynamic_start(
        op,
        move_of(lowering.overload, dict(lowering.arguments), shapes, op.metas[0].struct),
        "iii" if lowering.rule.wants_draw else "i",
    )


def with_dynamic_start(
    op: OpSpec, move_and_start: tuple[Move, int] | None, numbers: str
) -> tuple[OpSpec, int] | None:
    """The op with its start as a scalar argument, the first of these kinds, and that start; None
    for an op without one."""
    if move_and_start is None:
        return None
    move, start = move_and_start
    return OpSpec.of(
        op.name,
        DynamicStart(move),
        op.metas,
        op.operands,
        numbers=numbers,
        statics=f"moving, {move}",
    ), start


@draws_of.register
def _draw_key(lowering: Call, op: OpSpec) -> Sequence[tuple[int, int]]:
    """The indices of a draw's key, the last two scalar arguments."""
    count = len(op.numbers)
    return ((count - 2, count - 1),) if lowering.rule.wants_draw else ()


@draws_of.register
def _draw_key_with_start(lowering: DynamicStart, op: OpSpec) -> Sequence[tuple[int, int]]:
    """The indices of a draw's key behind the start index."""
    return ((1, 2),) if len(op.numbers) == 3 else ()


def _result_structs(op: OpSpec) -> Sequence[jax.ShapeDtypeStruct | None] | jax.ShapeDtypeStruct:
    """The shapes and dtypes of the op's results, as its rule takes them."""
    structs = list(map(attrgetter("struct"), op.metas))
    if op.layout is not None:
        queue = iter(structs)
        return tuple(next(queue) if item is Slot else None for item in op.layout)
    return structs[0] if len(structs) == 1 else tuple(structs)


def _rule_arguments(
    overload: OpOverload, values: dict[str, TorchValue]
) -> tuple[list[TorchValue], Kwargs]:
    """The rule's arguments by position and by name, with the schema's defaults filled in and dtypes
    as numpy's."""
    positional, keywords = [], {}
    for argument in rule_arguments(overload):
        value = values.get(
            argument.name, argument.default_value if argument.has_default_value() else None
        )
        if isinstance(value, torch.dtype):
            value = to_numpy_dtype(value)
        if argument.kwarg_only:
            keywords["from_" if argument.name == "from" else argument.name] = value
        else:
            positional.append(value)
    return positional, keywords
