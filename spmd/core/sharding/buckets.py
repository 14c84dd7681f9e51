"""Arrays that a mesh cuts evenly along one dim, seen as (pieces, elements of a piece): many share a collective."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from einops import rearrange

from .constrain import constrain, on_device, space_of
from .spec import Spec
from .value import DEVICE, HOST, Sharding


@dataclass(frozen=True, slots=True)
class Cut:
    """How one array of `ndim` dims is cut: along `dim`; `rows` is the (pieces, elements) form's layout. Cuts with equal
    rows join."""

    dim: int
    ndim: int
    rows: Sharding


def cut_of(shape: tuple[int, ...], sharding: Sharding | None) -> Cut | None:
    """The cut of an array of this shape stored so, or None where it is whole, cut along several dims, or unevenly."""
    if sharding is None or sharding.memory != DEVICE or sharding.is_open or sharding.padded_shape(shape) != shape:
        return None
    dims = [dim for dim, how in enumerate(sharding.spec.dims) if how.axes]
    if len(dims) != 1:
        return None
    return Cut(dims[0], len(shape), sharding.with_spec(Spec((sharding.spec.dims[dims[0]],))))


def to_rows(array: jax.Array, cut: Cut) -> jax.Array:
    """(..., pieces * n, ...) -> (pieces, n * ...), each row on the devices that hold it; nothing moves."""
    pieces = cut.rows.tiles(1)[0]
    rows = rearrange(jnp.moveaxis(array, cut.dim, 0).reshape(array.shape[cut.dim], -1), "(p n) m -> p (n m)", p=pieces)
    return constrain(rows, cut.rows)


def from_rows(rows: jax.Array, cut: Cut, shape: tuple[int, ...]) -> jax.Array:
    """The inverse of `to_rows` for an array that is whole."""
    moved = (shape[cut.dim], *shape[: cut.dim], *shape[cut.dim + 1 :])
    return jnp.moveaxis(rows.reshape(moved), 0, cut.dim)


def gather(arrays: Sequence[jax.Array], cuts: Sequence[Cut]) -> list[jax.Array]:
    """Every array whole, by one all-gather. All cuts have the same rows."""
    rows = cuts[0].rows
    joined = jnp.concatenate([to_rows(array, cut) for array, cut in zip(arrays, cuts, strict=True)], axis=1)
    whole = constrain(constrain(joined, rows), rows.replicated())
    made, start = [], 0
    for array, cut in zip(arrays, cuts, strict=True):
        width = array.size // whole.shape[0]
        piece = jax.lax.slice_in_dim(whole, start, start + width, axis=1)
        made.append(from_rows(piece, cut, array.shape))
        start += width
    return made


def sums_of_squares(arrays: Sequence[jax.Array], cuts: Sequence[Cut]) -> jax.Array:
    """The sum of squares of each array, and of each row of a stack of such, by one all-reduce of a vector.

    All cuts have the same rows. Of a stack on the host one row at a time is fetched.
    """
    partial = []
    for array, cut in zip(arrays, cuts, strict=True):

        def pieces(array: jax.Array, cut: Cut = cut) -> jax.Array:
            return jnp.sum(jnp.square(to_rows(on_device(array), cut)), axis=1)

        if array.ndim == cut.ndim:
            partial.append(jnp.expand_dims(pieces(array), 1))
        elif space_of(array) == HOST:
            partial.append(jax.lax.map(pieces, array).T)
        else:
            partial.append(jax.vmap(pieces, out_axes=1)(array))
    return jnp.sum(constrain(jnp.concatenate(partial, axis=1), cuts[0].rows), axis=0)
