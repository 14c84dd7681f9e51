"""Products of rows in groups, each with the weight of its group: the computation of
`aten._grouped_mm`.

No partitioner shards a product of ragged groups: it would compute all rows on every device, and the
one for TPUs ends the process. Packages compute each device's rows (`spmd.parallel`). On a TPU a
product is one of jax's Pallas kernels: XLA's own computes that of a weight's gradient from all rows
for every group.
"""

import importlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax import lax

from .. import sharded
from ..floats import wide
from ..jax_internals import use_shardy_partitioner

# of a block of the kernels; half as many columns where they are float32
_ROWS, _COLUMNS = 512, 1024
# `tgmm` holds a block of its result three times in float32 (two buffers and the sum): with 1,024 x
# 1,024 it takes 17.02 MiB of the 16 of a core's VMEM on a v4, v5e and v5p.
_RESULT = 1024 * 512
# True to interpret the kernels, as in tests without a TPU.
INTERPRET = False


def rows_by_group(rows: jax.Array, weights: jax.Array, ends: jax.Array) -> jax.Array:
    """rows [n, in], a group up to each of `ends`, times weights [groups, in, out]: [n, out], narrow
    ones in float32.

    Rows after the last group, which torch leaves undefined, are 0.
    """
    sizes = sizes_of(ends, 0, len(rows))
    result = of_rows(
        rows, weights, sizes, wide(rows.dtype), computed=computed_rows(len(rows), len(sizes))
    )
    return jnp.where(jnp.arange(len(rows))[:, None] < jnp.sum(sizes), result, 0)


def groups_of_rows(lhs: jax.Array, rhs: jax.Array, ends: jax.Array) -> jax.Array:
    """lhs [m, n] times rhs [n, k], one product for the n of each group: [groups, m, k]."""
    computed = computed_rows(len(rhs), len(ends))
    return of_groups(lhs, rhs, sizes_of(ends, 0, len(rhs)), wide(lhs.dtype), computed=computed)


def sizes_of(ends: jax.Array, start: jax.Array | int, length: int) -> jax.Array:
    """The size of each group's part in a shard that begins at `start`."""
    inside = jnp.clip(ends.astype(jnp.int32) - start, 0, length).astype(jnp.int32)
    return jnp.diff(inside, prepend=jnp.zeros(1, jnp.int32))


def of_rows(
    rows: jax.Array,
    weights: jax.Array,
    sizes: jax.Array,
    dtype: jnp.dtype,
    *,
    is_transposed: bool = False,
    computed: int,
) -> jax.Array:
    """Rows in consecutive groups of these sizes times weights [groups, in, out], transposed
    [groups, out, in].

    Rows behind the last group are undefined. computed: their number, if groups are as large as is
    expected.
    """
    if not _has_kernel(rows, weights):
        return _ragged(
            rows, jnp.swapaxes(weights, 1, 2) if is_transposed else weights, sizes
        ).astype(dtype)
    sides = weights.shape[:0:-1] if is_transposed else weights.shape[1:]
    how = {"preferred_element_type": dtype, "transpose_rhs": is_transposed}
    return _kernel("gmm", _to_blocks(rows, 0), weights, sizes, sides, computed, how)[: len(rows)]


def of_groups(
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    dtype: jnp.dtype,
    so_far: jax.Array | None = None,
    *,
    computed: int,
) -> jax.Array:
    """lhs [m, n] times rhs [n, k], one product for the n of each group, added to those so far:
    [groups, m, k]."""
    if not _has_kernel(lhs, rhs):
        total = _ragged(lhs, rhs, sizes).astype(dtype)
        return total if so_far is None else so_far + total
    how, sides = {"existing_out": so_far, "preferred_element_type": dtype}, (len(lhs), rhs.shape[1])
    return _kernel("tgmm", _to_blocks(lhs, 1), _to_blocks(rhs, 0), sizes, sides, computed, how)


def computed_rows(rows: int, groups: int, shards: int = 1) -> int:
    """The rows that a kernel computes: a block for each group that it has rows of. shards: of all
    rows."""
    return rows + (-(-groups // shards) - 1) * _ROWS


def _has_kernel(lhs: jax.Array, rhs: jax.Array) -> bool:
    is_taken = lhs.dtype in (jnp.bfloat16, jnp.float32) and 0 not in (*lhs.shape, *rhs.shape)
    return is_taken and (INTERPRET or sharded.platform() == "tpu")


def _ragged(lhs: jax.Array, rhs: jax.Array, sizes: jax.Array) -> jax.Array:
    is_shardy = getattr(use_shardy_partitioner, "value", True)
    if sharded.platform() == "gpu" and sharded.mesh() is not None and not is_shardy:
        # XLA's RaggedDot (jaxlib 0.10.2: "only supported with Shardy") would end the process.
        raise sharded.NeedsShardyError("GSPMD has no grouped matmuls over GPUs")
    contracted, is_of_rows = (((1,), (rhs.ndim - 2,)), ((), ())), rhs.ndim == 3
    dims = lax.RaggedDotDimensionNumbers(
        contracted, [0 if is_of_rows else 1], [0] if is_of_rows else []
    )
    return lax.ragged_dot_general(lhs, rhs, sizes, dims, preferred_element_type=wide(lhs.dtype))


def _to_blocks(array: jax.Array, dim: int) -> jax.Array:
    """The array padded to a multiple of the block's rows by zeros, which belong to no group."""
    widths = [(0, -array.shape[dim] % _ROWS if axis == dim else 0) for axis in range(array.ndim)]
    return jnp.pad(array, widths) if any(more for _, more in widths) else array


def _kernel(
    name: str,
    lhs: jax.Array,
    rhs: jax.Array,
    sizes: jax.Array,
    sides: tuple[int, ...],
    computed: int,
    how: Mapping[str, object],
) -> jax.Array:
    # Imported here, as few programs are for TPUs.
    kernel = getattr(importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm"), name)
    most = _COLUMNS if lhs.dtype == jnp.bfloat16 else _COLUMNS // 2
    first, second = (min(most, -(-side // 128) * 128) for side in sides)
    tiling = _ROWS, first, min(second, _RESULT // first // 128 * 128) if name == "tgmm" else second
    # `costs.kernel_flops` reads the scope
    with jax.enable_x64(False), jax.named_scope(f"rows={computed}"):
        return kernel(lhs, rhs, sizes, tiling=tiling, interpret=INTERPRET, **how)
