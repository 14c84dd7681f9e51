"""Sliding windows, with their gradients: maximum and average pooling, unpooling, columns, padding
at the border.

Windows are separable: a maximum is taken along one dim after the other, so that the work is
proportional to the sum of the window's sides and not to its area. Indices are torch's: positions in
the flattened plane of one channel.
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
    """One value per spatial dim; in torch a single one, in some schemas without its list, is for
    all."""
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


# -- Maximum with indices.


def _better(value, best):
    """True where a value replaces the best so far: torch takes the first of equal values, and any
    NaN."""
    above = value > best
    return above | jnp.isnan(value) if jnp.issubdtype(value.dtype, jnp.inexact) else above


def _along(values, axis, ndim):
    return jnp.asarray(values).reshape([-1 if dim == axis else 1 for dim in range(ndim)])


def _max_step(best, indices, axis, places, scale):
    """The maximum along one axis: `places` yields, for each place in the window, (positions, mask
    of those inside)."""
    result = best_index = None
    for take, positions, inside in places:
        value = take(best)
        # `scale` counts the elements of the plane that one step along this axis skips.
        index = _along(positions * scale, axis, best.ndim)
        index = index if indices is None else index + take(indices)
        valid = _along(inside, axis, best.ndim)
        if result is None:
            lowest = (
                -jnp.inf if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.iinfo(value.dtype).min
            )
            result, best_index = jnp.where(valid, value, jnp.asarray(lowest, value.dtype)), index
            started = valid
        else:
            better = (valid & _better(value, result)) | (valid & ~started)
            result, best_index = (
                jnp.where(better, value, result),
                jnp.where(better, index, best_index),
            )
            started = started | valid
    return result, jnp.broadcast_to(best_index, result.shape)


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
        clipped_positions = np.minimum(positions, size - 1)
        places.append(
            (
                lambda x, clipped_positions=clipped_positions: jnp.take(
                    x, clipped_positions, axis=axis
                ),
                clipped_positions,
                inside,
            )
        )
    return places


def _max_pool(x, places_of, rank, returns):
    """(values, indices): `places_of(axis, spatial dim)` gives the window's places along one
    axis."""
    sizes = x.shape[x.ndim - rank :]
    best, indices = x, None
    for dim in reversed(range(rank)):
        axis = x.ndim - rank + dim
        best, indices = _max_step(
            best, indices, axis, places_of(axis, dim), math.prod(sizes[dim + 1 :])
        )
    return best, indices.astype(returns[1].dtype)


@lower(aten.max_pool2d_with_indices.default, rank=2, empty=True)
@lower(aten.max_pool3d_with_indices.default, rank=3, empty=True)
def aten_max_pool_with_indices(
    self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False, *, rank, returns
):
    window, stride, padding, dilation = _settings(rank, kernel_size, stride, padding, dilation)
    sizes, counts = self.shape[self.ndim - rank :], returns[0].shape[self.ndim - rank :]

    def places(axis, dim):
        return _strided_places(
            axis, sizes[dim], window[dim], stride[dim], padding[dim], dilation[dim], counts[dim]
        )

    return _max_pool(self, places, rank, returns)


@lower(aten.adaptive_max_pool2d.default, rank=2, empty=True)
@lower(aten.adaptive_max_pool3d.default, rank=3, empty=True)
def aten_adaptive_max_pool(self, output_size, *, rank, returns):
    sizes = self.shape[self.ndim - rank :]
    return _max_pool(
        self, lambda axis, dim: _adaptive_places(axis, sizes[dim], output_size[dim]), rank, returns
    )


def _scattered(values, indices, shape, rank, method="add"):
    """Values written into planes of `shape` at flat indices; planes are independent: a sharded
    batch stays sharded."""
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
        # Where this place of the window has the maximum, its gradient goes to one position; strides
        # spread them.
        position, gaps, pads = jnp.zeros((), indices.dtype), [(0, 0, 0)] * lead, [(0, 0, 0)] * lead
        for dim in range(rank):
            start = offset[dim] * dilation[dim] - padding[dim]
            along = np.arange(counts[dim]) * stride[dim] + start
            along = np.where(
                (along >= 0) & (along < sizes[dim]), along * math.prod(sizes[dim + 1 :]), -(2**40)
            )
            position = position + _along(along, lead + dim, self.ndim)
            # Two pads: XLA's partitioners abort where one pad both cuts elements off and puts gaps
            # between them.
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


def _divisors(sizes, window, stride, padding, counts, include_pad):
    """The divisors of the windows' sums: one number, or one for each window."""
    result = np.ones((), np.int64)
    for size, side, step, pad, count in zip(sizes, window, stride, padding, counts, strict=True):
        start = np.arange(count) * step - pad
        end = np.minimum(start + side, size + pad)
        covered = end - start if include_pad else np.minimum(end, size) - np.maximum(start, 0)
        result = result[..., None] * covered
    return result if result.min() != result.max() else result.reshape(-1)[0]


