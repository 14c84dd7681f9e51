"""Arrays gathered in eight bits: each shard is divided by powers of two and rounded, its bits are
gathered and widened."""

# Why powers of two: nothing is rounded where the bits are widened, so that an array that has been
# widened is narrowed to the same bits again; and a scale is one byte, its exponent.
#
# Why integers are gathered: XLA's CPU compiler widens collectives of small floats.

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .buckets import cut_of, gather
from .constrain import constrain
from .value import UNSHARDED, Dim, Sharding, Spec


class _Blocks(NamedTuple):
    """An array as blocks of one scale. shape: each dim of the array as two, blocks and elements of
    a block. reduced: the dims of elements. dims: the array's, for each of `shape`; None: elements.
    """

    shape: tuple[int, ...]
    reduced: tuple[int, ...]
    dims: tuple[int | None, ...]

    def sharding(self, sharding: Sharding) -> Sharding:
        """The sharding of the scales of an array in this sharding."""
        spec = [*sharding.spec.dims, *[UNSHARDED] * len(self.dims)]
        return sharding.with_spec(
            Spec(tuple(Dim() if dim is None else spec[dim] for dim in self.dims))
        )


def gather_narrow(
    arrays: Sequence[jax.Array],
    stored: Sequence[Sharding | None],
    layout: Sharding,
    dtype: jax.typing.DTypeLike,
) -> list[jax.Array]:
    """Returns arrays in another sharding; devices exchange their elements as floats of eight bits.

    An index of a dim that is gathered has a scale, and each shard of the other dims one of its own:
    the power of two above the largest magnitude by that of the dtype. An array of which nothing is
    gathered stays as it is. Scales of arrays that are cut alike share a gather.
    """
    result, scales = list(arrays), dict[int, tuple[_Blocks, jax.Array]]()
    for index, (array, sharding) in enumerate(zip(arrays, stored, strict=True)):
        blocks = None if sharding is None else _blocks(array.shape, sharding, layout)
        if sharding is not None and blocks is not None:
            result[index], exponents = _narrow(array, blocks, dtype)
            result[index] = constrain(constrain(result[index], sharding), layout)
            scales[index] = blocks, constrain(exponents, blocks.sharding(sharding))
    flat = {index: exponents.reshape(-1) for index, (_, exponents) in scales.items()}
    cuts = {
        index: cut
        for index, sharding in enumerate(stored)
        if index in scales
        and layout.is_replicated()
        and (whole := cut_of(arrays[index].shape, sharding)) is not None
        and (cut := cut_of(flat[index].shape, whole.rows)) is not None
    }
    joined = gather([flat[index] for index in cuts], [*cuts.values()]) if cuts else []
    unsharded = dict(zip(cuts, joined, strict=True))
    for index, (blocks, exponents) in scales.items():
        exponents = (
            unsharded[index].reshape(exponents.shape)
            if index in unsharded
            else constrain(exponents, blocks.sharding(layout))
        )
        # A product, and no shift as before the gather: XLA merges equal constants, and GSPMD would
        # then compute shards of the scales.
        powers = jax.lax.bitcast_convert_type(exponents.astype(jnp.int32) * (1 << 23), jnp.float32)
        powers = constrain(powers, blocks.sharding(layout))
        values = jax.lax.bitcast_convert_type(result[index], dtype).astype(jnp.float32)
        widened = (values.reshape(blocks.shape) * powers).reshape(arrays[index].shape)
        result[index] = constrain(widened.astype(arrays[index].dtype), layout)
    return result


def _blocks(shape: tuple[int, ...], sharding: Sharding, layout: Sharding) -> _Blocks | None:
    """The blocks of an array; None where nothing is gathered."""
    rank, tiles = len(shape), sharding.tiles(len(shape))
    is_gathered = [
        old != new
        for old, new in zip(sharding.spec.entries(rank), layout.spec.entries(rank), strict=True)
    ]
    sizes, reduced, dims = list[int](), list[int](), list[int | None]()
    for dim, size in enumerate(shape):
        ways = size if is_gathered[dim] else tiles[dim] if size % tiles[dim] == 0 else 1
        sizes += [ways, size // ways]
        dims += [dim, None]
        reduced.append(2 * dim + 1)
    return _Blocks(tuple(sizes), tuple(reduced), tuple(dims)) if any(is_gathered) else None


def _narrow(
    array: jax.Array, blocks: _Blocks, dtype: jax.typing.DTypeLike
) -> tuple[jax.Array, jax.Array]:
    """The bits of the elements, divided by the scales, and the exponents of the scales as float32
    has them, plus 127."""
    values = array.astype(jnp.float32).reshape(blocks.shape)
    largest = jnp.max(jnp.abs(values), axis=blocks.reduced, keepdims=True)
    bits = jax.lax.bitcast_convert_type(largest / float(jnp.finfo(dtype).max), jnp.int32)
    exponents = jnp.clip((bits >> 23) + 1, 1, 254)
    inverse = jax.lax.bitcast_convert_type((254 - exponents) << 23, jnp.float32)
    # Nothing is past the largest number: jax's own conversion rounds as torch's.
    scaled = (values * inverse).astype(dtype).reshape(array.shape)
    return jax.lax.bitcast_convert_type(scaled, jnp.uint8), exponents.astype(jnp.uint8)
