"""Running sums over a sharded dim: each device sums its rows, and adds the totals of the devices
before it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..core import config
from ..core.extend import partitioning, rules

aten = torch.ops.aten

# By op: what combines two parts, its neutral element, and the reduction of the totals of several
# parts.
_PARTS: dict[Any, tuple[Callable[..., Any], float, Callable[..., Any]]] = {
    aten.cumsum.default: (jnp.add, 0, jnp.sum),
    aten.cumprod.default: (jnp.multiply, 1, jnp.prod),
    aten.logcumsumexp.default: (jnp.logaddexp, -jnp.inf, jax.nn.logsumexp),
}


def _rule_of(overload: Any) -> Any:
    combine, neutral, reduce = _PARTS[overload]

    def running(self, dim, *, dtype=None, returns):
        axes_of = partitioning.axes_of_dims(*((self, d) for d in range(self.ndim)))
        if config.parallel == "off" or axes_of is None or not axes_of[1][dim % self.ndim]:
            return None
        mesh, axes = axes_of
        dim, way = dim % self.ndim, axes[dim % self.ndim]

        def body(x: jax.Array) -> tuple[jax.Array]:
            promised = jax.ShapeDtypeStruct(x.shape, returns.dtype)
            sums = rules.RULES[overload].function(x, dim, dtype=dtype, returns=promised)
            last = lax.slice_in_dim(sums, x.shape[dim] - 1, None, axis=dim)
            totals = lax.all_gather(last, way, axis=dim, tiled=True)
            is_before = lax.broadcasted_iota(jnp.int32, totals.shape, dim) < lax.axis_index(way)
            offset = reduce(
                jnp.where(is_before, totals, jnp.asarray(neutral, sums.dtype)), dim, keepdims=True
            )
            return (combine(offset.astype(sums.dtype), sums),)

        words = " ".join(f"d{d}" for d in range(self.ndim))
        over = {f"d{d}": of_dim for d, of_dim in enumerate(axes)}
        return partitioning.per_shard(body, f"{words} -> {words}", mesh, over, [self.shape])(self)[
            0
        ]

    return running


for _overload in _PARTS:
    partitioning.partition(_overload)(_rule_of(_overload))
