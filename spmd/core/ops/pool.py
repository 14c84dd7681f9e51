"""Maximum pooling: sliding, adaptive, and unpooling, with their gradients. Averages are in `average_pool`.

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
from .promised import zeros
from .registry import lower
from .windows import adaptive_bounds, per_dim

aten = torch.ops.aten

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
    for place in range(window):
        start = place * dilation
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
    for place in range(max((end - start for start, end in bounds), default=0)):
        positions = np.array([start + place for start, _ in bounds])
        inside = np.array([start + place < end for start, end in bounds])
        kept = np.minimum(positions, size - 1)
        places.append((lambda x, kept=kept: jnp.take(x, kept, axis=axis), kept, inside))
    return places


def _max_pool(x, places_of, rank, returns):
    """(values, indices): `places_of(axis, spatial dim)` gives the window's places along one axis."""
    if 0 in returns[0].shape:
        return zeros(returns)
    sizes = x.shape[x.ndim - rank :]
    best, indices = x, None
    for dim in reversed(range(rank)):
        axis = x.ndim - rank + dim
        best, indices = _max_step(best, indices, axis, places_of(axis, dim), math.prod(sizes[dim + 1 :]))
    return best, indices.astype(returns[1].dtype)


@lower(aten.max_pool2d_with_indices.default, rank=2)
@lower(aten.max_pool3d_with_indices.default, rank=3)
def aten_max_pool_with_indices(
    self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False, *, rank, returns
):  # fmt: skip
    window = per_dim(kernel_size, rank)
    stride = per_dim(stride, rank) if stride else window
    padding, dilation = per_dim(padding, rank), per_dim(dilation, rank)
    sizes, counts = self.shape[self.ndim - rank :], returns[0].shape[self.ndim - rank :]

    def places(axis, dim):
        return _strided_places(axis, sizes[dim], window[dim], stride[dim], padding[dim], dilation[dim], counts[dim])

    return _max_pool(self, places, rank, returns)


@lower(aten.adaptive_max_pool2d.default, rank=2)
@lower(aten.adaptive_max_pool3d.default, rank=3)
def aten_adaptive_max_pool(self, output_size, *, rank, returns):
    sizes = self.shape[self.ndim - rank :]
    return _max_pool(self, lambda axis, dim: _adaptive_places(axis, sizes[dim], output_size[dim]), rank, returns)


def _scattered(grad, indices, shape, rank):
    """grad added into planes of `shape` at flat indices; planes are independent, so a sharded batch stays sharded."""
    if 0 in shape or grad.size == 0:
        return jnp.zeros(shape, grad.dtype)
    lead = shape[: len(shape) - rank]
    plane = math.prod(shape[len(shape) - rank :])
    values = widened(grad).reshape(math.prod(lead), -1)
    places = indices.reshape(values.shape)
    result = jax.vmap(lambda v, i: jnp.zeros((plane,), v.dtype).at[i].add(v))(values, places)
    return result.reshape(shape).astype(grad.dtype)


@lower(aten.max_pool2d_with_indices_backward.default, rank=2)
@lower(aten.max_pool3d_with_indices_backward.default, rank=3)
def aten_max_pool_with_indices_backward(
    grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices, *, rank
):
    window = per_dim(kernel_size, rank)
    if math.prod(window) > _MOST_PLACES or grad_output.size == 0:
        return _scattered(grad_output, indices, self.shape, rank)
    stride = per_dim(stride, rank) if stride else window
    padding, dilation = per_dim(padding, rank), per_dim(dilation, rank)
    lead = self.ndim - rank
    sizes, counts = self.shape[lead:], grad_output.shape[lead:]
    wide, total = widened(grad_output), None
    zero = jnp.zeros((), wide.dtype)
    for place in np.ndindex(*window):
        # Where this place of the window has the maximum, its gradient goes to one position; strides spread them.
        position, gaps, pads = jnp.zeros((), indices.dtype), [(0, 0, 0)] * lead, [(0, 0, 0)] * lead
        for dim in range(rank):
            start = place[dim] * dilation[dim] - padding[dim]
            along = np.arange(counts[dim]) * stride[dim] + start
            along = np.where((along >= 0) & (along < sizes[dim]), along * math.prod(sizes[dim + 1 :]), -(2**40))
            position = position + _along(along, lead + dim, self.ndim)
            # Two pads: XLA's partitioners abort where one pad both cuts elements off and puts gaps between them.
            gaps.append((0, stride[dim] - 1, stride[dim] - 1))
            pads.append((start, sizes[dim] - start - counts[dim] * stride[dim], 0))
        part = lax.pad(lax.pad(jnp.where(indices == position, wide, zero), zero, gaps), zero, pads)
        total = part if total is None else total + part
    return total.astype(grad_output.dtype)


@lower(aten.adaptive_max_pool2d_backward.default, rank=2)
@lower(aten.adaptive_max_pool3d_backward.default, rank=3)
def aten_adaptive_max_pool_backward(grad_output, self, indices, *, rank):
    return _scattered(grad_output, indices, self.shape, rank)


# -- Unpooling writes each value to its index; the last of equal indices wins, as in a plain loop.


@lower(aten.max_unpool2d.default, rank=2)
@lower(aten.max_unpool3d.default, rank=3)
def aten_max_unpool(self, indices, output_size, stride=None, padding=None, *, rank, returns):
    shape = returns.shape
    lead = shape[: len(shape) - rank]
    plane = math.prod(shape[len(shape) - rank :])
    if not self.size:
        return jnp.zeros(shape, self.dtype)
    values, places = self.reshape(math.prod(lead), -1), indices.reshape(math.prod(lead), -1)
    result = jax.vmap(lambda v, i: jnp.zeros((plane,), v.dtype).at[i].set(v))(values, places)
    return result.reshape(shape)
