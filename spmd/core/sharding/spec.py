"""A Spec: what a sharding says of each dim of an array, and over which axes it is still to be summed."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

UNCONSTRAINED = PartitionSpec.UNCONSTRAINED  # jax's own: a dim of a user's spec that the partitioner is to choose


class Dim(NamedTuple):
    """How one dim lies: split over these mesh axes, the first the slowest; where it is open, as the partitioner likes.

    A tuple, as a Spec is, because both stand in keys that are hashed at each call.
    """

    axes: tuple[str, ...] = ()
    is_open: bool = False


WHOLE = Dim()
OPEN = Dim(is_open=True)


class Spec(NamedTuple):
    """The dims in order, those behind the last one whole; unreduced: the mesh axes whose pieces are still to be summed.

    >>> Spec.of((), ("data", "fsdp")).entries(3)
    (None, ('data', 'fsdp'), None)
    """

    dims: tuple[Dim, ...] = ()
    unreduced: tuple[str, ...] = ()

    @staticmethod
    def of(*axes: tuple[str, ...]) -> "Spec":
        """The spec of dims that are split over these axes, or over none."""
        return Spec(tuple(map(Dim, axes)))

    @property
    def is_open(self) -> bool:
        """Whether it leaves a dim to the partitioner."""
        return OPEN in self.dims

    def closed(self) -> "Spec":
        """The spec, whole in the dims that it leaves to the partitioner."""
        return Spec(tuple([WHOLE if dim.is_open else dim for dim in self.dims]), self.unreduced)

    def over(self, sizes: "dict[str, int]") -> "Spec":
        """The one spelling of it on a mesh of these axes: those of one device, and whole dims at the end, say nothing.

        On one device nothing is left to the partitioner, either.
        """
        is_single = all(size == 1 for size in sizes.values())
        dims = [
            WHOLE if is_single else dim if dim.is_open else Dim(tuple([axis for axis in dim.axes if sizes[axis] > 1]))
            for dim in self.dims
        ]
        while dims and dims[-1] == WHOLE:
            dims.pop()
        return Spec(tuple(dims), tuple([axis for axis in sizes if axis in self.unreduced and sizes[axis] > 1]))

    def entries(self, rank: int) -> tuple[Any, ...]:
        """As a user writes it, one entry per dim: an axis, a tuple of axes, None, or UNCONSTRAINED."""
        return tuple([_entry(dim) for dim in self.dims]) + (None,) * (rank - len(self.dims))


def _entry(dim: Dim) -> Any:
    if dim.is_open:
        return UNCONSTRAINED
    return None if not dim.axes else dim.axes[0] if len(dim.axes) == 1 else dim.axes


def jax_spec(dims: Sequence[Dim]) -> PartitionSpec:
    """Dims as jax writes them."""
    return PartitionSpec(*map(_entry, dims))
