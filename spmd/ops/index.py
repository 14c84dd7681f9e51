"""Reading and writing at computed positions.

Shapes that depend on data (masks, nonzero) have no static program.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .floats import missing, wide
from .registry import lower
from .sharded import loses_nan
from .strided import write_at

aten = torch.ops.aten

_IN_BOUNDS = "promise_in_bounds"


def _accumulator(dtype):
    """The dtype of a sum at one position: float32 for narrow floats, rounded once; booleans are
    counted."""
    return jnp.int32 if dtype == jnp.bool_ else wide(dtype)


# -- Positions that vary along one dim: gather and scatter. torch allows no negative index here.


def _grid(index, dim):
    """The full coordinates of each element of `index`: its own position, but `index` along dim."""
    return tuple(
        index if axis == dim else lax.broadcasted_iota(index.dtype, index.shape, axis)
        for axis in range(index.ndim)
    )


# jnp.atleast_1d of several arrays is a function of its own in each program.
def _at_least_1d(*arrays):
    return tuple(array.reshape(1) if array.ndim == 0 else array for array in arrays)


@lower(aten.gather.default, empty=True)  # an index without elements has any number of dims
def aten_gather(self, dim, index, *, sparse_grad=False):
    shape = index.shape
    self, index = _at_least_1d(self, index)
    dim = dim % self.ndim
    # torch lets index be smaller than self in the other dims.
    limits = [self.shape[axis] if axis == dim else index.shape[axis] for axis in range(self.ndim)]
    if list(self.shape) != limits:
        self = lax.slice(self, [0] * self.ndim, limits)
    return jnp.take_along_axis(self, index, dim, **missing(self.dtype)).reshape(shape)


_COMBINE = {
    None: "set",
    "add": "add",
    "sum": "add",
    "mean": "add",
    "multiply": "multiply",
    "prod": "multiply",
    "amax": "max",
    "amin": "min",
}


@lower(aten.scatter.src, aten.scatter.reduce)
@lower(aten.scatter_add.default, reduce="add")
def aten_scatter(self, dim, index, src, *, reduce=None):
    shape = self.shape
    self, index, src = _at_least_1d(self, index, src)
    if index.size == 0:
        return self.reshape(shape)
    dim = dim % self.ndim
    if src.shape != index.shape:
        src = lax.slice(src, [0] * src.ndim, index.shape)
    wide = self.dtype if reduce is None else _accumulator(self.dtype)
    return (
        _write(self.astype(wide), dim, index, src.astype(wide), _COMBINE[reduce])
        .astype(self.dtype)
        .reshape(shape)
    )


_SCATTERS = {
    "set": lax.scatter,
    "add": lax.scatter_add,
    "multiply": lax.scatter_mul,
    "max": lax.scatter_max,
    "min": lax.scatter_min,
}


def _write(self, dim, index, src, method):
    batch_dims = tuple(axis for axis in range(self.ndim) if axis != dim)
    if index.size == 1 or any(index.shape[axis] != self.shape[axis] for axis in batch_dims):
        return write_at(
            self, _grid(index, dim), src, method, _IN_BOUNDS, wrap_negative_indices=False
        )
    # The other dims are declared as batch dims: no partitioner sees that computed positions stay in
    # the shard of their own device, and would gather all that is written (the gradient of a `topk`
    # over a batch, say).
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(),
        inserted_window_dims=(dim,),
        scatter_dims_to_operand_dims=(dim,),
        operand_batching_dims=batch_dims,
        scatter_indices_batching_dims=batch_dims,
    )
    # In 32 bits: where rows must be padded, XLA's partitioner pads positions with an int32 and
    # aborts on wider ones.
    narrow = index.astype(jnp.int32) if self.shape[dim] < 2**31 else index
    return _SCATTERS[method](self, narrow[..., None], src, numbers, mode=_IN_BOUNDS)


@lower(aten.scatter.value, aten.scatter.value_reduce)
def aten_scatter_value(self, dim, index, value, *, reduce=None):
    return aten_scatter(self, dim, index, jnp.full(index.shape, value, self.dtype), reduce=reduce)


def _identity(reduce, dtype):
    """The initial value of a reduction where self is not included."""
    is_exact = not jnp.issubdtype(dtype, jnp.inexact)
    lowest, highest = (
        (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max) if is_exact else (-jnp.inf, jnp.inf)
    )
    return jnp.asarray({"prod": 1, "amax": lowest, "amin": highest}.get(reduce, 0), dtype)


def _reduce_into(self, source, write, reduce, include_self):
    """The reduction of the source, as `write(array, values, method)` writes it, over self or over
    nothing."""
    touched = write(jnp.zeros(self.shape, jnp.bool_), jnp.ones(source.shape, jnp.bool_), "set")
    wide = self.astype(_accumulator(self.dtype))
    start = wide if include_self else jnp.where(touched, _identity(reduce, wide.dtype), wide)
    result = write(start, source.astype(wide.dtype), _COMBINE[reduce])
    if reduce in ("amax", "amin") and loses_nan(wide.dtype):
        num_nans = write(
            jnp.zeros(self.shape, wide.dtype), jnp.isnan(source).astype(wide.dtype), "add"
        )
        result = jnp.where(num_nans > 0, jnp.nan, result).astype(wide.dtype)
    if reduce == "mean":
        ones = jnp.ones(source.shape, wide.dtype)
        counts = write(jnp.full(self.shape, int(include_self), wide.dtype), ones, "add")
        counts = jnp.maximum(counts, jnp.ones((), wide.dtype))
        result = (
            result / counts
            if jnp.issubdtype(wide.dtype, jnp.inexact)
            else jnp.floor_divide(result, counts)
        )
    return jnp.where(touched, result, wide).astype(self.dtype)


@lower(aten.scatter_reduce.two)
def aten_scatter_reduce(self, dim, index, src, reduce, *, include_self=True):
    shape = self.shape
    self, index, src = _at_least_1d(self, index, src)
    if index.size == 0:
        return self.reshape(shape)
    src, dim = lax.slice(src, [0] * src.ndim, index.shape), dim % self.ndim

    def write(array, values, method):
        return _write(array, dim, index, values, method)

    return _reduce_into(self, src, write, reduce, include_self).reshape(shape)


# -- Full slices at positions of one dim.


def _slices(self, dim, index):
    """The index of the positions `index` along dim, with full slices in the other dims."""
    return (slice(None),) * (dim % self.ndim) + (index.reshape(-1),)


def _write_slices(self, dim, index, source, method):
    shape = self.shape
    self, source = _at_least_1d(self, source)
    wide = self.dtype if method == "set" else _accumulator(self.dtype)
    result = write_at(
        self.astype(wide), _slices(self, dim, index), source.astype(wide), method, _IN_BOUNDS
    )
    return result.astype(self.dtype).reshape(shape)


@lower(aten.index_select.default)
def aten_index_select(self, dim, index):
    if self.ndim == 0:
        return self
    return self.at[_slices(self, dim, index)].get(
        **missing(self.dtype), wrap_negative_indices=False
    )


@lower(aten.index_add.default)
def aten_index_add(self, dim, index, source, *, alpha=1):
    scaled = (
        source
        if isinstance(alpha, int) and alpha == 1
        else source * jnp.asarray(alpha).astype(source.dtype)
    )
    return _write_slices(self, dim, index, scaled, "add")


@lower(aten.index_copy.default)
def aten_index_copy(self, dim, index, source):
    return _write_slices(self, dim, index, source, "set")


@lower(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def aten_index_fill(self, dim, index, value):
    return _write_slices(self, dim, index, jnp.asarray(value), "set")


@lower(aten.index_reduce.default)
def aten_index_reduce(self, dim, index, source, reduce, *, include_self=True):
    shape = self.shape
    self, source = _at_least_1d(self, source)

    def write(array, values, method):
        return write_at(array, _slices(self, dim, index), values, method, _IN_BOUNDS)

    return _reduce_into(self, source, write, reduce, include_self).reshape(shape)


# -- Advanced indexing. numpy's placement of the indexed dims is torch's.


def _full_index(indices, call):
    for index in indices:
        if index is not None and index.dtype in (np.bool_, np.uint8):
            raise NotImplementedError(
                f"{call}: a boolean mask selects a number of elements that depends on the data, "
                "and a compiled program has static shapes; use torch.where(mask, x, other), "
                "x.masked_fill(mask, value) or integer indices"
            )
    return tuple(slice(None) if index is None else index for index in indices)


@lower(aten.index.Tensor, aten._unsafe_index.Tensor)
def aten_index(self, indices):
    return self.at[_full_index(indices, "x[mask]")].get(**missing(self.dtype))


def _put_mask(self, indices, values, accumulate):
    """x[:, mask] = values, of a single boolean mask all of whose hits take the same values; else
    None."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if len(axes) != 1 or indices[axes[0]].dtype != np.bool_:
        return None
    axis, mask = axes[0], indices[axes[0]]
    trailing = self.ndim - axis - mask.ndim
    if values.ndim > trailing:  # leading dims, the dim of hits (size 1), trailing dims
        lead = values.ndim - trailing - 1
        if values.shape[lead] != 1:
            return None
        values = values.reshape(values.shape[:lead] + (1,) * mask.ndim + values.shape[lead + 1 :])
    values = values.astype(self.dtype)
    mask = mask.reshape((1,) * axis + mask.shape + (1,) * trailing)
    return jnp.where(mask, self + values if accumulate else values, self)


