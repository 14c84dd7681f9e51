"""Views and rearrangements: each view rule is next to the rule that writes a changed view back into
its base.

Slices and selections have a second form, whose start is an operand.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch._ops import OpOverload

from . import folds, sharded
from .floats import cast
from .random import WIDE, integers
from .registry import lower
from .strided import retyped, write_at

aten = torch.ops.aten

# view overload -> (base, new view, *the view's own arguments) -> the base with the view's elements
# replaced.
WriteBack = Callable[..., jax.Array]
WRITE_BACK: dict[OpOverload, WriteBack] = {}


def write_back(*overloads: OpOverload) -> Callable[[WriteBack], WriteBack]:
    """Registers the rule of a write through the view `overload` into its base."""

    def register(function: WriteBack) -> WriteBack:
        for overload in overloads:
            assert overload not in WRITE_BACK, overload
            WRITE_BACK[overload] = function
        return function

    return register


def _dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


# --- the same elements in the same order ----------------------------------------------------------


@lower(
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
)
def aten_view(self, *arguments, returns):
    return folds.reshaped(self, returns.shape)


@lower(aten.alias.default, aten.detach.default, aten.lift_fresh.default)
def aten_alias(self):
    return self


@write_back(
    aten.view.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten.alias.default,
)
def _write_reshaped(base, new, *arguments):
    return new.reshape(base.shape)


@lower(aten.view.dtype)
def aten_view_dtype(self, dtype, *, returns):
    return retyped(self, np.dtype(returns.dtype))


@write_back(aten.view.dtype)
def _write_dtype(base, new, dtype):
    return retyped(new, base.dtype)


# --- dims in another order ------------------------------------------------------------------------


def _swapped(rank: int, dim0: int, dim1: int) -> list[int]:
    order = list(range(rank))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return order


def aten_permute(self, *arguments, order_of):
    return folds.transposed(self, order_of(self.ndim, *arguments))


def _write_permuted(base, new, *arguments, order_of):
    return jnp.transpose(
        new, np.argsort([_dim(dim, base.ndim) for dim in order_of(base.ndim, *arguments)])
    )


# The order of the dims, from their number and the view's arguments.
for _view, _order_of in (
    (aten.t.default, lambda rank: range(rank)[::-1]),
    (aten.transpose.int, _swapped),
    (aten.permute.default, lambda rank, dims: dims),
):
    lower(_view, order_of=_order_of)(aten_permute)
    write_back(_view)(partial(_write_permuted, order_of=_order_of))


# --- some of the elements -------------------------------------------------------------------------


LARGEST_INDEX = 2**63 - 1


def _slice(
    rank: int, size: int, dim: int, start: int | None, end: int | None, step: int
) -> tuple[slice, ...]:
    if not isinstance(size, int):  # open, in an export: torch's end of all is the largest integer
        run = slice(start, None if end == LARGEST_INDEX else end, step)
    else:
        run = slice(*slice(start, end).indices(size)[:2], step)
    return (*(slice(None),) * _dim(dim, rank), run)


def _update(base: jax.Array, new: jax.Array, start: int | jax.Array, axis: int) -> jax.Array:
    """The base with the run of elements from `start` along `axis` replaced."""
    # Not `.at[].set`: XLA partitions that scatter wrongly after a reshape (jaxlib 0.10.2, both
    # partitioners).
    return jax.lax.dynamic_update_slice_in_dim(base, cast(new, base.dtype), start, axis)


@lower(aten.slice.Tensor)
def aten_slice(self, dim=0, start=None, end=None, step=1):
    return self[_slice(self.ndim, self.shape[dim], dim, start, end, step)]


@write_back(aten.slice.Tensor)
@lower(aten.slice_scatter.default)
def aten_slice_scatter(base, new, /, dim=0, start=None, end=None, step=1):
    if step == 1:
        start = slice(start, end).indices(base.shape[dim])[0]
        return _update(base, new, start, _dim(dim, base.ndim))
    places = np.arange(*slice(start, end, step).indices(base.shape[dim]))
    return write_at(base, (slice(None),) * _dim(dim, base.ndim) + (places,), new)


@lower(aten.select.int)
def aten_select(self, dim, index):
    return jax.lax.index_in_dim(self, index, _dim(dim, self.ndim), keepdims=False)


@write_back(aten.select.int)
@lower(aten.select_scatter.default)
def aten_select_scatter(base, new, /, dim, index):
    axis = _dim(dim, base.ndim)
    return _update(base, jnp.expand_dims(new, axis), _dim(index, base.shape[axis]), axis)


@lower(aten.diagonal.default)
def aten_diagonal(self, offset=0, dim1=0, dim2=1):
    return jnp.diagonal(self, offset, dim1, dim2)


@write_back(aten.diagonal.default)
def _write_diagonal(base, new, offset=0, dim1=0, dim2=1):
    moved, steps = jnp.moveaxis(base, (dim1, dim2), (-2, -1)), np.arange(new.shape[-1])
    rows, columns = steps - min(offset, 0), steps + max(offset, 0)
    index = (slice(None),) * (base.ndim - 2) + (rows, columns)
    return jnp.moveaxis(write_at(moved, index, new), (-2, -1), (dim1, dim2))


@lower(aten.select_backward.default, write=aten_select_scatter)
@lower(aten.slice_backward.default, write=aten_slice_scatter)
@lower(aten.diagonal_backward.default, write=_write_diagonal)
def aten_view_backward(grad_output, input_sizes, *where, write):
    return write(jnp.zeros(input_sizes, grad_output.dtype), grad_output, *where)


@lower(aten.unfold.default)
def aten_unfold(self, dimension, size, step):
    if self.ndim == 0:
        return self.reshape(1)[:size]
    axis = _dim(dimension, self.ndim)
    windows = np.arange(0, self.shape[axis] - size + 1, step)[:, None] + np.arange(size)
    return jnp.moveaxis(jnp.take(self, windows, axis=axis), axis + 1, -1)


# --- slices and selections with a dynamic start, as a loop's index; the end of random integers ----


@dataclass(frozen=True, slots=True)
class ElementRun:
    """`count` elements along `axis`, `step` apart; `is_select`: one element, whose dim is
    removed."""

    axis: int
    count: int
    step: int
    is_select: bool

    def read(self, base: jax.Array, start: jax.Array) -> jax.Array:
        """The run of `base` that begins at `start`."""
        if self.is_select:
            return jax.lax.dynamic_index_in_dim(base, start, self.axis, keepdims=False)
        span = jax.lax.dynamic_slice_in_dim(
            base, start, (self.count - 1) * self.step + 1, self.axis
        )
        return (
            span
            if self.step == 1
            else jax.lax.slice_in_dim(span, 0, span.shape[self.axis], self.step, self.axis)
        )

    def write(self, base: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
        """`base` with that run replaced by `new`."""
        new = jnp.expand_dims(new, self.axis) if self.is_select else new
        if self.step == 1:
            return _update(base, new, start, self.axis)
        places = start + self.step * jnp.arange(self.count)
        return write_at(base, (slice(None),) * self.axis + (places,), new.astype(base.dtype))


@dataclass(frozen=True, slots=True)
class TakeRun:
    """The run of an array."""

    run: ElementRun

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return self.run.read(operands[0], start)


@dataclass(frozen=True, slots=True)
class Write:
    """The first operand with the run replaced by the second."""

    run: ElementRun

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return self.run.write(operands[0], operands[1], start)


@dataclass(frozen=True, slots=True)
class Gradient:
    """Zeros with the run replaced by the operand."""

    run: ElementRun
    shape: tuple[int, ...]

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return self.run.write(jnp.zeros(self.shape, operands[0].dtype), operands[0], start)


@dataclass(frozen=True, slots=True)
class Arange:
    """Consecutive integers from a start on, `step` apart."""

    count: int
    dtype: np.dtype
    step: int

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return (start + self.step * jnp.arange(self.count)).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Integers:
    """Random integers from `low` up to an end."""

    shape: tuple[int, ...]
    dtype: np.dtype
    low: int

    def __call__(
        self, operands: Sequence[jax.Array], end: jax.Array, draw: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        return integers(draw, self.shape, self.low, end, self.dtype)


Move = TakeRun | Write | Gradient | Arange | Integers


def run_of(
    overload: OpOverload, shape: tuple[int, ...], arguments: dict[str, Any]
) -> tuple[ElementRun, int] | None:
    """The run that a select or slice of an array of this shape takes, and its start; None where the
    start is fixed."""
    dim = arguments.get("dim", 0)
    axis = dim + len(shape) if dim < 0 else dim
    if overload in _SELECTS:
        index = arguments["index"]
        return ElementRun(axis, 1, 1, True), index + shape[axis] if index < 0 else index
    step = arguments.get("step", 1)
    start, stop, _ = slice(arguments.get("start"), arguments.get("end")).indices(shape[axis])
    count = max(0, -(-(stop - start) // step))
    return None if count in (0, shape[axis]) else (ElementRun(axis, count, step, False), start)


def move_of(
    overload: OpOverload,
    arguments: dict[str, Any],
    shapes: Sequence[tuple[int, ...]],
    result: jax.ShapeDtypeStruct,
) -> tuple[Move, int] | None:
    """The op with these arguments as a function of a dynamic position, and that position; None
    where it has none.

    arguments: those of the schema by name. shapes: of the tensor operands. result: shape and dtype
    of the result.
    """
    if overload in _ARANGES:
        start, step = arguments["start"], arguments.get("step", 1)
        if (
            type(start) is not int
            or type(step) is not int
            or not jnp.issubdtype(result.dtype, jnp.integer)
        ):
            return None
        return Arange(result.shape[0], result.dtype, step), start
    if overload in _INTEGERS:
        low, high = arguments.get("from", 0), arguments["to"]
        if high is None or high - low >= WIDE:
            return None
        return Integers(result.shape, result.dtype, low), high
    if overload not in _SELECTS | _SLICES:
        return None
    is_gradient = overload in (aten.select_backward.default, aten.slice_backward.default)
    shape = tuple(arguments["input_sizes"]) if is_gradient else shapes[0]
    match = run_of(overload, shape, arguments)
    if match is None:
        return None
    run, start = match
    if is_gradient:
        return Gradient(run, shape), start
    return (TakeRun(run) if overload in DYNAMIC_START_VIEWS else Write(run)), start


DYNAMIC_START_VIEWS = frozenset({aten.select.int, aten.slice.Tensor})
_INTEGERS = frozenset({getattr(aten.random, "from"), aten.random.to})
_ARANGES = frozenset({aten.arange.start, aten.arange.start_step})
_SELECTS = frozenset({aten.select.int, aten.select_backward.default, aten.select_scatter.default})
_SLICES = frozenset({aten.slice.Tensor, aten.slice_backward.default, aten.slice_scatter.default})


# --- several views at once: the rule returns one of them, chosen by the last argument -------------


def part(
    overload: OpOverload, shape: tuple[int, ...], arguments: tuple[Any, ...], index: int
) -> tuple[OpOverload, tuple[int, ...]]:
    """Output `index` of a multi-output view as the single-output view that equals it: (overload,
    arguments)."""
    if overload is aten.unbind.int:
        return aten.select.int, (arguments[0] if arguments else 0, index)
    sizes, dim = arguments[0], arguments[1] if len(arguments) > 1 else 0
    length = shape[dim]
    if overload is aten.split.Tensor:
        start, stop = index * sizes, min((index + 1) * sizes, length)
    else:
        start, stop = sum(sizes[:index]), sum(sizes[: index + 1])
    return aten.slice.Tensor, (dim, start, stop, 1)


PARTS = frozenset({aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default})


# --- broadcast, complex halves --------------------------------------------------------------------


@lower(aten.expand.default)
def aten_expand(self, size, *, implicit=False, returns):
    return jnp.broadcast_to(self, returns.shape)


def _as_real(array: jax.Array) -> jax.Array:
    return jnp.stack([array.real, array.imag], axis=-1)


def _as_complex(array: jax.Array) -> jax.Array:
    return jax.lax.complex(array[..., 0], array[..., 1])


# Views of one operand, each with the function that undoes it.
for _view, _read, _inverse in (
    (aten.view_as_real.default, _as_real, _as_complex),
    (aten.view_as_complex.default, _as_complex, _as_real),
    (aten._conj.default, jnp.conj, jnp.conj),
    (aten._neg_view.default, jnp.negative, jnp.negative),
):
    lower(_view)(lambda self, read=_read: read(self))
    write_back(_view)(lambda base, new, inverse=_inverse: inverse(new))


# --- rearrangements that copy ---------------------------------------------------------------------


# operands of one concatenation, for which XLA's time grows with the square of their number
_GROUP = 128


def _joined(arrays, dim):
    """Concatenates arrays: of more than two groups first each group; the barrier keeps XLA from
    making it one again."""
    while len(arrays) > 2 * _GROUP:
        groups = [
            jnp.concatenate(arrays[i : i + _GROUP], axis=dim) for i in range(0, len(arrays), _GROUP)
        ]
        arrays = jax.lax.optimization_barrier(groups)
    return jnp.concatenate(arrays, axis=dim)


@lower(aten.cat.default)
def aten_cat(tensors, dim=0, *, returns):
    # torch lets an empty 1-d tensor join tensors of any shape.
    nonempty_tensors = [tensor for tensor in tensors if tensor.shape != (0,)]
    if not nonempty_tensors:  # torch does not check dim then
        return jnp.zeros(returns.shape, returns.dtype)
    return _joined([tensor.astype(returns.dtype) for tensor in nonempty_tensors], dim)


@lower(aten.stack.default)
def aten_stack(tensors, dim=0, *, returns):
    return _joined([jnp.expand_dims(tensor.astype(returns.dtype), dim) for tensor in tensors], dim)


@lower(aten.repeat.default)
def aten_repeat(self, repeats):
    return jnp.tile(self.reshape((1,) * (len(repeats) - self.ndim) + self.shape), repeats)


@lower(aten.flip.default)
def aten_flip(self, dims):
    if not self.ndim:
        return self
    dims = tuple(_dim(dim, self.ndim) for dim in dims)
    return sharded.note_source(jnp.flip(self, dims), sharded.Flipped(self, dims))


@lower(aten.roll.default)
def aten_roll(self, shifts, dims=()):
    return (
        jnp.roll(self, shifts, tuple(dims))
        if dims
        else jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    )


@lower(aten.constant_pad_nd.default)
def aten_constant_pad_nd(self, pad, value=0):
    widths = [(0, 0, 0)] * self.ndim
    for pair in range(len(pad) // 2):
        widths[self.ndim - 1 - pair] = (pad[2 * pair], pad[2 * pair + 1], 0)
    return jax.lax.pad(self, jnp.asarray(value, self.dtype), widths)
