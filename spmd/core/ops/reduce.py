"""Reductions along dims: sums, extremes, truth, moments, norms. Scans and sorts are in `order`.

Narrow floats are summed in float32 and rounded once.
"""

import math

import jax
import jax.numpy as jnp
import torch

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


@lower(aten.sum.default, aten.sum.dim_IntList)
def aten_sum(self, dim=None, keepdim=False, *, dtype=None, returns):
    axes = _axes(self, dim)
    if is_narrowed(self, returns.dtype):
        return total(self, axes, self, returns.dtype).reshape(returns.shape)
    return folds.summed(widened_as(self, returns.dtype), axes, keepdim).astype(returns.dtype)


@lower(aten.nansum.default)
def aten_nansum(self, dim=None, keepdim=False, *, dtype=None, returns):
    return aten_sum(jnp.where(jnp.isnan(self), jnp.zeros((), self.dtype), self), dim, keepdim, returns=returns)


@lower(aten.mean.default, aten.mean.dim)
def aten_mean(self, dim=None, keepdim=False, *, dtype=None, returns):
    axes, wide = _axes(self, dim), widened_as(self, returns.dtype)
    total = folds.summed(wide, axes, keepdim)
    return (total / jnp.asarray(_count(self, axes), wide.dtype)).astype(returns.dtype)


@lower(aten.prod.default, aten.prod.dim_int)
def aten_prod(self, dim=None, keepdim=False, *, dtype=None, returns):
    return jnp.prod(widened_as(self, returns.dtype), axis=_axes(self, dim), keepdims=keepdim).astype(returns.dtype)


@lower(aten.count_nonzero.default, aten.count_nonzero.dim_IntList)
def aten_count_nonzero(self, dim=None):
    return jnp.sum(self != 0, axis=_axes(self, dim), dtype=jnp.int64)


# -- Extremes. JAX's propagate NaN and take the first of equals, as torch's do.


@lower(aten.amax.default, aten.max.default, extreme=jnp.max)
@lower(aten.amin.default, aten.min.default, extreme=jnp.min)
def aten_extreme(self, dim=(), keepdim=False, *, extreme):
    return extreme(self, axis=_axes(self, dim), keepdims=keepdim)


@lower(aten.aminmax.default)
def aten_aminmax(self, *, dim=None, keepdim=False):
    return tuple(aten_extreme(self, dim, keepdim, extreme=extreme) for extreme in (jnp.min, jnp.max))


@lower(aten.max.dim, extreme=jnp.max, position=jnp.argmax)
@lower(aten.min.dim, extreme=jnp.min, position=jnp.argmin)
def aten_extreme_dim(self, dim, keepdim=False, *, extreme, position):
    if self.ndim == 0:
        return self, jnp.zeros((), jnp.int64)
    values = extreme(self, axis=dim, keepdims=keepdim)
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
    # An empty dim list keeps every dim in some of torch's ops: the rank of the promised result decides.
    axes = () if dim is not None and dim == [] and len(returns.shape) == self.ndim else _axes(self, dim)
    return reduction(self != 0, axis=axes, keepdims=keepdim).astype(returns.dtype)


# -- Moments and norms.


@lower(aten.var.correction)
@lower(aten.std.correction, is_root=True)
@lower(aten.var_mean.correction, has_mean=True)
@lower(aten.std_mean.correction, is_root=True, has_mean=True)
def aten_var(self, dim=None, *, correction=None, keepdim=False, is_root=False, has_mean=False, returns):
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
    aten.norm.Scalar, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype, aten.norm.ScalarOpt_dtype,
)  # fmt: skip
def aten_norm(self, ord=2, /, dim=None, keepdim=False, *, dtype=None, returns):
    axes, ord = _axes(self, dim), 2 if ord is None else ord
    magnitude = jnp.abs(self if dtype is None else self.astype(dtype))
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