@lower(aten.index_put.default, aten._unsafe_index_put.default, aten._index_put_impl.default)
def aten_index_put(self, indices, values, accumulate=False, unsafe=False):
    masked = _put_mask(self, indices, values, accumulate)
    if masked is not None:
        return masked
    return _put(self, _full_index(indices, "x[mask] = values"), values, accumulate)


def _put(self, index, values, accumulate):
    dtype, method = (_accumulator(self.dtype), "add") if accumulate else (self.dtype, "set")
    return write_at(self.astype(dtype), index, values.astype(dtype), method, _IN_BOUNDS).astype(
        self.dtype
    )


@lower(aten.put.default)
def aten_put(self, index, source, accumulate=False):
    return _put(self.reshape(-1), (index.reshape(-1),), source.reshape(-1), accumulate).reshape(
        self.shape
    )


# -- Masks whose result has a static shape.


@lower(aten.masked_scatter.default)
def aten_masked_scatter(self, mask, source):
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    self, mask = jnp.broadcast_to(self, shape), jnp.broadcast_to(mask, shape)
    if not source.size:  # then there is no hit either
        return self
    # The n-th hit takes the n-th element of source.
    order = jnp.cumsum(mask.reshape(-1), dtype=jnp.int64).reshape(shape) - 1
    picked = source.reshape(-1).at[jnp.maximum(order, 0)].get(**missing(source.dtype))
    return jnp.where(mask, picked.astype(self.dtype), self)


