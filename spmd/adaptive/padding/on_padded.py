"""The op on padded operands, by the kind of its lowering: a call by the rule of its overload,
others by their own."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax

from ...core.extend import (
    Arrays,
    Layouts,
    Lowering,
    OpSpec,
    constrain,
    dynamic,
    lowerings,
    op_specs,
    partitioning,
    slices,
)
from .case import (
    JOINED,
    Before,
    Case,
    Instead,
    Joined,
    NoRule,
    Pads,
    Unpadded,
    padded_meta,
    physical,
)
from .shapes import begins as begun
from .shapes import capacity_of, elementwise, rule_of


class Padded(NamedTuple):
    """An op on padded operands: the padding of its results, and the integers that are scalar
    arguments of it alone."""

    op: OpSpec
    pads: tuple[Pads, ...]
    numbers: tuple[int, ...]


@functools.singledispatch
def on_padded(lowering: Lowering, op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
    """Returns the op of this lowering on operands with padded dims (see `case`).

    begins: the capacities of the dynamic dims of the result, where no operand is padded. Raises
    NoRule.
    """
    raise NoRule("has no rule for a padded dim")


@on_padded.register
def _identity(
    lowering: op_specs.Identity, op: OpSpec, pads: Sequence[Pads], begins: Pads
) -> Padded:
    if begins:
        raise NoRule("takes its dims from its operand")
    results = tuple(map(dict, pads[: len(op.metas)]))
    return _padded(op, lowering, results, pads, statics=op.statics, sharding=op.sharding)


@on_padded.register
def _unpad(lowering: dynamic.Unpad, op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
    """Padded data is read with its padding."""
    (padded,) = op.operands
    op_spec = OpSpec.of(op.name, lowering, (padded,), (padded,), statics=op_specs.PADDED)
    return Padded(op_spec, ({dim: padded.shape[dim] for dim in lowering.dims},), ())


@on_padded.register
def _fill(lowering: lowerings.Fill, op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
    (meta,) = op.metas
    likes = [
        pad
        for pad, operand in zip(pads, op.operands, strict=True)
        if pad and operand.shape == meta.shape
    ]
    result = dict(begins or (likes[0] if likes else ()))
    if not result:
        raise NoRule("makes a value like a padded one")
    return _padded(op, lowering, (result,), pads, constant=op.constant)


@on_padded.register
def _dynamic_start(
    lowering: lowerings.DynamicStart, op: OpSpec, pads: Sequence[Pads], begins: Pads
) -> Padded:
    move = lowering.move
    if not isinstance(move, slices.Gradient | slices.TakeRun) or (
        begins and type(move) is slices.TakeRun
    ):
        raise NoRule("has no rule for a padded dim")
    run, (pad,) = move.run, pads or ({},)
    if isinstance(move, slices.TakeRun):
        if type(pad.get(run.axis)) is Joined:
            raise NoRule("has no rule for a padded dim that a reshape has joined to others")
        result = {
            dim - (run.is_select and dim > run.axis): size
            for dim, size in pad.items()
            if dim != run.axis
        }
    else:
        if run.axis in pad and not run.is_select:
            raise NoRule("is of a slice of a padded dim")
        result = {
            dim + (run.is_select and dim >= run.axis): size for dim, size in pad.items()
        } | begins
        move = slices.Gradient(run, physical(move.shape, result))
    return _padded(op, lowerings.DynamicStart(move), (result,), (pad,))


@on_padded.register
def _call(lowering: lowerings.Call, op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
    rule = partial(begun, dims=begins) if begins else rule_of(lowering.overload)
    if rule is None or op.is_opaque or (lowering.rule.wants_draw and rule is elementwise):
        raise NoRule("has no rule for a padded dim")
    has_joined = any(type(size) is Joined for pad in pads for size in pad.values())
    if has_joined and rule is not elementwise and lowering.overload not in JOINED:
        raise NoRule("has no rule for a padded dim that a reshape has joined to others")
    shapes, results = [meta.shape for meta in op.operands], [meta.shape for meta in op.metas]
    dtypes = [meta.struct.dtype for meta in op.metas]
    arguments, padded = dict(lowering.arguments), [dict(pad) for pad in pads]
    kinds, result_pads = [meta.dtype for meta in op.operands], list[Pads]({} for _ in results)
    case = Case(lowering.overload, arguments, shapes, kinds, padded, results, dtypes, result_pads)
    rule(case)
    call = (
        dataclasses.replace(lowering, arguments=tuple(case.arguments.items()))
        if case.instead is None
        else None
    )
    fits = tuple(physical(shape, pad) for shape, pad in zip(shapes, case.pads, strict=True))
    empty = next((operand for operand, shape in enumerate(fits) if 0 in shape), None)
    if (
        empty is not None
        and op.name != "aten.cat"
        and all(map(math.prod, map(physical, results, result_pads)))
    ):  # XLA takes no rows of none
        raise Unpadded(empty, fits[empty].index(0), capacity_of(0))
    # An op's results that are no tensors (attention: the length of the keys) have been returned to
    # the caller already.
    layout = op.layout and tuple(item if item is op_specs.Slot else None for item in op.layout)
    padded_call = OnPadded(call, fits, tuple(case.prologue), case.instead)
    return _padded(
        op, padded_call, tuple(case.result_pads), pads, tuple(case.numbers), layout=layout
    )


def _padded(
    op: OpSpec,
    lowering: Lowering,
    results: tuple[Pads, ...],
    pads: Sequence[Pads],
    numbers: tuple[int, ...] = (),
    statics: str = op_specs.PADDED,
    **parts: Any,
) -> Padded:
    """Returns an op of this lowering with its metas as they are with the padding."""
    metas, operands = (
        tuple(map(padded_meta, op.metas, results)),
        tuple(map(padded_meta, op.operands, pads)),
    )
    kinds = "i" * len(numbers) + op.numbers
    op_spec = OpSpec.of(op.name, lowering, metas, operands, numbers=kinds, statics=statics, **parts)
    return Padded(op_spec, results, numbers)


@dataclass(frozen=True, slots=True)
class OnPadded(Lowering):
    """A call whose operands are padded: they are cut to `fits` and go through the steps of
    `prologue`, then through the call or `instead`; each step takes one of the first scalar
    arguments, integers, and `instead` those that follow."""

    call: lowerings.Call | None
    fits: tuple[tuple[int, ...], ...]
    prologue: tuple[Before, ...]
    instead: Instead | None

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        arrays = [
            constrain.cut(array, shape) for array, shape in zip(operands, self.fits, strict=True)
        ]
        for step, number in zip(self.prologue, numbers, strict=False):
            filled = step(list(arrays), number)  # a mask may come with them
            arrays = [*map(partitioning.same, filled, arrays), *filled[len(arrays) :]]
        count = len(self.prologue)
        if self.instead is not None:
            return (self.instead(arrays, *numbers[count:]),)
        assert self.call is not None, "an op has a call or a replacement"
        return self.call.lower(op, arrays, numbers[count:], layouts)
