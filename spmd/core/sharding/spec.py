"""A Spec: the axes that shard each dim of an array, and the axes over which it is still to be summed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

UNCONSTRAINED = PartitionSpec.UNCONSTRAINED  # jax's own: a dim of a user's spec that the partitioner chooses


class Dim(NamedTuple):
    """The mesh axes that shard one dim, the first the slowest; where it is open, the partitioner chooses.

    A tuple, as a Spec is, because both are in keys that are hashed at each call.
    """

    axes: tuple[str, ...] = ()
    is_open: bool = False


UNSHARDED = Dim()
OPEN = Dim(is_open=True)


class Spec(NamedTuple):
    """The dims in order, unsharded after the last one; unreduced: the mesh axes whose summands are still to be summed.

    >>> Spec.of((), ("data", "fsdp")).entries(3)
    (None, ('data', 'fsdp'), None)
    """

    dims: tuple[Dim, ...] = ()
    unreduced: tuple[str, ...] = ()

    @staticmethod
    def of(*axes: tuple[str, ...]) -> "Spec":
        """Returns the spec of dims that are sharded over these axes, or over none."""
        return Spec(tuple(map(Dim, axes)))

    @property
    def is_open(self) -> bool:
        """True if the partitioner chooses a dim."""
        return OPEN in self.dims

    def closed(self) -> "Spec":
        """Returns the spec with open dims unsharded."""
        return Spec(tuple([UNSHARDED if dim.is_open else dim for dim in self.dims]), self.unreduced)

    def over(self, sizes: "dict[str, int]") -> "Spec":
        """Returns the canonical spec on a mesh of these axes: without axes of one device and trailing unsharded dims.

        On one device no dim is open, either.
        """
        is_single = all(size == 1 for size in sizes.values())
        dims = [
            UNSHARDED if is_single else dim if dim.is_open else Dim(tuple([n for n in dim.axes if sizes[n] > 1]))
            for dim in self.dims
        ]
        while dims and dims[-1] == UNSHARDED:
            dims.pop()
        return Spec(tuple(dims), tuple([axis for axis in sizes if axis in self.unreduced and sizes[axis] > 1]))

    def entries(self, rank: int) -> tuple[Any, ...]:
        """Returns the spec as a user writes it, per dim: an axis, a tuple of axes, None, or UNCONSTRAINED."""
        return tuple([_op(dim) for dim in self.dims]) + (None,) * (rank - len(self.dims))


def _op(dim: Dim) -> Any:
    if dim.is_open:
        return UNCONSTRAINED
    return None if not dim.axes else dim.axes[0] if len(dim.axes) == 1 else dim.axes


def jax_spec(dims: Sequence[Dim]) -> PartitionSpec:
    """Returns the dims as jax's PartitionSpec."""
    return PartitionSpec(*map(_op, dims))
