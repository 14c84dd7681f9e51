"""Sliding windows, with their gradients: maximum and average pooling, unpooling, columns, padding at the border.

Windows are separable: a maximum is taken along one dim after the other, so that the work is proportional to the sum of
the window's sides and not to its area. Indices are torch's: positions in the flattened plane of one channel.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .floats import widened
from .registry import lower

aten = torch.ops.aten


def per_dim(values, rank):
    """One value per spatial dim; in torch a single one, in some schemas without its list, is for all."""
    values = (values,) if isinstance(values, int) else tuple(values)
    return values * rank if len(values) == 1 else values


def _settings(rank, window, stride, padding, dilation=1):
    """(window, stride, padding, dilation) per dim; without a stride it is the window."""
    return tuple(per_dim(values, rank) for values in (window, stride or window, padding, dilation))


def adaptive_bounds(size, count):
    """(start, end) of each of `count` windows that cover `size` places as evenly as can be."""
    return [(i * size // count, -((-(i + 1) * size) // count)) for i in range(count)]


# Past this many window places a gradient is scattered instead of summed place by place.
_MOST_PLACES = 32


def _lowest(dtype):
    return -jnp.inf if jnp.issubdtype(dtype, jnp.inexact) else jnp.iinfo(dtype).min


# -- Maximum with indices.


def _better(value, best):
    """True where a value replaces the best so far: torch takes the first of equal values, and any NaN."""
    above = value > best
    return above | jnp.isnan(value) if jnp.issubdtype(value.dtype, jnp.inexact) else above


def _along(values, axis, ndim):
    return jnp.asarray(values).reshape([-1 if dim == axis else 1 for dim in range(ndim)])


def _max_step(best, indices, axis, places, scale):
    """The maximum along one axis: `places` yields, for each place in the window, (positions, mask of those inside)."""
    result = chosen = None
    for take, positions, inside in places:
        value = take(best)
        # `scale` counts the elements of the plane that one step along this axis skips.
        index = _along(positions * scale, axis, best.ndim)
        index = index if indices is None else index + take(indices)
        valid = _along(inside, axis, best.ndim)
        if result is None:
            first = None
            result, chosen = jnp.where(valid, value, jnp.asarray(_lowest(value.dtype), value.dtype)), index
            started = valid
        else:
            first = valid & ~started
            better = (valid & _better(value, result)) | first
            result, chosen = jnp.where(better, value, result), jnp.where(better, index, chosen)
            started = started | valid
    return result, jnp.broadcast_to(chosen, result.shape)


def _strided_places(axis, size, window, stride, padding, dilation, count):
    """The places of a sliding window, each a strided slice of the padded axis."""
    places = []
    high = max(0, (count - 1) * stride + (window - 1) * dilation - padding - size + 1)
    for offset in range(window):
        start = offset * dilation
        positions = np.arange(count) * stride + start - padding

        def take(x, start=start):
            pads = [(padding, high, 0) if dim == axis else (0, 0, 0) for dim in range(x.ndim)]
            padded = lax.pad(x, jnp.zeros((), x.dtype), pads)
            return lax.slice_in_dim(padded, start, start + (count - 1) * stride + 1, stride, axis)

        places.append((take, positions, (positions >= 0) & (positions < size)))
    return places


def _adaptive_places(axis, size, count):
    """The places of windows whose starts and sizes vary: each a gather with known indices."""
    bounds = adaptive_bounds(size, count)
    places = []
    for offset in range(max((end - start for start, end in bounds), default=0)):
        positions = np.array([start + offset for start, _ in bounds])
        inside = np.array([start + offset < end for start, end in bounds])
        kept = np.minimum(positions, size - 1)
        places.append((lambda x, kept=kept: jnp.take(x, kept, axis=axis), kept, inside))
    return places


def _max_pool(x, places_of, rank, returns):
    """(values, indices): `places_of(axis, spatial dim)` gives the window's places along one axis."""
    sizes = x.shape[x.ndim - rank :]
    best, indices = x, None
    for dim in reversed(range(rank)):
        axis = x.ndim - rank + dim
        best, indices = _max_step(best, indices, axis, places_of(axis, dim), math.prod(sizes[dim + 1 :]))
    return best, indices.astype(returns[1].dtype)


