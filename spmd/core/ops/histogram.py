"""Counts of values in bins: histc. Histograms by edges are in the table `on_cpu`."""

import jax.numpy as jnp
import torch

from .registry import lower

aten = torch.ops.aten


@lower(aten.histc.default)
def aten_histc(self, bins=100, min=0, max=0):
    flat = self.reshape(-1)
    if min == max:  # no bounds, as by default; without data torch takes 0 and 1
        min, max = (jnp.min(flat), jnp.max(flat)) if flat.size else (0, 1)
    low, high = (jnp.asarray(edge, flat.dtype) for edge in (min, max))
    low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    inside = (flat >= low) & (flat <= high)
    if jnp.issubdtype(flat.dtype, jnp.floating):
        place = jnp.floor((flat - low) * (bins / (high - low)))
    else:
        place = (flat - low) * bins // (high - low)
    place = jnp.where(
        inside, jnp.minimum(jnp.where(inside, place, 0).astype(jnp.int64), bins - 1), bins
    )  # past the end: dropped
    return jnp.zeros((bins,), self.dtype).at[place].add(jnp.ones((), self.dtype), mode="drop")
