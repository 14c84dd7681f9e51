"""Elements by stride and offset in memory, and writes at computed positions."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

aten = torch.ops.aten

# --- writes at computed positions -----------------------------------------------------------------

Index = tuple[slice | jax.Array | np.ndarray, ...]

_COMBINE = {"add": jnp.add, "multiply": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def write_at(
    array: jax.Array,
    index: Index,
    values: jax.Array | bool | float,
    method: str = "set",
    mode: str | None = None,
    wrap_negative_indices: bool = True,
) -> jax.Array:
    """`array.at[index].set(values)`, or another method of it, for full slices and positions that
    are in bounds.

    A single position is written by a slice update instead of a scatter. XLA writes a scatter of one
    position into a sharded array as: read the slice there, select, write it back. Where the array
    was replicated before it was sharded, XLA then reads the replicated array at the shard's
    position, and a device that has no such position overwrites its own first element with the value
    read (jaxlib 0.10.2, both partitioners).
    """
    positions = [entry for entry in index if not isinstance(entry, slice)]
    if not positions or math.prod(np.broadcast_shapes(*map(np.shape, positions))) != 1:
        write = getattr(array.at[index], method)
        return write(values, mode=mode, wrap_negative_indices=wrap_negative_indices)
    starts, window = [], []
    for axis, size in enumerate(array.shape):
        entry = index[axis] if axis < len(index) else slice(None)
        is_slice = isinstance(entry, slice)
        start = (
            jnp.zeros((), jnp.int64)
            if is_slice
            else jnp.asarray(entry).reshape(()).astype(jnp.int64)
        )
        starts.append(jnp.where(start < 0, start + size, start) if wrap_negative_indices else start)
        window.append(size if is_slice else 1)
    shape = jax.eval_shape(lambda full: full.at[index].get(), array).shape
    new = jnp.broadcast_to(jnp.asarray(values).astype(array.dtype), shape).reshape(window)
    if method != "set":
        new = _COMBINE[method](lax.dynamic_slice(array, starts, window), new)
    return lax.dynamic_update_slice(array, new, starts)


# --- memory as a view shows it --------------------------------------------------------------------


def retyped(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """The same bytes as another dtype, along the last dim, up to the last complete element.

    Wider and narrower dtypes by shifts: of two bitcasts between widths in a row XLA makes one of
    the wrong shape (jaxlib 0.10.2).
    """
    if array.dtype == dtype:
        return array
    if array.ndim == 0:
        return retyped(array.reshape(1), dtype).reshape(())
    if array.dtype == jnp.bool_:
        return retyped(array.astype(jnp.uint8), dtype)
    lead = array.shape[:-1]
    if jnp.iscomplexobj(array):
        return retyped(
            jnp.stack([array.real, array.imag], axis=-1).reshape(*lead, 2 * array.shape[-1]), dtype
        )
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
        bits = (
            (bits[..., None] >> shifts)
            .astype(np.dtype(f"u{new}"))
            .reshape(*lead, bits.shape[-1] * shifts.size)
        )
    elif new > old:
        count = new // old
        whole = bits.shape[-1] // count
        bits = bits[..., : whole * count].reshape(*lead, whole, count).astype(np.dtype(f"u{new}"))
        bits = jnp.sum(
            bits << np.arange(count, dtype=bits.dtype) * 8 * old, axis=-1, dtype=bits.dtype
        )
    return jax.lax.bitcast_convert_type(bits, dtype)


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
    for stride, size in sorted(
        (stride, size) for stride, size in zip(strides, shape, strict=True) if size != 1
    ):
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
    return [*itertools.accumulate(shown, _show, initial=stored.reshape(-1))]


def read_strided(
    base: jax.Array, base_strides, shape, strides, offset, shown: tuple[Shown, ...] = ()
) -> jax.Array:
    """The view (shape, strides, offset) of a dense base whose own memory layout is
    `base_strides`."""
    stored = jnp.transpose(base, _storage_order(base_strides, base.shape))
    return _memory_text(stored, shown)[-1][_memory_index(shape, strides, offset)]


def write_strided(
    base: jax.Array,
    new: jax.Array,
    base_strides,
    shape,
    strides,
    offset,
    shown: tuple[Shown, ...] = (),
) -> jax.Array:
    """The base with the elements of the view (shape, strides, offset) replaced; where the view
    names a place twice, by the last of its elements."""
    order = _storage_order(base_strides, base.shape)
    stored = jnp.transpose(base, order)
    levels = _memory_text(stored, shown)
    index = _memory_index(shape, strides, offset)
    last = _last_writers(index)
    flat = write_at(levels.pop(), (index.reshape(-1)[last],), new.reshape(-1)[last])
    for way, below in zip(reversed(shown), reversed(levels), strict=True):
        # A conjugate or a negative is its own inverse; bytes after the last complete element are as
        # they were.
        updated_flat = _show(flat, way if way in ("conj", "neg") else below.dtype)
        flat = jnp.concatenate([updated_flat, below[updated_flat.size :]])
    return jnp.transpose(flat.reshape(stored.shape), np.argsort(order).tolist())