@lower(aten.max_pool2d_with_indices.default, rank=2, empty=True)
@lower(aten.max_pool3d_with_indices.default, rank=3, empty=True)
def aten_max_pool_with_indices(
    self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False, *, rank, returns
):  # fmt: skip
    window, stride, padding, dilation = _settings(rank, kernel_size, stride, padding, dilation)
    sizes, counts = self.shape[self.ndim - rank :], returns[0].shape[self.ndim - rank :]

    def places(axis, dim):
        return _strided_places(axis, sizes[dim], window[dim], stride[dim], padding[dim], dilation[dim], counts[dim])

    return _max_pool(self, places, rank, returns)


@lower(aten.adaptive_max_pool2d.default, rank=2, empty=True)
@lower(aten.adaptive_max_pool3d.default, rank=3, empty=True)
def aten_adaptive_max_pool(self, output_size, *, rank, returns):
    sizes = self.shape[self.ndim - rank :]
    return _max_pool(self, lambda axis, dim: _adaptive_places(axis, sizes[dim], output_size[dim]), rank, returns)


def _scattered(values, indices, shape, rank, method="add"):
    """Values written into planes of `shape` at flat indices; planes are independent: a sharded batch stays sharded."""
    lead, plane = math.prod(shape[: len(shape) - rank]), math.prod(shape[len(shape) - rank :])
    write = jax.vmap(lambda v, i: getattr(jnp.zeros((plane,), v.dtype).at[i], method)(v))
    return write(values.reshape(lead, -1), indices.reshape(lead, -1)).reshape(shape)


@lower(aten.max_pool2d_with_indices_backward.default, rank=2, empty=True)
@lower(aten.max_pool3d_with_indices_backward.default, rank=3, empty=True)
def aten_max_pool_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices, *, rank
):
    window, stride, padding, dilation = _settings(rank, kernel_size, stride, padding, dilation)
    lead, wide, total = self.ndim - rank, widened(grad_output), None
    if math.prod(window) > _MOST_PLACES:
        return _scattered(wide, indices, self.shape, rank).astype(grad_output.dtype)
    sizes, counts = self.shape[lead:], grad_output.shape[lead:]
    zero = jnp.zeros((), wide.dtype)
    for offset in np.ndindex(*window):
        # Where this place of the window has the maximum, its gradient goes to one position; strides spread them.
        position, gaps, pads = jnp.zeros((), indices.dtype), [(0, 0, 0)] * lead, [(0, 0, 0)] * lead
        for dim in range(rank):
            start = offset[dim] * dilation[dim] - padding[dim]
            along = np.arange(counts[dim]) * stride[dim] + start
            along = np.where((along >= 0) & (along < sizes[dim]), along * math.prod(sizes[dim + 1 :]), -(2**40))
            position = position + _along(along, lead + dim, self.ndim)
            # Two pads: XLA's partitioners abort where one pad both cuts elements off and puts gaps between them.
            gaps.append((0, stride[dim] - 1, stride[dim] - 1))
            pads.append((start, sizes[dim] - start - counts[dim] * stride[dim], 0))
        part = lax.pad(lax.pad(jnp.where(indices == position, wide, zero), zero, gaps), zero, pads)
        total = part if total is None else total + part
    return total.astype(grad_output.dtype)


@lower(aten.adaptive_max_pool2d_backward.default, rank=2, empty=True)
@lower(aten.adaptive_max_pool3d_backward.default, rank=3, empty=True)
def aten_adaptive_max_pool_backward(grad_output, self, indices, *, rank):
    return _scattered(widened(grad_output), indices, self.shape, rank).astype(grad_output.dtype)


# -- Unpooling writes each value to its index; the last of equal indices wins, as in a plain loop.


