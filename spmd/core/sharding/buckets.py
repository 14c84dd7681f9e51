"""Arrays that a mesh cuts evenly along one dim, in the form (shards, elements of a shard): many
share a collective."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from einops import rearrange

from .constrain import constrain
from .value import DEVICE, Sharding, Spec


@dataclass(frozen=True, slots=True)
class EvenCut:
    """The dim along which an array of `ndim` dims is cut; `rows` is the sharding of the (shards,
    elements) form. Cuts with equal rows join."""

    dim: int
    ndim: int
    rows: Sharding


def cut_of(shape: tuple[int, ...], sharding: Sharding | None) -> EvenCut | None:
    """Returns the cut of an array of this sharding; None if it is replicated, cut along several
    dims, or cut unevenly."""
    if (
        sharding is None
        or sharding.memory != DEVICE
        or sharding.is_open
        or sharding.padded_shape(shape) != shape
    ):
        return None
    sharded_dims = [dim for dim, dim_spec in enumerate(sharding.spec.dims) if dim_spec.axes]
    if len(sharded_dims) != 1:
        return None
    return EvenCut(
        sharded_dims[0],
        len(shape),
        sharding.with_spec(Spec((sharding.spec.dims[sharded_dims[0]],))),
    )


def to_rows(array: jax.Array, cut: EvenCut) -> jax.Array:
    """Returns (..., shards * n, ...) as (shards, n * ...), each row on the devices of its shard:
    nothing moves."""
    num_shards = cut.rows.tiles(1)[0]
    rows = rearrange(
        jnp.moveaxis(array, cut.dim, 0).reshape(array.shape[cut.dim], -1),
        "(p n) m -> p (n m)",
        p=num_shards,
    )
    return constrain(rows, cut.rows)


def from_rows(rows: jax.Array, cut: EvenCut, shape: tuple[int, ...]) -> jax.Array:
    """Returns the array of this shape from its unsharded rows: the inverse of `to_rows`."""
    moved_shape = (shape[cut.dim], *shape[: cut.dim], *shape[cut.dim + 1 :])
    return jnp.moveaxis(rows.reshape(moved_shape), 0, cut.dim)


def gather(arrays: Sequence[jax.Array], cuts: Sequence[EvenCut]) -> list[jax.Array]:
    """Returns every array unsharded, by one all-gather. All cuts have the same rows."""
    rows = cuts[0].rows
    joined = jnp.concatenate(
        [to_rows(array, cut) for array, cut in zip(arrays, cuts, strict=True)], axis=1
    )
    unsharded = constrain(constrain(joined, rows), rows.replicated())
    result, start = [], 0
    for array, cut in zip(arrays, cuts, strict=True):
        width = array.size // unsharded.shape[0]
        flat = jax.lax.slice_in_dim(unsharded, start, start + width, axis=1)
        result.append(from_rows(flat, cut, array.shape))
        start += width
    return result
