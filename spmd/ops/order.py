"""Scans and sorts along a dim: running sums and extremes, sort, topk, order statistics, mode."""

import functools

import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from . import sharded
from .floats import widened_as
from .registry import Function, lower

aten = torch.ops.aten


def with_place(rule: Function) -> Function:
    """A rule of (values, places) along a dim, for arrays without dims, too: the value and place
    0."""

    @functools.wraps(rule)
    def of_any_rank(self, *arguments, **keywords):
        if self.ndim == 0:
            return self, jnp.zeros((), jnp.int64)
        return rule(self, *arguments, **keywords)

    return of_any_rank


# -- Scans.


def _cumlogsumexp(x, axis):
    """The running logsumexp; of complex numbers one after another, as torch adds them: a sum's
    phase is that of its greater part and a little, never wrapped."""
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.cumlogsumexp(x, axis)

    def add(total, value):
        less = value.real < total.real
        small, great = jnp.where(less, value, total), jnp.where(less, total, value)
        result = great + jnp.log1p(jnp.exp(small - great))
        return result, result

    moved = jnp.moveaxis(x, axis, 0)
    if moved.shape[0] < 2:
        return x
    _, sums = lax.scan(add, moved[0], moved[1:])
    return jnp.moveaxis(jnp.concatenate([moved[:1], sums]), 0, axis)


@lower(aten.cumsum.default, scan=lax.cumsum)
@lower(aten.cumprod.default, scan=lax.cumprod)
@lower(aten.logcumsumexp.default, scan=_cumlogsumexp)
def aten_scan(self, dim, *, scan, dtype=None, returns):
    if self.ndim == 0:
        return widened_as(self, returns.dtype).astype(returns.dtype)
    axis, source = dim % self.ndim, sharded.source_of(self)
    if type(source) is sharded.Flipped and source.dims == (axis,) and scan is not _cumlogsumexp:
        # autograd's backward: of an array in its own order XLA's compiler for TPUs reverses none
        backwards = scan(widened_as(source.array, returns.dtype), axis=axis, reverse=True)
        return lax.rev(backwards.astype(returns.dtype), (axis,))
    return scan(widened_as(self, returns.dtype), axis=axis).astype(returns.dtype)


@lower(aten.cummax.default, better=jnp.greater_equal)
@lower(aten.cummin.default, better=jnp.less_equal)
@with_place
def aten_extreme_scan(self, dim, *, better):
    def later(lhs, rhs):
        # Of equal values torch keeps the last; NaN is above all.
        take = better(rhs[0], lhs[0]) | (rhs[0] != rhs[0])
        return jnp.where(take, rhs[0], lhs[0]), jnp.where(take, rhs[1], lhs[1])

    positions = lax.broadcasted_iota(jnp.int64, self.shape, dim % self.ndim)
    return lax.associative_scan(later, (self, positions), axis=dim % self.ndim)


# -- Sorts. NaN is the greatest value, in JAX as in torch.


@lower(aten.sort.default, aten.sort.stable)
@with_place
def aten_sort(self, dim=-1, descending=False, *, stable=True):
    """Stable (values, indices) along dim."""
    axis = dim % self.ndim
    positions = lax.broadcasted_iota(jnp.int64, self.shape, axis)
    if not descending:
        return tuple(lax.sort((self, positions), dimension=axis, num_keys=1, is_stable=True))
    # Reversed before and after: equals keep their order although the sort ascends.
    flipped = (lax.rev(self, (axis,)), lax.rev(positions, (axis,)))
    return tuple(
        lax.rev(part, (axis,))
        for part in lax.sort(flipped, dimension=axis, num_keys=1, is_stable=True)
    )


@lower(aten.topk.default)
@with_place
def aten_topk(self, k, dim=-1, largest=True, sorted=True):
    axis = dim % self.ndim
    if largest and self.dtype != np.bool_:
        values, indices = lax.top_k(jnp.moveaxis(self, axis, -1), k)
        return jnp.moveaxis(values, -1, axis), jnp.moveaxis(indices, -1, axis).astype(jnp.int64)
    values, indices = aten_sort(self, axis, largest)
    return lax.slice_in_dim(values, 0, k, axis=axis), lax.slice_in_dim(indices, 0, k, axis=axis)


def _order_statistic(self, k, dim, keepdim):
    """The k-th smallest (from 0) and its index along dim."""
    axis = dim % self.ndim
    picked = (lax.index_in_dim(part, k, axis, keepdims=keepdim) for part in aten_sort(self, axis))
    return tuple(picked)


@lower(aten.kthvalue.default)
@with_place
def aten_kthvalue(self, k, dim=-1, keepdim=False):
    return _order_statistic(self, k - 1, dim, keepdim)


@lower(aten.median.dim)
@with_place
def aten_median_dim(self, dim, keepdim=False):
    values, indices = _order_statistic(self, (self.shape[dim] - 1) // 2, dim, keepdim)
    if not jnp.issubdtype(self.dtype, jnp.inexact):
        return values, indices
    nan = jnp.isnan(self)
    has_nan = jnp.any(nan, axis=dim, keepdims=keepdim)
    first_nan = jnp.argmax(nan, axis=dim, keepdims=keepdim)
    return jnp.where(has_nan, jnp.asarray(jnp.nan, self.dtype), values), jnp.where(
        has_nan, first_nan, indices
    )


@lower(aten.nanmedian.dim)
@with_place
def aten_nanmedian_dim(self, dim, keepdim=False):
    # NaN sorts last, so the median of the rest is in the middle of the values before.
    axis = dim % self.ndim
    count = jnp.sum(~jnp.isnan(self), axis=axis, keepdims=True)
    middle = jnp.maximum(count - 1, 0) // 2
    picked = (jnp.take_along_axis(part, middle, axis) for part in aten_sort(self, axis))
    return tuple(part if keepdim else jnp.squeeze(part, axis) for part in picked)


@lower(aten.median.default, along=aten_median_dim)
@lower(aten.nanmedian.default, along=aten_nanmedian_dim)
def aten_median(self, *, along):
    """The median of all elements. Of none it is, as on CPU, NaN or its conversion to an integer."""
    if self.size:
        return along(self.reshape(-1), 0)[0]
    is_exact = not jnp.issubdtype(self.dtype, jnp.inexact)
    return jnp.asarray(jnp.iinfo(self.dtype).min if is_exact else jnp.nan, self.dtype)


@lower(aten.mode.default)
@with_place
def aten_mode(self, dim=-1, keepdim=False):
    """The smallest of the most frequent values, and its last place."""
    axis = dim % self.ndim
    values, indices = aten_sort(self, axis)
    position = lax.broadcasted_iota(jnp.int64, self.shape, axis)
    starts = jnp.where((values != jnp.roll(values, 1, axis)) | (position == 0), position, 0)
    # the number of equal values before: greatest at a run's end
    length = position - lax.cummax(starts, axis=axis)
    best = jnp.argmax(length, axis=axis, keepdims=True)
    picked = (jnp.take_along_axis(part, best, axis) for part in (values, indices))
    return tuple(part if keepdim else jnp.squeeze(part, axis) for part in picked)