@lower(aten.max_unpool2d.default, rank=2, empty=True)
@lower(aten.max_unpool3d.default, rank=3, empty=True)
def aten_max_unpool(self, indices, output_size, stride=None, padding=None, *, rank, returns):
    return _scattered(self, indices, returns.shape, rank, "set")


# -- Averages.


def _divisors(sizes, window, stride, padding, counts, include_pad, override):
    """The divisors of the windows' sums: one number, or one for each window."""
    if override is not None:
        return np.asarray(override)
    result = np.ones((), np.int64)
    for size, side, step, pad, count in zip(sizes, window, stride, padding, counts, strict=True):
        start = np.arange(count) * step - pad
        end = np.minimum(start + side, size + pad)
        covered = end - start if include_pad else np.minimum(end, size) - np.maximum(start, 0)
        result = result[..., None] * covered
    return result if result.min() != result.max() else result.reshape(-1)[0]


def _window_sum(x, rank, window, stride, padding, counts):
    lead = x.ndim - rank
    # The reduction pads by itself; the rest after the last window is less than a stride and makes no further window.
    pads = [(0, 0)] * lead
    for dim in range(rank):
        needed = (counts[dim] - 1) * stride[dim] + window[dim]
        pads.append((padding[dim], max(0, needed - padding[dim] - x.shape[lead + dim])))
    zero = np.zeros((), x.dtype)
    return lax.reduce_window(x, zero, lax.add, (1,) * lead + window, (1,) * lead + stride, pads)


def _divided(x, divisors):
    divisors = jnp.asarray(divisors).astype(x.dtype)
    return x / divisors if jnp.issubdtype(x.dtype, jnp.inexact) else lax.div(x, jnp.broadcast_to(divisors, x.shape))


def _average(x, kernel_size, stride, padding, count_include_pad, override, rank, shape):
    """(the sum over windows as a function of x, the divisors of the sums)."""
    window, stride, padding, _ = _settings(rank, kernel_size, stride, padding)
    lead = x.ndim - rank
    counts = shape[lead:]
    divisors = _divisors(x.shape[lead:], window, stride, padding, counts, count_include_pad, override)
    return lambda values: _window_sum(values, rank, window, stride, padding, counts), divisors


@lower(aten.avg_pool2d.default, rank=2, empty=True)
@lower(aten.avg_pool3d.default, rank=3, empty=True)
def aten_avg_pool(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None,
    *, rank, returns,
):  # fmt: skip
    windows = kernel_size, stride, padding, count_include_pad, divisor_override, rank
    total, divisors = _average(self, *windows, returns.shape)
    return _divided(total(widened(self)), divisors).astype(self.dtype)


@lower(aten.avg_pool2d_backward.default, rank=2, empty=True)
@lower(aten.avg_pool3d_backward.default, rank=3, empty=True)
def aten_avg_pool_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, *, rank
):
    wide = widened(grad_output)
    windows = kernel_size, stride, padding, count_include_pad, divisor_override, rank
    total, divisors = _average(self, *windows, grad_output.shape)
    (result,) = jax.linear_transpose(total, jax.ShapeDtypeStruct(self.shape, wide.dtype))(_divided(wide, divisors))
    return result.astype(grad_output.dtype)


# -- Adaptive averages: a reshape where the sizes divide, else a small matrix along each dim.


def _averaging_matrix(size, count):
    result = np.zeros((count, size))
    for row, (start, end) in enumerate(adaptive_bounds(size, count)):
        result[row, start:end] = 1 / (end - start)
    return result


def _adaptive_axis(x, axis, count):
    size = x.shape[axis]
    if size % count == 0:
        return jnp.mean(x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]), axis=axis + 1)
    matrix = jnp.asarray(_averaging_matrix(size, count), x.dtype)
    return jnp.moveaxis(jnp.tensordot(x, matrix, (axis, 1), precision=lax.Precision.HIGHEST), -1, axis)


def _adaptive_average(x, output_size):
    for dim, count in enumerate(output_size):
        x = _adaptive_axis(x, x.ndim - len(output_size) + dim, count)
    return x


