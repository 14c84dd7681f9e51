"""Sums of products whose summed dim is sharded: devices add their parts, and exchange one sum.

A partitioner reduces each product by itself, before the sum that reads it. XLA's compilers merge
two reductions only where nothing stands between them and their sum, a cast say, and that for CPUs
never does. Megatron's layers have such sums wherever several products read one tensor, as query,
key and value do, or gate and up: its gradient would be reduced once for each (arXiv:1909.08053,
arXiv:2205.05198).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import torch
from jax import lax

from . import sharded
from .partition import partition
from .sharded import AnyMesh, Axes

aten = torch.ops.aten


class PartialSums(NamedTuple):
    """What an array is the sum of over devices. parts: returns the array [shards, ...], its first
    dim sharded over the axes, whose sum over this dim it is. place: the axes that shard the sum;
    None: as the partitioner has it."""

    mesh: AnyMesh
    axes: Axes
    place: Sequence[Axes] | None
    shape: tuple[int, ...]
    dtype: jax.typing.DTypeLike
    parts: Callable[[], jax.Array]


def note(
    result: jax.Array,
    lhs: jax.Array,
    rhs: jax.Array,
    dtype: jax.typing.DTypeLike,
    place: Sequence[Axes] | None = None,
) -> jax.Array:
    """The result, a product of the last dim of lhs and the first of rhs in this dtype; where that
    dim is sharded, it is known as a sum over devices."""
    of_lhs = sharded.axes_of(lhs)
    if of_lhs is None or not (axes := of_lhs[1][-1]):
        return result
    mesh, size = of_lhs[0], lhs.shape[-1]
    ways = sharded.num_shards(mesh, axes)

    def parts() -> jax.Array:
        left = lhs.reshape(*lhs.shape[:-1], ways, size // ways)
        right = rhs.reshape(ways, size // ways, *rhs.shape[1:])
        dims = ((left.ndim - 1,), (1,)), ((left.ndim - 2,), (0,))
        product = lax.dot_general(left, right, dims, preferred_element_type=dtype)
        return sharded.in_front(product, mesh, axes)

    sums = PartialSums(mesh, axes, place, result.shape, result.dtype, parts)
    return sharded.note_source(result, sums)


@partition(aten.add.Tensor)
def _added(self, other, alpha=1):
    """The sum of two sums over the same devices, exchanged once."""
    first, second = sharded.source_of(self), sharded.source_of(other)
    is_plain = not isinstance(alpha, jax.Array) and alpha == 1
    are_sums = type(first) is type(second) is PartialSums
    if not (is_plain and are_sums and first[:-1] == second[:-1]):
        return None
    total = first.parts() + second.parts()
    result = sharded.exchanged(total, total.dtype).astype(first.dtype)
    if first.place is not None:
        result = sharded.placed(result, first.mesh, *first.place)
    return sharded.note_source(result, first._replace(parts=lambda: total))
