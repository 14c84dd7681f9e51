"""Products of rows in groups, each device of its own rows: `aten._grouped_mm` outside of what
`experts` takes.

The weights of all groups are gathered. No partitioner shards such a product, and the one for TPUs
ends the process.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from ..core.extend import floats, grouped, partitioning, rules
from .orders import Axes

_OP = torch.ops.aten._grouped_mm.default
_GATHERED = "grouped_mm gathers the weights of all groups over {axes}"
_COMPUTED_BY_ALL = (
    "grouped_mm over {axes} is computed on all {devices} devices, with the weights of all groups "
    "gathered"
)


@partitioning.partition(_OP)
def grouped_mm_per_shard(self, mat2, offs=None, *extra_arguments, **named):
    """Each device multiplies its own rows."""
    if offs is None:
        return None
    rows = (
        [(mat2, 1)] if self.ndim == 3 else [(self, 0)] if mat2.ndim == 3 else [(self, 1), (mat2, 0)]
    )
    axes = next(filter(None, (_axes_at(*operand_dim) for operand_dim in rows)), ())
    of_groups = next((_axes_at(x, 0) for x in (self, mat2) if x.ndim == 3), ())
    unused, mesh = tuple(axis for axis in of_groups if axis not in axes), partitioning.mesh()
    partitioning.note_unused(_COMPUTED_BY_ALL if unused else _GATHERED, mesh, unused or of_groups)
    if mesh is None or not (axes or partitioning.platform() == "tpu"):
        return None
    return rules.RULES[_OP].function(
        self, mat2, offs, *extra_arguments, **named, products=on_shards(mesh, axes)
    )


def _axes_at(x: jax.Array, dim: int) -> Axes:
    axes_of = partitioning.axes_of_dims((x, dim), uneven=0)
    return () if axes_of is None else axes_of[1][0]


def on_shards(mesh: Any, axes: Axes) -> tuple[Callable[..., jax.Array], Callable[..., jax.Array]]:
    """Rows times the weights of their groups, and one product for the rows of each group, each
    device of its own."""
    shards = partitioning.num_shards(mesh, axes)

    def product(
        words: str, rows: int, run: Callable[..., jax.Array], *operands: jax.Array, shape: Any
    ) -> jax.Array:
        def body(lhs: jax.Array, rhs: jax.Array, ends: jax.Array) -> tuple[jax.Array]:
            length = lhs.shape[rows]
            sizes = grouped.sizes_of(ends, lax.axis_index(axes) * length if axes else 0, length)
            computed = grouped.computed_rows(length, len(ends), shards)
            result = run(lhs, rhs, sizes, floats.wide(lhs.dtype), computed=computed)
            is_row = jnp.arange(length)[:, None] < jnp.sum(sizes)
            return (result if rows else jnp.where(is_row, result, 0),)

        return partitioning.per_shard(body, words, mesh, {"n": axes}, [shape])(*operands)[0]

    def of_rows(rows: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
        shape, run = (len(rows), weights.shape[2]), grouped.of_rows
        return product("n i, g i o, g -> n o", 0, run, rows, weights, ends, shape=shape)

    def of_groups(lhs: jax.Array, rhs: jax.Array, ends: jax.Array) -> jax.Array:
        shape = len(ends), len(lhs), rhs.shape[1]
        return product("m n, n k, g -> g m k", 1, grouped.of_groups, lhs, rhs, ends, shape=shape)

    return of_rows, of_groups