@lower(aten.masked_scatter_backward.default)
def aten_masked_scatter_backward(grad_output, mask, sizes):
    count = int(np.prod(sizes, dtype=np.int64))
    flat = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    order = jnp.where(flat, jnp.cumsum(flat, dtype=jnp.int64) - 1, count)  # past the end: dropped
    zeros = jnp.zeros((count,), grad_output.dtype)
    return zeros.at[order].set(grad_output.reshape(-1), mode="drop").reshape(tuple(sizes))


@lower(aten.nonzero_static.default)
def aten_nonzero_static(self, *, size, fill_value=-1):
    if self.ndim == 0:
        return jnp.zeros((size, 0), jnp.int64)
    if not self.size:
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(self, size=size, fill_value=fill_value), axis=1).astype(jnp.int64)


@lower(aten.repeat_interleave.Tensor)
def aten_repeat_interleave(repeats, *, output_size=None):
    if not repeats.shape[0]:
        return repeats
    positions = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(positions, repeats, total_repeat_length=output_size)


@lower(aten.tril.default, part=jnp.tril)
@lower(aten.triu.default, part=jnp.triu)
def aten_triangle(self, diagonal=0, *, part):
    return part(self, diagonal)


# -- Search.


def _search(edges, values, right, out_int32):
    search = partial(jnp.searchsorted, side="right" if right else "left", method="compare_all")
    for _ in edges.shape[:-1]:
        search = jax.vmap(search)
    return search(edges, jnp.asarray(values)).astype(jnp.int32 if out_int32 else jnp.int64)


@lower(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def aten_searchsorted(
    sorted_sequence, self, *, out_int32=False, right=False, side=None, sorter=None
):
    if sorter is not None:
        sorted_sequence = jnp.take_along_axis(sorted_sequence, sorter, -1)
    return _search(sorted_sequence, self, right or side == "right", out_int32)


@lower(aten.bucketize.Tensor, aten.bucketize.Scalar)
def aten_bucketize(self, boundaries, *, out_int32=False, right=False):
    return _search(boundaries, self, right, out_int32)