@lower(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, empty=True)
def aten_adaptive_avg_pool(self, output_size):
    return _adaptive_average(widened(self), tuple(output_size)).astype(self.dtype)


@lower(aten._adaptive_avg_pool2d_backward.default, rank=2, empty=True)
@lower(aten._adaptive_avg_pool3d_backward.default, rank=3, empty=True)
def aten_adaptive_avg_pool_backward(grad_output, self, *, rank):
    wide, sizes = widened(grad_output), grad_output.shape[grad_output.ndim - rank :]
    like = jax.ShapeDtypeStruct(self.shape, wide.dtype)
    (result,) = jax.linear_transpose(lambda values: _adaptive_average(values, sizes), like)(wide)
    return result.astype(grad_output.dtype)


# -- Windows as columns.


def _windows(x, kernel_size, dilation, padding, stride):
    """[N, C, kernel places, window places] of x [N, C, H, W]."""
    pads = [(0, 0, 0)] * 2 + [(pad, pad, 0) for pad in padding]
    padded = lax.pad(x, jnp.zeros((), x.dtype), pads)
    counts = [(padded.shape[2 + d] - dilation[d] * (kernel_size[d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    parts = []
    for offset in np.ndindex(*kernel_size):
        start = [0, 0] + [offset[d] * dilation[d] for d in range(2)]
        stop = list(x.shape[:2]) + [start[2 + d] + (counts[d] - 1) * stride[d] + 1 for d in range(2)]
        parts.append(lax.slice(padded, start, stop, (1, 1, *stride)).reshape(*x.shape[:2], -1))
    return jnp.stack(parts, axis=2)


def _of_planes(*parameters):
    return (per_dim(values, 2) for values in parameters)


@lower(aten.im2col.default, empty=True)
def aten_im2col(self, kernel_size, dilation, padding, stride, *, returns):
    batched = self.reshape(-1, *self.shape[-3:])
    result = _windows(batched, *_of_planes(kernel_size, dilation, padding, stride))
    return result.reshape(returns.shape)


@lower(aten.col2im.default, empty=True)
def aten_col2im(self, output_size, kernel_size, dilation, padding, stride, *, returns):
    kernel_size, dilation, padding, stride = _of_planes(kernel_size, dilation, padding, stride)
    shape = (math.prod(returns.shape[:-3]), *returns.shape[-3:])
    wide = widened(self)
    like = jax.ShapeDtypeStruct(shape, wide.dtype)
    function = lambda x: _windows(x, kernel_size, dilation, padding, stride)  # noqa: E731
    columns = wide.reshape(jax.eval_shape(function, like).shape)
    (result,) = jax.linear_transpose(function, like)(columns)
    return result.reshape(returns.shape).astype(self.dtype)


# -- Padding by reflection ("reflect") and by repetition ("edge"); negative padding cuts.


def _bordered(x, padding, mode):
    pairs = [(padding[2 * i], padding[2 * i + 1]) for i in reversed(range(len(padding) // 2))]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [(max(low, 0), max(high, 0)) for low, high in pairs]
    result = jnp.pad(x, widths, mode=mode)
    lead = x.ndim - len(pairs)
    for dim, (low, high) in enumerate(pairs):
        result = lax.slice_in_dim(result, max(-low, 0), result.shape[lead + dim] - max(-high, 0), axis=lead + dim)
    return result


def _register_padding(name, mode):
    def forward(self, padding):
        return _bordered(self, padding, mode)

    def backward(grad_output, self, padding):
        wide = widened(grad_output)
        like = jax.ShapeDtypeStruct(self.shape, wide.dtype)
        (result,) = jax.linear_transpose(lambda x: _bordered(x, padding, mode), like)(wide)
        return result.astype(grad_output.dtype)

    for rank in (1, 2, 3):
        lower(getattr(aten, f"{name}{rank}d").default)(forward)
        lower(getattr(aten, f"{name}{rank}d_backward").default)(backward)


_register_padding("reflection_pad", "reflect")
_register_padding("replication_pad", "edge")
