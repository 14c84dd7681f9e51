"""Views and rearrangements: each view rule is next to the rule that writes a changed view back into its base."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from . import folds
from .place import at
from .registry import lower

aten = torch.ops.aten

# view overload -> (base, new view, *the view's own arguments) -> the base with the view's elements replaced.
WRITE_BACK: dict[torch._ops.OpOverload, Callable[..., jax.Array]] = {}


def write_back(*overloads: Any) -> Callable[[Callable[..., jax.Array]], Callable[..., jax.Array]]:
    """Registers the rule of a write through the view `overload` into its base."""

    def register(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        for overload in overloads:
            assert overload not in WRITE_BACK, overload
            WRITE_BACK[overload] = function
        return function

    return register


def _dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


# --- the same elements in the same order -----------------------------------------------------------------------------


@lower(
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default,
)  # fmt: skip
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


def retyped(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """The same bytes as another dtype, along the last dim, up to the last complete element.

    Wider and narrower dtypes by shifts: of two bitcasts between widths in a row XLA makes one of the wrong shape
    (jaxlib 0.10.2).
    """
    if array.dtype == dtype:
        return array
    if array.ndim == 0:
        return retyped(array.reshape(1), dtype).reshape(())
    if array.dtype == jnp.bool_:
        return retyped(array.astype(jnp.uint8), dtype)
    lead = array.shape[:-1]
    if jnp.iscomplexobj(array):
        return retyped(jnp.stack([array.real, array.imag], axis=-1).reshape(*lead, 2 * array.shape[-1]), dtype)
    if dtype == jnp.bool_:
        return retyped(array, np.dtype(np.uint8)) != 0
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = retyped(array, np.dtype(f"f{dtype.itemsize // 2}"))
        parts = parts[..., : parts.shape[-1] // 2 * 2]
        return jax.lax.complex(parts[..., ::2], parts[..., 1::2])
    old, new = array.dtype.itemsize, dtype.itemsize
    bits = jax.lax.bitcast_convert_type(array, np.dtype(f"u{old}"))
    if new < old:
        shifts = np.arange(old // new, dtype=bits.dtype) * 8 * new
        bits = (bits[..., None] >> shifts).astype(np.dtype(f"u{new}")).reshape(*lead, bits.shape[-1] * shifts.size)
    elif new > old:
        count = new // old
        whole = bits.shape[-1] // count
        bits = bits[..., : whole * count].reshape(*lead, whole, count).astype(np.dtype(f"u{new}"))
        bits = jnp.sum(bits << np.arange(count, dtype=bits.dtype) * 8 * old, axis=-1, dtype=bits.dtype)
    return jax.lax.bitcast_convert_type(bits, dtype)


@lower(aten.view.dtype)
def aten_view_dtype(self, dtype, *, returns):
    return retyped(self, np.dtype(returns.dtype))


@write_back(aten.view.dtype)
def _write_dtype(base, new, dtype):
    return retyped(new, base.dtype)


# --- dims in another order -------------------------------------------------------------------------------------------


@lower(aten.t.default)
def aten_t(self):
    return folds.transposed(self, range(self.ndim)[::-1])


@lower(aten.transpose.int)
def aten_transpose(self, dim0, dim1):
    order = list(range(self.ndim))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return folds.transposed(self, order)


@lower(aten.permute.default)
def aten_permute(self, dims):
    return folds.transposed(self, dims)


@write_back(aten.t.default)
def _write_t(base, new):
    return new.T


@write_back(aten.transpose.int)
def _write_transposed(base, new, dim0, dim1):
    return jnp.swapaxes(new, dim0, dim1) if new.ndim else new


@write_back(aten.permute.default)
def _write_permuted(base, new, dims):
    return jnp.transpose(new, np.argsort([_dim(dim, base.ndim) for dim in dims]))


# --- some of the elements --------------------------------------------------------------------------------------------


def _slice(rank: int, size: int, dim: int, start: int | None, end: int | None, step: int) -> tuple[slice, ...]:
    return (slice(None),) * _dim(dim, rank) + (slice(*slice(start, end).indices(size)[:2], step),)


def _update(base: jax.Array, new: jax.Array, start: int, axis: int) -> jax.Array:
    """The base with the run of elements from `start` along `axis` replaced."""
    # Not `.at[].set`: XLA partitions that scatter wrongly after a reshape (jaxlib 0.10.2, both partitioners).
    if not new.size:
        return base
    return jax.lax.dynamic_update_slice_in_dim(base, new.astype(base.dtype), start, axis)


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
    return at(base, (slice(None),) * _dim(dim, base.ndim) + (places,)).set(new)


@lower(aten.select.int)
def aten_select(self, dim, index):
    return jax.lax.index_in_dim(self, index, _dim(dim, self.ndim), keepdims=False)


@write_back(aten.select.int)
@lower(aten.select_scatter.default)
def aten_select_scatter(base, new, /, dim, index):
    axis = _dim(dim, base.ndim)
    return _update(base, jnp.expand_dims(new, axis), _dim(index, base.shape[axis]), axis)


def _diagonal_index(shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> tuple[np.ndarray | slice, ...]:
    dim1, dim2 = _dim(dim1, len(shape)), _dim(dim2, len(shape))
    length = min(shape[dim1] + min(offset, 0), shape[dim2] - max(offset, 0))
    steps = np.arange(max(length, 0))
    index: list[np.ndarray | slice] = [slice(None)] * len(shape)
    index[dim1], index[dim2] = steps - min(offset, 0), steps + max(offset, 0)
    return tuple(index)


def _diagonal_last(array: jax.Array, dim1: int, dim2: int) -> jax.Array:
    return jnp.moveaxis(array, (dim1, dim2), (-2, -1))


@lower(aten.diagonal.default)
def aten_diagonal(self, offset=0, dim1=0, dim2=1):
    return jnp.diagonal(self, offset, dim1, dim2)


@write_back(aten.diagonal.default)
def _write_diagonal(base, new, offset=0, dim1=0, dim2=1):
    dim1, dim2 = _dim(dim1, base.ndim), _dim(dim2, base.ndim)
    moved = _diagonal_last(base, dim1, dim2)
    index = _diagonal_index(moved.shape, offset, -2, -1)
    return jnp.moveaxis(at(moved, index).set(new), (-2, -1), (dim1, dim2))


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


# --- elements by stride and offset in the base's memory --------------------------------------------------------------


def _storage_order(strides: tuple[int, ...], shape: tuple[int, ...]) -> list[int]:
    return sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))


def _memory_index(shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> np.ndarray:
    index = np.full(shape, offset, np.int64)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        index += (np.arange(size) * stride).reshape((-1,) + (1,) * (len(shape) - dim - 1))
    return index


def _last_writers(index: np.ndarray) -> np.ndarray:
    """The element that is written last, in row-major order, into each place that a view names."""
    flat = index.reshape(-1)
    return flat.size - 1 - np.unique(flat[::-1], return_index=True)[1]


def repeats_memory(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """True if some place in memory is more than one element of a view with these strides."""
    if 0 in shape:
        return False
    reach = 0  # of the elements so far, from the first one
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1):
        if stride <= reach:
            index = _memory_index(shape, strides, 0)
            return np.unique(index).size < index.size
        reach += stride * (size - 1)
    return False


# How a view's elements differ from the memory: a sign, or the dtype as which the bytes are read.
Shown = str | np.dtype
SIGNS = {aten._conj.default: "conj", aten._neg_view.default: "neg"}


def _show(flat: jax.Array, shown: Shown) -> jax.Array:
    """All memory, one-dimensional, as a view reads it."""
    if shown == "conj":
        return jnp.conj(flat)
    return -flat if shown == "neg" else retyped(flat, np.dtype(shown))


def _memory_text(stored: jax.Array, shown: tuple[Shown, ...]) -> list[jax.Array]:
    """Memory in row-major order: as it is, and as each view of the chain reads it."""
    levels = [stored.reshape(-1)]
    for one in shown:
        levels.append(_show(levels[-1], one))
    return levels


def read_strided(base: jax.Array, base_strides, shape, strides, offset, shown: tuple[Shown, ...] = ()) -> jax.Array:
    """The view (shape, strides, offset) of a dense base whose own memory layout is `base_strides`."""
    stored = jnp.transpose(base, _storage_order(base_strides, base.shape))
    return _memory_text(stored, shown)[-1][_memory_index(shape, strides, offset)]


def write_strided(
    base: jax.Array, new: jax.Array, base_strides, shape, strides, offset, shown: tuple[Shown, ...] = ()
) -> jax.Array:
    """The base with the elements of the view (shape, strides, offset) replaced; where the view names a place twice, by
    the last of its elements."""
    order = _storage_order(base_strides, base.shape)
    stored = jnp.transpose(base, order)
    levels = _memory_text(stored, shown)
    index = _memory_index(shape, strides, offset)
    last = _last_writers(index)
    flat = at(levels.pop(), (index.reshape(-1)[last],)).set(new.reshape(-1)[last])
    for one, below in zip(reversed(shown), reversed(levels), strict=True):
        # A conjugate or a negative is its own inverse; bytes after the last complete element are as they were.
        kept = _show(flat, one if one in ("conj", "neg") else below.dtype)
        flat = jnp.concatenate([kept, below[kept.size :]])
    return jnp.transpose(flat.reshape(stored.shape), np.argsort(order).tolist())


# --- several views at once: the rule returns one of them, chosen by the last argument ---------------------------------


def part(overload: Any, shape: tuple[int, ...], arguments: tuple[Any, ...], index: int) -> tuple[Any, tuple[Any, ...]]:
    """Output `index` of a multi-output view as the single-output view that equals it: (overload, arguments)."""
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


# --- broadcast, complex halves ----------------------------------------------------------------------------------------


@lower(aten.expand.default)
def aten_expand(self, size, *, implicit=False, returns):
    return jnp.broadcast_to(self, returns.shape)


@lower(aten.view_as_real.default)
def aten_view_as_real(self):
    return jnp.stack([self.real, self.imag], axis=-1)


@lower(aten.view_as_complex.default)
def aten_view_as_complex(self):
    return jax.lax.complex(self[..., 0], self[..., 1])


@lower(aten._conj.default)
def aten__conj(self):
    return jnp.conj(self)


@lower(aten._neg_view.default)
def aten__neg_view(self):
    return -self


# Each of these views is undone by the rule of one of them.
for _view, _inverse in (
    (aten.view_as_real.default, aten_view_as_complex), (aten.view_as_complex.default, aten_view_as_real),
    (aten._conj.default, aten__conj), (aten._neg_view.default, aten__neg_view),
):  # fmt: skip
    write_back(_view)(lambda base, new, inverse=_inverse: inverse(new))


# --- rearrangements that copy ----------------------------------------------------------------------------------------


_GROUP = 128  # operands of one concatenation, for which XLA's time grows with the square of their number


def _joined(arrays, dim):
    """Concatenates arrays: of more than two groups first each group; the barrier keeps XLA from making it one again."""
    while len(arrays) > 2 * _GROUP:
        groups = [jnp.concatenate(arrays[i : i + _GROUP], axis=dim) for i in range(0, len(arrays), _GROUP)]
        arrays = jax.lax.optimization_barrier(groups)
    return jnp.concatenate(arrays, axis=dim)


@lower(aten.cat.default)
def aten_cat(tensors, dim=0, *, returns):
    # torch lets an empty 1-d tensor join tensors of any shape.
    kept = [tensor for tensor in tensors if tensor.shape != (0,)]
    if not kept:  # torch does not check dim then
        return jnp.zeros(returns.shape, returns.dtype)
    return _joined([tensor.astype(returns.dtype) for tensor in kept], dim)


@lower(aten.stack.default)
def aten_stack(tensors, dim=0, *, returns):
    return _joined([jnp.expand_dims(tensor.astype(returns.dtype), dim) for tensor in tensors], dim)


@lower(aten.repeat.default)
def aten_repeat(self, repeats):
    return jnp.tile(self.reshape((1,) * (len(repeats) - self.ndim) + self.shape), repeats)


@lower(aten.flip.default)
def aten_flip(self, dims):
    return jnp.flip(self, [_dim(dim, self.ndim) for dim in dims]) if self.ndim else self


@lower(aten.roll.default)
def aten_roll(self, shifts, dims=()):
    return jnp.roll(self, shifts, tuple(dims)) if dims else jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)


@lower(aten.constant_pad_nd.default)
def aten_constant_pad_nd(self, pad, value=0):
    widths = [(0, 0, 0)] * self.ndim
    for pair in range(len(pad) // 2):
        widths[self.ndim - 1 - pair] = (pad[2 * pair], pad[2 * pair + 1], 0)
    return jax.lax.pad(self, jnp.asarray(value, self.dtype), widths)
