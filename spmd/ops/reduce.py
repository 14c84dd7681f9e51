"""Reductions along dims: sums, extremes, truth, moments, norms, distances, counts. Scans and sorts
are in `order`.

Narrow floats are summed in float32 and rounded once.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch

from . import folds
from .floats import widened_as
from .order import with_place
from .registry import Promote, lower
from .sharded import is_narrowed, loses_nan, total

aten = torch.ops.aten


def _axes(self, dim):
    """The axes of torch's `dim`: None and the empty list are all of them; a 0-d tensor accepts 0
    and -1."""
    if dim is None or (isinstance(dim, (list, tuple)) and len(dim) == 0):
        return tuple(range(self.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % self.ndim for d in dims) if self.ndim else ()


def _count(self, axes):
    return math.prod(self.shape[axis] for axis in axes)


# -- Sums and products.


@lower(aten.sum.default, aten.sum.dim_IntList)
def aten_sum(self, dim=None, keepdim=False, *, dtype=None, returns):
    axes = _axes(self, dim)
    if is_narrowed(self, returns.dtype):
        return total(self, axes, self, returns.dtype).reshape(returns.shape)
    return folds.summed(widened_as(self, returns.dtype), axes, keepdim).astype(returns.dtype)


@lower(aten.mean.default, aten.mean.dim)
def aten_mean(self, dim=None, keepdim=False, *, dtype=None, returns):
    axes, wide = _axes(self, dim), widened_as(self, returns.dtype)
    total = folds.summed(wide, axes, keepdim)
    return (total / jnp.asarray(_count(self, axes), wide.dtype)).astype(returns.dtype)


@lower(aten.prod.default, aten.prod.dim_int)
def aten_prod(self, dim=None, keepdim=False, *, dtype=None, returns):
    return jnp.prod(
        widened_as(self, returns.dtype), axis=_axes(self, dim), keepdims=keepdim
    ).astype(returns.dtype)


# -- Extremes. JAX's propagate NaN and take the first of equals, as torch's do.


def _extreme(array, axes, keepdims, extreme):
    """The maximum or minimum along axes; NaN where one is."""
    result = extreme(array, axis=axes, keepdims=keepdims)
    if not loses_nan(array.dtype):
        return result
    return jnp.where(
        jnp.any(jnp.isnan(array), axis=axes, keepdims=keepdims), jnp.nan, result
    ).astype(array.dtype)


@lower(aten.amax.default, aten.max.default, extreme=jnp.max)
@lower(aten.amin.default, aten.min.default, extreme=jnp.min)
def aten_extreme(self, dim=(), keepdim=False, *, extreme):
    return _extreme(self, _axes(self, dim), keepdim, extreme)


@lower(aten.max.dim, extreme=jnp.max, position=jnp.argmax)
@lower(aten.min.dim, extreme=jnp.min, position=jnp.argmin)
@with_place
def aten_extreme_dim(self, dim, keepdim=False, *, extreme, position):
    values = _extreme(self, dim, keepdim, extreme)
    return values, position(self, axis=dim, keepdims=keepdim).astype(jnp.int64)


@lower(aten.argmax.default, position=jnp.argmax)
@lower(aten.argmin.default, position=jnp.argmin)
def aten_position(self, dim=None, keepdim=False, *, position, returns):
    if dim is None or self.ndim == 0:
        return position(self.reshape(-1)).astype(jnp.int64).reshape(returns.shape)
    return position(self, axis=dim).astype(jnp.int64).reshape(returns.shape)


# -- Any and all.


@lower(aten.any.default, aten.any.dim, aten.any.dims, reduction=jnp.any)
@lower(aten.all.default, aten.all.dim, aten.all.dims, reduction=jnp.all)
def aten_truth(self, dim=None, keepdim=False, *, reduction, returns):
    # An empty dim list keeps every dim in some of torch's ops: the rank of the promised result
    # decides.
    axes = (
        ()
        if dim is not None and dim == [] and len(returns.shape) == self.ndim
        else _axes(self, dim)
    )
    return reduction(self != 0, axis=axes, keepdims=keepdim).astype(returns.dtype)


# -- Moments and norms.


@lower(aten.var.correction)
@lower(aten.std.correction, is_root=True)
@lower(aten.var_mean.correction, has_mean=True)
@lower(aten.std_mean.correction, is_root=True, has_mean=True)
def aten_var(
    self, dim=None, *, correction=None, keepdim=False, is_root=False, has_mean=False, returns
):
    axes, wide = _axes(self, dim), widened_as(self, self.dtype)
    count = _count(self, axes)
    mean = jnp.sum(wide, axis=axes, keepdims=True) / jnp.asarray(count, wide.dtype)
    centered = wide - mean
    freedom = max(count - (1 if correction is None else correction), 0)
    if jnp.issubdtype(centered.dtype, jnp.complexfloating):
        squares = centered.real * centered.real + centered.imag * centered.imag
    else:
        squares = centered * centered
    variance = jnp.sum(squares, axis=axes, keepdims=keepdim) / jnp.asarray(freedom, squares.dtype)
    variance = jnp.sqrt(variance) if is_root else variance
    if not has_mean:
        return variance.astype(returns.dtype)
    mean = mean if keepdim else jnp.squeeze(mean, axes)
    return variance.astype(returns[0].dtype), mean.astype(returns[1].dtype)


@lower(aten.logsumexp.default, promote=Promote.INT_TO_FLOAT)
def aten_logsumexp(self, dim, keepdim=False):
    return jax.nn.logsumexp(self, axis=_axes(self, dim), keepdims=keepdim)


@lower(
    aten.linalg_vector_norm.default,
    aten.norm.Scalar,
    aten.norm.ScalarOpt_dim,
    aten.norm.ScalarOpt_dim_dtype,
    aten.norm.ScalarOpt_dtype,
)
def aten_norm(self, ord=2, /, dim=None, keepdim=False, *, dtype=None, returns):
    axes, ord = _axes(self, dim), 2 if ord is None else ord
    magnitude = jnp.abs(self if dtype is None else self.astype(dtype))
    # `returns` is real; the accumulator is too.
    return _norm(widened_as(magnitude, returns.dtype), ord, axes, keepdim).astype(returns.dtype)


def _norm(magnitude, ord, axes, keepdims=False):
    """The norm of numbers that are not negative."""
    if ord in (math.inf, -math.inf):
        return _extreme(magnitude, axes, keepdims, jnp.max if ord > 0 else jnp.min)
    if ord == 0:
        return jnp.sum((magnitude != 0).astype(magnitude.dtype), axis=axes, keepdims=keepdims)
    if ord == 1:
        return jnp.sum(magnitude, axis=axes, keepdims=keepdims)
    if ord == 2:
        return jnp.sqrt(jnp.sum(magnitude * magnitude, axis=axes, keepdims=keepdims))
    power = jnp.asarray(ord, magnitude.dtype)
    return jnp.power(jnp.sum(jnp.power(magnitude, power), axis=axes, keepdims=keepdims), 1 / power)


# -- Distances between all pairs of rows, each next to its gradient.

_MM_ALWAYS, _MM_FROM = 1, 25


def _norm_gradient(grad, difference, p, distance):
    """The gradient of |difference|_p by difference; at distance 0 torch takes 0."""
    sign = jnp.sign(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return grad * sign
    if p == math.inf:
        return grad * sign * (jnp.abs(difference) == distance)
    safe = jnp.where(distance == 0, jnp.ones_like(distance), distance)
    if p == 2:
        result = grad * difference / safe
    else:
        result = sign * jnp.power(jnp.abs(difference), p - 1) * (grad / jnp.power(safe, p - 1))
        result = jnp.where(difference == 0, jnp.zeros_like(result), result)
    return jnp.where(distance == 0, jnp.zeros_like(result), result)


def _pairs(x1, x2):
    return x1[..., :, None, :] - x2[..., None, :, :]


def _euclidean(x1, x2):
    """Distances through one product of matrices: |a|^2 - 2ab + |b|^2, which torch takes for many
    rows."""
    squares1 = jnp.sum(x1 * x1, axis=-1)[..., :, None]
    squares2 = jnp.sum(x2 * x2, axis=-1)[..., None, :]
    return jnp.sqrt(
        jnp.maximum(squares1 + squares2 - 2 * jnp.matmul(x1, jnp.swapaxes(x2, -1, -2)), 0)
    )


@lower(aten._cdist_forward.default, empty=True)
def aten_cdist_forward(x1, x2, p, compute_mode):
    many = max(x1.shape[-2], x2.shape[-2]) > _MM_FROM
    if p == 2 and (compute_mode == _MM_ALWAYS or (not compute_mode and many)):
        return _euclidean(x1, x2)
    return _norm(jnp.abs(_pairs(x1, x2)), p, -1)


# `grad` is `grad_output` in torch 2.15. For empty operands torch returns x1's own shape, without
# the batch of x2.
@lower(aten._cdist_backward.default, empty=True)
def aten_cdist_backward(grad, /, x1, x2, p, cdist, *, returns):
    result = jnp.sum(_norm_gradient(grad[..., None], _pairs(x1, x2), p, cdist[..., None]), axis=-2)
    return jnp.broadcast_to(result, returns.shape)


def _upper(count):
    return np.triu_indices(count, 1)


@lower(aten._pdist_forward.default)
def aten_pdist_forward(self, p=2.0):
    first, second = _upper(self.shape[0])
    return _norm(jnp.abs(self[first] - self[second]), p, -1)


@lower(aten._pdist_backward.default)
def aten_pdist_backward(grad, /, self, p, pdist):
    first, second = _upper(self.shape[0])
    result = _norm_gradient(grad[:, None], self[first] - self[second], p, pdist[:, None])
    return jnp.zeros_like(self).at[first].add(result).at[second].add(-result)


# -- Counts of values in bins. Histograms by edges are in the table `ON_CPU`.


@lower(aten.histc.default)
def aten_histc(self, bins=100, min=0, max=0):
    flat = self.reshape(-1)
    if min == max:  # no bounds, as by default; without data torch takes 0 and 1
        min, max = (jnp.min(flat), jnp.max(flat)) if flat.size else (0, 1)
    low, high = (jnp.asarray(edge, flat.dtype) for edge in (min, max))
    low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        index = jnp.floor((flat - low) * (bins / (high - low)))
    else:
        index = (flat - low) * bins // (high - low)
    index = jnp.minimum(jnp.where(inside, index, 0).astype(jnp.int64), bins - 1)
    index = jnp.where(inside, index, bins)  # past the end: dropped
    return jnp.zeros((bins,), self.dtype).at[index].add(jnp.ones((), self.dtype), mode="drop")
