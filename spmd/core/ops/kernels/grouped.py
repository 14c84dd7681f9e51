"""Products of rows in groups, each with the weight of its group: the computation of `aten._grouped_mm`.

No partitioner shards a product of ragged groups: it would compute all rows on every device, and the one for TPUs ends
the process. So each device multiplies its own rows, under `jax.shard_map`, where their sharding is known
(`sharded.py`). On a TPU a product is one of jax's Pallas kernels: XLA's own computes that of a weight's gradient from
all rows for every group.
"""

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .. import sharded
from ..floats import wide
from ..partition import per_shard

_ROWS, _COLUMNS = 512, 1024  # of a block of the kernels; half as many columns where they are float32
# `tgmm` holds a block of its result three times in float32 (two buffers and the sum): with 1,024 x 1,024 it takes
# 17.02 MiB of the 16 of a core's VMEM on a v4, v5e and v5p.
_RESULT = 1024 * 512
_GATHERED = "grouped_mm gathers the weights of all groups over {axes}"
_COMPUTED_BY_ALL = (
    "grouped_mm over {axes} is computed on all {devices} devices, with the weights of all groups gathered"
)
# True to interpret the kernels, as in tests without a TPU.
INTERPRET = False


Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
OfShard = Callable[[jax.Array, jax.Array, jax.Array, int], jax.Array]


def rows_by_group(rows: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
    """rows [n, in], a group up to each of `ends`, times weights [groups, in, out]: [n, out], narrow ones in float32.

    Rows after the last group, which torch leaves undefined, are 0.
    """
    return _rows_by_group(rows, weights, _sizes(ends, 0, len(rows)))


def groups_of_rows(left: jax.Array, right: jax.Array, ends: jax.Array) -> jax.Array:
    """left [m, n] times right [n, k], one product for the n of each group: [groups, m, k]."""
    return _groups_of_rows(left, right, _sizes(ends, 0, len(right)))


def row_axes(*rows: tuple[jax.Array, int], groups: jax.Array | None) -> tuple[Any, sharded.Axes]:
    """The mesh (None: left to the partitioner) and the axes that shard the rows (none: they are replicated).

    rows: arrays with the place of their dim of rows. groups: the weights of all groups, which are gathered.
    """
    mesh = sharded.mesh() if sharded.platform() == "tpu" else None
    axes = next(filter(None, (sharded.axes_at(*each) for each in rows)), ())
    of_groups = () if groups is None else sharded.axes_at(groups, 0)
    unused = tuple(axis for axis in of_groups if axis not in axes)
    sharded.note_unused(_COMPUTED_BY_ALL if unused else _GATHERED, sharded.mesh(), unused or of_groups)
    return (sharded.mesh() if axes else mesh), axes


def on_shards(mesh: Any, axes: sharded.Axes) -> tuple[Product, Product]:
    """`rows_by_group` and `groups_of_rows`, on each device of its own rows."""

    shards = sharded.num_shards(mesh, axes)

    def product(of_shard: OfShard, words: str, rows: int, left: Any, right: Any, ends: Any, *shape: int) -> jax.Array:
        def body(left: jax.Array, right: jax.Array, ends: jax.Array) -> tuple[jax.Array]:
            length = left.shape[rows]
            start = lax.axis_index(axes) * length if axes else 0
            return (of_shard(left, right, _sizes(ends, start, length), shards),)

        return per_shard(body, words, mesh, {"n": axes}, [shape])(left, right, ends)[0]

    def of_rows(rows: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
        words = "n i, g i o, g -> n o"
        return product(_rows_by_group, words, 0, rows, weights, ends, len(rows), weights.shape[2])

    def of_groups(left: jax.Array, right: jax.Array, ends: jax.Array) -> jax.Array:
        words = "m n, n k, g -> g m k"
        return product(_groups_of_rows, words, 1, left, right, ends, len(ends), len(left), right.shape[1])

    return of_rows, of_groups


def _sizes(ends: jax.Array, start: jax.Array | int, length: int) -> jax.Array:
    """The size of each group's part in a shard that begins at `start`."""
    inside = jnp.clip(ends.astype(jnp.int32) - start, 0, length).astype(jnp.int32)
    return jnp.diff(inside, prepend=jnp.zeros(1, jnp.int32))


# -- On one device, of so many that share the rows and with them the groups.


def _rows_by_group(rows: jax.Array, weights: jax.Array, sizes: jax.Array, shards: int = 1) -> jax.Array:
    return (partial(_gmm, shards) if _has_kernel(rows, weights) else _ragged)(rows, weights, sizes)


def _groups_of_rows(left: jax.Array, right: jax.Array, sizes: jax.Array, shards: int = 1) -> jax.Array:
    return (partial(_tgmm, shards) if _has_kernel(left, right) else _ragged)(left, right, sizes)


def _has_kernel(left: jax.Array, right: jax.Array) -> bool:
    is_taken = left.dtype in (jnp.bfloat16, jnp.float32) and 0 not in (*left.shape, *right.shape)
    return is_taken and (INTERPRET or sharded.platform() == "tpu")


def _ragged(left: jax.Array, right: jax.Array, sizes: jax.Array) -> jax.Array:
    dims = lax.RaggedDotDimensionNumbers(
        dot_dimension_numbers=(((1,), (right.ndim - 2,)), ((), ())),
        lhs_ragged_dimensions=[0 if right.ndim == 3 else 1],
        rhs_group_dimensions=[0] if right.ndim == 3 else [],
    )
    return lax.ragged_dot_general(left, right, sizes, dims, preferred_element_type=wide(left.dtype))


def _gmm(shards: int, rows: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    result = _kernel("gmm", _to_blocks(rows, 0), weights, sizes, weights.shape[1:], shards)
    inside = jnp.arange(len(rows))[:, None] < jnp.sum(sizes)  # after them the kernel writes nothing
    return jnp.where(inside, result[: len(rows)], 0)


def _tgmm(shards: int, left: jax.Array, right: jax.Array, sizes: jax.Array) -> jax.Array:
    return _kernel("tgmm", _to_blocks(left, 1), _to_blocks(right, 0), sizes, (len(left), right.shape[1]), shards)


def _to_blocks(array: jax.Array, dim: int) -> jax.Array:
    """The array padded to a multiple of the block's rows by zeros, which belong to no group."""
    widths = [(0, -array.shape[dim] % _ROWS if axis == dim else 0) for axis in range(array.ndim)]
    return jnp.pad(array, widths) if any(more for _, more in widths) else array


def _kernel(
    name: str, left: jax.Array, right: jax.Array, sizes: jax.Array, sides: tuple[int, ...], shards: int
) -> jax.Array:
    # Imported here, as few programs are for TPUs.
    kernel = getattr(importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm"), name)
    most = _COLUMNS if left.dtype == jnp.bfloat16 else _COLUMNS // 2
    first, second = (min(most, -(-side // 128) * 128) for side in sides)
    tiling = _ROWS, first, min(second, _RESULT // first // 128 * 128) if name == "tgmm" else second
    # A block of rows is computed once for each group that it has rows of. `costs.kernel_flops` reads the scope.
    computed = left.shape[name == "tgmm"] + (-(-len(sizes) // shards) - 1) * _ROWS
    with jax.enable_x64(False), jax.named_scope(f"rows={computed}"):  # the kernels' own indices are of 32 bits
        return kernel(left, right, sizes, preferred_element_type=jnp.float32, tiling=tiling, interpret=INTERPRET)
