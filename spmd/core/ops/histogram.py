"""Counts of values in bins: histc and the histograms, whose number of bins is static."""

import math

import jax.numpy as jnp
import torch

from .registry import lower

aten = torch.ops.aten


def _bounds(self, given, room):
    """The outermost edges: the given ones or those of the data, a little apart where they coincide."""
    if given is None:  # without data torch takes 0 and 1
        given = (jnp.min(self), jnp.max(self)) if self.size else (0, 1)
    low, high = (jnp.asarray(edge, self.dtype) for edge in given)
    same = low == high
    return jnp.where(same, low - room, low), jnp.where(same, high + room, high)


@lower(aten.histc.default)
def aten_histc(self, bins=100, min=0, max=0):
    flat = self.reshape(-1)
    low, high = _bounds(flat, None if min == max else (min, max), 1)  # equal ones are none, as their default
    inside = (flat >= low) & (flat <= high)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        place = jnp.floor((flat - low) * (bins / (high - low)))
    else:
        place = (flat - low) * bins // (high - low)
    place = jnp.where(
        inside, jnp.minimum(jnp.where(inside, place, 0).astype(jnp.int64), bins - 1), bins
    )  # past the end: dropped
    return jnp.zeros((bins,), self.dtype).at[place].add(jnp.ones((), self.dtype), mode="drop")


def _edges(column, bins, given):
    low, high = _bounds(column, given, 0.5)
    steps = jnp.arange(bins + 1, dtype=column.dtype)
    step = (high - low) / bins
    # From both ends, as torch's linspace, so that the last edge is exactly `high`.
    return jnp.where(steps < (bins + 1) // 2, low + steps * step, high - (bins - steps) * step)


def _count(points, edges, weight, density):
    """The histogram of points [n, d] over d lists of edges, of which the last bin holds its right edge too."""
    shape = tuple(edge.shape[0] - 1 for edge in edges)
    place = jnp.zeros(points.shape[:1], jnp.int64)
    inside = jnp.ones(points.shape[:1], jnp.bool_)
    for dim, edge in enumerate(edges):
        column = points[:, dim]
        found = jnp.searchsorted(edge, column, side="right", method="compare_all").astype(jnp.int64) - 1
        inside &= (column >= edge[0]) & (column <= edge[-1])
        place = place * shape[dim] + jnp.clip(found, 0, shape[dim] - 1)
    total = math.prod(shape)
    place = jnp.where(inside, place, total)  # past the end: dropped
    ones = jnp.ones(points.shape[:1], points.dtype) if weight is None else weight.reshape(-1).astype(points.dtype)
    result = jnp.zeros((total,), points.dtype).at[place].add(ones, mode="drop").reshape(shape)
    if density:
        result = result / jnp.sum(result)
        for dim, edge in enumerate(edges):
            result = result / jnp.diff(edge).reshape((-1,) + (1,) * (len(shape) - dim - 1))
    return result


@lower(aten.histogram.bin_ct)
def aten_histogram(self, bins=100, *, range=None, weight=None, density=False):
    points = self.reshape(-1, 1)
    edges = _edges(points[:, 0], bins, range or None)
    return _count(points, [edges], weight, density), edges


@lower(aten.histogram.bins_tensor)
def aten_histogram_edges(self, bins, *, weight=None, density=False):
    return _count(self.reshape(-1, 1), [bins], weight, density), bins


def _all_edges(points, bins, given):
    return [_edges(points[:, d], count, given[2 * d : 2 * d + 2] if given else None) for d, count in enumerate(bins)]


@lower(aten._histogramdd_bin_edges.default)
def aten_histogramdd_bin_edges(self, bins, *, range=None, weight=None, density=False):
    return tuple(_all_edges(self.reshape(-1, self.shape[-1]), bins, range))


@lower(aten._histogramdd_from_bin_cts.default)
def aten_histogramdd_counts(self, bins, *, range=None, weight=None, density=False):
    points = self.reshape(-1, self.shape[-1])
    return _count(points, _all_edges(points, bins, range), weight, density)


@lower(aten._histogramdd_from_bin_tensors.default)
def aten_histogramdd_edges(self, bins, *, weight=None, density=False):
    return _count(self.reshape(-1, self.shape[-1]), bins, weight, density)
