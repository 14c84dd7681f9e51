"""Reductions of runs of rows whose lengths are data (segment_reduce): their number is static, their lengths are not."""

import math

import jax
import jax.numpy as jnp
import torch

from ..registry import lower

aten = torch.ops.aten


def _lengths(lengths, offsets):
    return lengths if lengths is not None else jnp.diff(offsets, axis=-1)


def _owners(lengths, rows):
    """The run that each row belongs to; rows past the last run belong to one more, which is unused."""
    ends = jnp.cumsum(lengths)
    return jnp.searchsorted(ends, jnp.arange(rows, dtype=ends.dtype), side="right", method="compare_all")


def _column(values, like):
    return values.reshape((-1,) + (1,) * (like.ndim - 1))


def _totals(data, owner, count):
    return jax.ops.segment_sum(data, owner, count + 1)[:count]


_SAME = {"amax": "max", "amin": "min"}  # torch's other names


def _reduce(data, lengths, reduce, initial):
    count = lengths.shape[0]
    owner = _owners(lengths, data.shape[0])
    empty = _column(lengths == 0, data)
    if reduce in ("sum", "mean"):
        result = _totals(data, owner, count) + jnp.asarray(0 if initial is None else initial, data.dtype)
        if reduce == "sum":
            return result
        mean = result / _column(jnp.maximum(lengths, 1), data).astype(data.dtype)
        return mean if initial is not None else jnp.where(empty, jnp.asarray(math.nan, data.dtype), mean)
    if reduce == "prod":
        result = jax.ops.segment_prod(data, owner, count + 1)[:count]
        return result if initial is None else result * jnp.asarray(initial, data.dtype)
    extreme, better = (jax.ops.segment_max, jnp.maximum) if reduce == "max" else (jax.ops.segment_min, jnp.minimum)
    result = extreme(data, owner, count + 1)[:count]
    if initial is not None:
        return better(result, jnp.asarray(initial, data.dtype))
    return jnp.where(empty, jnp.asarray(-math.inf if reduce == "max" else math.inf, data.dtype), result)


def _along(function, axis):
    """Maps over the dims before `axis`, which lengths and data share."""
    for _ in range(axis):
        function = jax.vmap(function)
    return function


@lower(aten.segment_reduce.default)
def aten_segment_reduce(data, reduce, *, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None):
    run = _along(lambda data, lengths: _reduce(data, lengths, _SAME.get(reduce, reduce), initial), axis)
    return run(data, _lengths(lengths, offsets))


def _gradient(grad, output, data, lengths, reduce, initial):
    count = lengths.shape[0]
    owner = _owners(lengths, data.shape[0])
    mine = jnp.minimum(owner, count - 1)
    inside = _column(owner < count, data)
    share = jnp.take(grad, mine, axis=0, mode="clip")
    if reduce == "mean":
        share = share / _column(jnp.take(jnp.maximum(lengths, 1), mine, mode="clip"), data).astype(data.dtype)
    elif reduce in ("max", "min"):
        best = jnp.take(output, mine, axis=0, mode="clip")
        hit = ((data == best) | jnp.isnan(data)).astype(data.dtype)
        hits = jnp.take(_totals(hit, owner, count), mine, axis=0, mode="clip")
        share = jnp.where(hit > 0, share / jnp.maximum(hits, 1), jnp.zeros_like(share))
    elif reduce == "prod":
        # The product of the others: for a zero or a NaN that of the rest, which no division gives.
        zero, nan = data == 0, jnp.isnan(data)
        plain = jnp.where(zero | nan, jnp.ones_like(data), data)
        zeros, nans = (
            jnp.take(_totals(odd.astype(data.dtype), owner, count), mine, axis=0, mode="clip") - odd
            for odd in (zero, nan)
        )
        rest = jax.ops.segment_prod(plain, owner, count + 1)[:count]
        rest = jnp.take(rest, mine, axis=0, mode="clip") * jnp.asarray(1 if initial is None else initial, data.dtype)
        others = jnp.where(zeros > 0, rest * 0, rest / plain)
        share = share * jnp.where(nans > 0, jnp.nan, others)
    return jnp.where(inside, share, jnp.zeros_like(share))


@lower(aten._segment_reduce_backward.default)
def aten_segment_reduce_backward(grad, output, data, reduce, *, lengths=None, offsets=None, axis=0, initial=None):
    run = _along(lambda *arrays: _gradient(*arrays, _SAME.get(reduce, reduce), initial), axis)
    return run(grad, output, data, _lengths(lengths, offsets))
