"""Average pooling, sliding and adaptive, with its gradients."""

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
    window = per_dim(kernel_size, rank)
    stride = per_dim(stride, rank) if stride else window
    padding, lead = per_dim(padding, rank), x.ndim - rank
    counts = shape[lead:]
    divisors = _divisors(x.shape[lead:], window, stride, padding, counts, count_include_pad, override)
    return lambda values: _window_sum(values, rank, window, stride, padding, counts), divisors


@lower(aten.avg_pool2d.default, rank=2)
@lower(aten.avg_pool3d.default, rank=3)
def aten_avg_pool(
    self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None,
    *, rank, returns,
):  # fmt: skip
    if 0 in returns.shape:
        return zeros(returns)
    windows = kernel_size, stride, padding, count_include_pad, divisor_override, rank
    total, divisors = _average(self, *windows, returns.shape)
    return _divided(total(widened(self)), divisors).astype(self.dtype)


@lower(aten.avg_pool2d_backward.default, rank=2)
@lower(aten.avg_pool3d_backward.default, rank=3)
def aten_avg_pool_backward(
    grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, *, rank
):
    if grad_output.size == 0:
        return jnp.zeros(self.shape, self.dtype)
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


@lower(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def aten_adaptive_avg_pool(self, output_size, *, returns):
    if 0 in returns.shape:
        return zeros(returns)
    return _adaptive_average(widened(self), tuple(output_size)).astype(self.dtype)


@lower(aten._adaptive_avg_pool2d_backward.default, rank=2)
@lower(aten._adaptive_avg_pool3d_backward.default, rank=3)
def aten_adaptive_avg_pool_backward(grad_output, self, *, rank):
    if grad_output.size == 0:
        return jnp.zeros(self.shape, grad_output.dtype)
    wide, sizes = widened(grad_output), grad_output.shape[grad_output.ndim - rank :]
    like = jax.ShapeDtypeStruct(self.shape, wide.dtype)
    (result,) = jax.linear_transpose(lambda values: _adaptive_average(values, sizes), like)(wide)
    return result.astype(grad_output.dtype)
