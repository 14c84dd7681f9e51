"""Collectives over mesh axes, of the arrays of one shard: pure functions, for inside a manual
computation.

`axes` are names of the mesh that is being traced, the outermost first, `index` is the shard's place
along them. Where some axes of the mesh are left to the partitioner (`partial`), XLA ends the
process at several of these (jaxlib 0.10.2): GSPMD at a gather and at an all-to-all, the CPU's
compiler at a sum of 16 bits. Each function names its replacement.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Group(NamedTuple):
    """The shards that take part: the axes, their number, and which of them this one is.

    by_permutation: gathers and all-to-alls are made of permutations. widens: 16 bits are summed in
    32.
    """

    axes: tuple[str, ...]
    size: int
    shard: jax.Array
    by_permutation: bool = False
    widens: bool = False


_NARROW = frozenset({"bfloat16", "float16"})
_REDUCE: dict[str, Callable[..., jax.Array]] = {
    "sum": jax.lax.psum,
    "max": jax.lax.pmax,
    "min": jax.lax.pmin,
}


def all_reduce(x: jax.Array, op: str, group: Group) -> jax.Array:
    """The sum, maximum or minimum over the group, on every shard of it."""
    if x.dtype == jnp.bool_:
        return all_reduce(x.astype(jnp.int32), op, group).astype(jnp.bool_)
    if group.widens and x.dtype.name in _NARROW:
        return all_reduce(x.astype(jnp.float32), op, group._replace(widens=False)).astype(x.dtype)
    return _REDUCE[op](x, group.axes)


def all_gather(x: jax.Array, dim: int, group: Group) -> jax.Array:
    """The arrays of the group joined along a dim, in the group's order."""
    if not group.by_permutation:
        return jax.lax.all_gather(x, group.axes, axis=dim, tiled=True)
    shape = [n * group.size if i == dim else n for i, n in enumerate(x.shape)]
    result = jnp.zeros(shape, x.dtype)
    for shift in range(group.size):
        source = (group.shard - shift) % group.size
        result = _put(
            result, x if not shift else permute(x, _shifted(group, shift), group), source, dim
        )
    return result


def reduce_scatter(x: jax.Array, dim: int, group: Group) -> jax.Array:
    """The sum over the group, of which each shard keeps its part along a dim."""
    if group.widens and x.dtype.name in _NARROW:
        return reduce_scatter(x.astype(jnp.float32), dim, group._replace(widens=False)).astype(
            x.dtype
        )
    return jax.lax.psum_scatter(x, group.axes, scatter_dimension=dim, tiled=True)


def all_to_all(x: jax.Array, split_dim: int, concat_dim: int, group: Group) -> jax.Array:
    """Cuts an array along one dim, sends a part to each shard, joins the arriving parts along
    another, by sender."""
    if not group.by_permutation:
        return jax.lax.all_to_all(x, group.axes, split_dim, concat_dim, tiled=True)
    part = x.shape[split_dim] // group.size
    shape = list(x.shape)
    shape[split_dim] = part
    shape[concat_dim] *= group.size
    result = jnp.zeros(shape, x.dtype)
    for shift in range(group.size):
        target = (group.shard + shift) % group.size
        sent = jax.lax.dynamic_slice_in_dim(x, target * part, part, split_dim)
        arrived = sent if not shift else permute(sent, _shifted(group, shift), group)
        result = _put(result, arrived, (group.shard - shift) % group.size, concat_dim)
    return result


def permute(x: jax.Array, pairs: Sequence[tuple[int, int]], group: Group) -> jax.Array:
    """The array of the shard that sends to this one; zeros where none does."""
    return jax.lax.ppermute(x, group.axes, list(pairs))


def _shifted(group: Group, shift: int) -> list[tuple[int, int]]:
    return [(i, (i + shift) % group.size) for i in range(group.size)]


def _put(into: jax.Array, part: jax.Array, index: jax.Array, dim: int) -> jax.Array:
    start = [jnp.zeros((), index.dtype)] * into.ndim
    start[dim] = index * np.int64(part.shape[dim])
    return jax.lax.dynamic_update_slice(into, part, start)


def function_of(kind: str) -> Callable[..., jax.Array]:
    """The function of this file with a name."""
    return globals()[kind]
