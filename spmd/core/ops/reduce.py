"""Reductions along dims: sums, extremes, truth, moments, norms. Scans and sorts are in `order`.

Narrow floats are summed in float32 and rounded once.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from . import folds
from .floats import widened_as
from .partial import is_narrowed, total
from .registry import Promote, lower

aten = torch.ops.aten


def _axes(self, dim):
    """The axes of torch's `dim`: None and the empty list are all of them; a 0-d tensor accepts 0 and -1."""
    if dim is None or (isinstance(dim, (list, tuple)) and len(dim) == 0):
        return tuple(range(self.ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    return tuple(d % self.ndim for d in dims) if self.ndim else ()


def _count(self, axes):
    return math.prod(self.shape[axis] for axis in axes)


# -- Sums and products.


def _sum(self, dim, keepdim, returns):
    axes = _axes(self, dim)
    if is_narrowed(self, returns.dtype):
        return total(self, axes, self, returns.dtype).reshape(returns.shape)
    return folds.summed(widened_as(self, returns.dtype), axes, keepdim).astype(returns.dtype)


@lower(aten.sum.default)
def aten_sum(self, *, dtype=None, returns):
    return _sum(self, None, False, returns)


@lower(aten.sum.dim_IntList)
def aten_sum_dim(self, dim, keepdim=False, *, dtype=None, returns):
    return _sum(self, dim, keepdim, returns)


@lower(aten.nansum.default)
def aten_nansum(self, dim=None, keepdim=False, *, dtype=None, returns):
    return _sum(jnp.where(jnp.isnan(self), jnp.zeros((), self.dtype), self), dim, keepdim, returns)


def _mean(self, dim, keepdim, returns):
    axes, wide = _axes(self, dim), widened_as(self, returns.dtype)
    total = folds.summed(wide, axes, keepdim)
    return (total / jnp.asarray(_count(self, axes), wide.dtype)).astype(returns.dtype)


@lower(aten.mean.default)
def aten_mean(self, *, dtype=None, returns):
    return _mean(self, None, False, returns)


@lower(aten.mean.dim)
def aten_mean_dim(self, dim, keepdim=False, *, dtype=None, returns):
    return _mean(self, dim, keepdim, returns)


@lower(aten.prod.default)
def aten_prod(self, *, dtype=None, returns):
    return jnp.prod(widened_as(self, returns.dtype)).astype(returns.dtype)


@lower(aten.prod.dim_int)
def aten_prod_dim(self, dim, keepdim=False, *, dtype=None, returns):
    return jnp.prod(widened_as(self, returns.dtype), axis=_axes(self, dim), keepdims=keepdim).astype(returns.dtype)


@lower(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def aten_count_nonzero(self, dim=None):
    return jnp.sum(self != 0, axis=_axes(self, dim), dtype=jnp.int64)


# -- Extremes. JAX's propagate NaN and take the first of equals, as torch's do.


@lower(aten.amax.default)
def aten_amax(self, dim=(), keepdim=False):
    return jnp.max(self, axis=_axes(self, dim), keepdims=keepdim)


@lower(aten.amin.default)
def aten_amin(self, dim=(), keepdim=False):
    return jnp.min(self, axis=_axes(self, dim), keepdims=keepdim)


@lower(aten.max.default)
def aten_max(self):
    return jnp.max(self)


@lower(aten.min.default)
def aten_min(self):
    return jnp.min(self)


@lower(aten.aminmax.default)
def aten_aminmax(self, *, dim=None, keepdim=False):
    axes = _axes(self, dim)
    return jnp.min(self, axis=axes, keepdims=keepdim), jnp.max(self, axis=axes, keepdims=keepdim)


def _extreme_with_index(self, dim, keepdim, extreme, position):
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    values = extreme(self, axis=dim, keepdims=keepdim)
    return values, position(self, axis=dim, keepdims=keepdim).astype(jnp.int64)


@lower(aten.max.dim)
def aten_max_dim(self, dim, keepdim=False):
    return _extreme_with_index(self, dim, keepdim, jnp.max, jnp.argmax)


@lower(aten.min.dim)
def aten_min_dim(self, dim, keepdim=False):
    return _extreme_with_index(self, dim, keepdim, jnp.min, jnp.argmin)


def _position(self, dim, position, returns):
    if dim is None or self.ndim == 0:
        return position(self.reshape(-1)).astype(jnp.int64).reshape(returns.shape)
    return position(self, axis=dim).astype(jnp.int64).reshape(returns.shape)


@lower(aten.argmax.default)
def aten_argmax(self, dim=None, keepdim=False, *, returns):
    return _position(self, dim, jnp.argmax, returns)


@lower(aten.argmin.default)
def aten_argmin(self, dim=None, keepdim=False, *, returns):
    return _position(self, dim, jnp.argmin, returns)


# -- Any and all.


def _truth(self, dim, keepdim, reduction, returns):
    # An empty dim list keeps every dim in some of torch's ops: the rank of the promised result decides.
    axes = () if dim is not None and dim == [] and len(returns.shape) == self.ndim else _axes(self, dim)
    return reduction(self != 0, axis=axes, keepdims=keepdim).astype(returns.dtype)


@lower(aten.any.default)
def aten_any(self, *, returns):
    return _truth(self, None, False, jnp.any, returns)


@lower(aten.any.dim, aten.any.dims)
def aten_any_dim(self, dim=None, keepdim=False, *, returns):
    return _truth(self, dim, keepdim, jnp.any, returns)


@lower(aten.all.default)
def aten_all(self, *, returns):
    return _truth(self, None, False, jnp.all, returns)


@lower(aten.all.dim, aten.all.dims)
def aten_all_dim(self, dim=None, keepdim=False, *, returns):
    return _truth(self, dim, keepdim, jnp.all, returns)


# -- Moments and norms.


def _variance(self, dim, correction, keepdim):
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
    return variance, mean if keepdim else jnp.squeeze(mean, axes)


@lower(aten.var.correction)
def aten_var(self, dim=None, *, correction=None, keepdim=False, returns):
    return _variance(self, dim, correction, keepdim)[0].astype(returns.dtype)


@lower(aten.std.correction)
def aten_std(self, dim=None, *, correction=None, keepdim=False, returns):
    return jnp.sqrt(_variance(self, dim, correction, keepdim)[0]).astype(returns.dtype)


@lower(aten.var_mean.correction)
def aten_var_mean(self, dim=None, *, correction=None, keepdim=False, returns):
    variance, mean = _variance(self, dim, correction, keepdim)
    return variance.astype(returns[0].dtype), mean.astype(returns[1].dtype)


@lower(aten.std_mean.correction)
def aten_std_mean(self, dim=None, *, correction=None, keepdim=False, returns):
    variance, mean = _variance(self, dim, correction, keepdim)
    return jnp.sqrt(variance).astype(returns[0].dtype), mean.astype(returns[1].dtype)


@lower(aten.logsumexp.default, promote=Promote.INT_TO_FLOAT)
def aten_logsumexp(self, dim, keepdim=False):
    return jax.nn.logsumexp(self, axis=_axes(self, dim), keepdims=keepdim)


def _norm(self, ord, dim, keepdim, returns):
    axes = _axes(self, dim)
    magnitude = jnp.abs(self)
    # `returns` is real; the accumulator is too.
    magnitude = widened_as(magnitude, returns.dtype)
    if ord in (math.inf, -math.inf):
        result = (jnp.max if ord > 0 else jnp.min)(magnitude, axis=axes, keepdims=keepdim)
    elif ord == 0:
        result = jnp.sum((magnitude != 0).astype(magnitude.dtype), axis=axes, keepdims=keepdim)
    elif ord == 1:
        result = jnp.sum(magnitude, axis=axes, keepdims=keepdim)
    elif ord == 2:
        result = jnp.sqrt(jnp.sum(magnitude * magnitude, axis=axes, keepdims=keepdim))
    else:
        power = jnp.asarray(ord, magnitude.dtype)
        result = jnp.power(jnp.sum(jnp.power(magnitude, power), axis=axes, keepdims=keepdim), 1 / power)
    return result.astype(returns.dtype)


@lower(aten.linalg_vector_norm.default)
def aten_linalg_vector_norm(self, ord=2, dim=None, keepdim=False, *, dtype=None, returns):
    return _norm(self if dtype is None else self.astype(dtype), ord, dim, keepdim, returns)


@lower(aten.norm.Scalar)
def aten_norm(self, p=2, *, returns):
    return _norm(self, p, None, False, returns)


@lower(aten.norm.ScalarOpt_dim)
def aten_norm_dim(self, p, dim, keepdim=False, *, returns):
    return _norm(self, 2 if p is None else p, dim, keepdim, returns)


@lower(aten.norm.ScalarOpt_dim_dtype)
def aten_norm_dim_dtype(self, p, dim, keepdim, *, dtype, returns):
    return _norm(self.astype(dtype), 2 if p is None else p, dim, keepdim, returns)


@lower(aten.norm.ScalarOpt_dtype)
def aten_norm_dtype(self, p, *, dtype, returns):
    return _norm(self.astype(dtype), 2 if p is None else p, None, False, returns)


@lower(aten.hash_tensor.default)
def aten_hash_tensor(self, dim=(), *, keepdim=False, mode=0):
    """The exclusive or of all elements' bits, floats as float64."""
    if jnp.issubdtype(self.dtype, jnp.floating):
        words = lax.bitcast_convert_type(self.astype(jnp.float64), jnp.uint64)
    else:
        words = self.astype(jnp.int64).astype(jnp.uint64)
    made = lax.reduce(words, np.uint64(0), lax.bitwise_xor, _axes(self, dim))
    return jnp.expand_dims(made, _axes(self, dim)) if keepdim else made