@lower(aten.avg_pool2d.default, rank=2, empty=True)
@lower(aten.avg_pool3d.default, rank=3, empty=True)
def aten_avg_pool(
    self,
    kernel_size,
    stride=(),
    padding=0,
    ceil_mode=False,
    count_include_pad=True,
    divisor_override=None,
    *,
    rank,
    returns,
):
    window, stride, padding, _ = _settings(rank, kernel_size, stride, padding)
    x, lead = widened(self), self.ndim - rank
    sizes, counts = x.shape[lead:], returns.shape[lead:]
    # The reduction pads by itself; the rest after the last window is less than a stride and makes
    # no further window.
    pads = [(0, 0)] * lead
    for size, side, step, pad, count in zip(sizes, window, stride, padding, counts, strict=True):
        pads.append((pad, max(0, (count - 1) * step + side - pad - size)))
    zero = np.zeros((), x.dtype)
    total = lax.reduce_window(x, zero, lax.add, (1,) * lead + window, (1,) * lead + stride, pads)
    divisors = divisor_override or _divisors(
        sizes, window, stride, padding, counts, count_include_pad
    )
    divisors = jnp.asarray(divisors).astype(x.dtype)
    is_exact = not jnp.issubdtype(x.dtype, jnp.inexact)
    result = (
        lax.div(total, jnp.broadcast_to(divisors, total.shape)) if is_exact else total / divisors
    )
    return result.astype(self.dtype)


def _transposed(function, like, grad):
    """The gradient of a linear function of arrays like `like`, computed in the wide dtype."""
    wide = widened(grad)
    (result,) = jax.linear_transpose(function, jax.ShapeDtypeStruct(like.shape, wide.dtype))(wide)
    return result.astype(grad.dtype)


@lower(aten.avg_pool2d_backward.default, rank=2, empty=True)
@lower(aten.avg_pool3d_backward.default, rank=3, empty=True)
def aten_avg_pool_backward(grad_output, self, *settings, rank):
    return _transposed(
        lambda x: aten_avg_pool(x, *settings, rank=rank, returns=grad_output), self, grad_output
    )


# -- Adaptive averages: a reshape where the sizes divide, else a small matrix along each dim.


def _adaptive_axis(x, axis, count):
    size = x.shape[axis]
    if size % count == 0:
        return jnp.mean(
            x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]), axis=axis + 1
        )
    matrix = np.zeros((count, size))
    for row, (start, end) in enumerate(adaptive_bounds(size, count)):
        matrix[row, start:end] = 1 / (end - start)
    return multiplied(x, matrix, axis)


def multiplied(x, matrix, axis):
    """x with one axis multiplied by a matrix of [new, old]."""
    result = jnp.tensordot(
        x, jnp.asarray(matrix, x.dtype), (axis, 1), precision=lax.Precision.HIGHEST
    )
    return jnp.moveaxis(result, -1, axis)


@lower(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default, empty=True)
def aten_adaptive_avg_pool(self, output_size):
    result = widened(self)
    for axis, count in enumerate(output_size, self.ndim - len(output_size)):
        result = _adaptive_axis(result, axis, count)
    return result.astype(self.dtype)


@lower(aten._adaptive_avg_pool2d_backward.default, rank=2, empty=True)
@lower(aten._adaptive_avg_pool3d_backward.default, rank=3, empty=True)
def aten_adaptive_avg_pool_backward(grad_output, self, *, rank):
    sizes = grad_output.shape[grad_output.ndim - rank :]
    return _transposed(lambda x: aten_adaptive_avg_pool(x, sizes), self, grad_output)


# -- Windows as columns.


def taken(x, window, stride, pads, dilation):
    """The places under each element of a window, one after the other: x [N, C, ...] as [N, C,
    *numbers of windows]."""
    x = lax.pad(
        x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in pads))
    )
    sizes = zip(x.shape[2:], window, dilation, stride, strict=True)
    counts = [(size - (w - 1) * d - 1) // s + 1 for size, w, d, s in sizes]
    parts = []
    for offset in np.ndindex(*window):
        starts = [i * d for i, d in zip(offset, dilation, strict=True)]
        ends = [start + (n - 1) * s + 1 for start, n, s in zip(starts, counts, stride, strict=True)]
        parts.append(lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *stride)))
    return parts


@lower(aten.im2col.default, empty=True)
def aten_im2col(self, kernel_size, dilation, padding, stride, *, returns):
    window, dilation, padding, stride = (
        per_dim(values, 2) for values in (kernel_size, dilation, padding, stride)
    )
    planes = self.reshape(-1, *self.shape[-3:])
    parts = taken(planes, window, stride, [(pad, pad) for pad in padding], dilation)
    return jnp.stack(parts, axis=2).reshape(returns.shape)


@lower(aten.col2im.default, empty=True)
def aten_col2im(self, output_size, kernel_size, dilation, padding, stride, *, returns):
    windows = kernel_size, dilation, padding, stride
    return _transposed(lambda planes: aten_im2col(planes, *windows, returns=self), returns, self)


# -- Padding by reflection ("reflect") and by repetition ("edge"); negative padding cuts.


def _bordered(self, padding, *, mode):
    pairs = [(padding[2 * i], padding[2 * i + 1]) for i in reversed(range(len(padding) // 2))]
    lead = self.ndim - len(pairs)
    result = jnp.pad(
        self, [(0, 0)] * lead + [(max(low, 0), max(high, 0)) for low, high in pairs], mode=mode
    )
    for dim, (low, high) in enumerate(pairs, lead):
        result = lax.slice_in_dim(result, max(-low, 0), result.shape[dim] - max(-high, 0), axis=dim)
    return result


def _bordered_backward(grad_output, self, padding, *, mode):
    return _transposed(lambda x: _bordered(x, padding, mode=mode), self, grad_output)


for _name, _mode in (("reflection_pad", "reflect"), ("replication_pad", "edge")):
    for _rank in (1, 2, 3):
        lower(getattr(aten, f"{_name}{_rank}d").default, mode=_mode)(_bordered)
        lower(getattr(aten, f"{_name}{_rank}d_backward").default, mode=_mode)(_bordered_backward)
