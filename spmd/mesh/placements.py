"""DTensor's placements, one per mesh axis, as a PartitionSpec, one entry per tensor dim, and back.

A dim that several axes split is split by the first of them first; for another order of axes in a
spec, DTensor has a strided shard, whose `split_factor` is the number of shards that the later axes
of the mesh make before it.
"""

import importlib
import math
from collections.abc import Sequence
from typing import Any

# the base classes of torch.distributed.tensor's placements; imports nothing
from torch._C import _distributed as kinds

from ..core import Sharding, ends_at_user_line, specs
from .partition_spec import PartitionSpec

Placement = kinds.Placement


def are_placements(placements: Any) -> bool:
    """True for a sequence of placements, as opposed to the entries of a spec."""
    return (
        isinstance(placements, (tuple, list))
        and bool(placements)
        and all(isinstance(placement, Placement) for placement in placements)
    )


def spec_of(
    placements: Sequence[Any], rank: int, names: Sequence[str], sizes: Sequence[int], caller: str
) -> PartitionSpec:
    """The spec of a tensor of `rank` dims with these placements on a mesh of these axes.

    Raises ValueError for another number of placements than axes and for a dim that is out of range,
    NotImplementedError for `Partial()`, as data is never a partial sum.
    """
    if len(placements) != len(names):
        raise ValueError(
            f"{caller}: {list(placements)!r} are {len(placements)} placements, but the mesh has "
            f"{len(names)} axes ({', '.join(map(repr, names))}); pass one for each"
        )
    axes: list[list[int]] = [[] for _ in range(rank)]
    for i in reversed(range(len(names))):
        placement = placements[i]
        if isinstance(placement, kinds.Partial):
            raise NotImplementedError(
                f"{caller}: {placement!r} is a pending sum over axis {names[i]!r}; expected "
                "Shard(dim) or Replicate(). The partitioner itself leaves partial sums where that "
                "is cheaper"
            )
        if isinstance(placement, kinds.Replicate):
            continue
        dim: Any = placement.dim
        if not -rank <= dim < rank:
            raise ValueError(
                f"{caller}: {placement!r} splits dim {dim}, but the tensor has {rank} dims"
            )
        split = axes[dim % rank]
        split.insert(_place(placement, split, sizes, caller), i)
    entries = [tuple(names[i] for i in split) for split in axes]
    return PartitionSpec(
        *[None if not entry else entry[0] if len(entry) == 1 else entry for entry in entries]
    )


def _place(placement: Any, split: Sequence[int], sizes: Sequence[int], caller: str) -> int:
    """The position of this axis among those that split the dim already: after those that make
    `split_factor` shards."""
    split_factor = placement.split_factor if isinstance(placement, kinds.StridedShard) else 1
    num_shards = 1
    for index, axis in enumerate(split):
        if num_shards == split_factor:
            return index
        num_shards *= sizes[axis]
    if num_shards == split_factor:
        return len(split)
    raise ValueError(
        f"{caller}: {placement!r} expects {split_factor} shards of dim {placement.dim} from the "
        f"later axes of the mesh, but these make {num_shards}"
    )


def splits_of(
    entries: Sequence[Any], names: Sequence[str], sizes: Sequence[int]
) -> list[tuple[int, int] | None]:
    """For each axis of a mesh, the dim it splits and the number of shards that later axes make
    before; None: no dim.

    entries: of a spec, axes by name. Raises ValueError for a dim that is left to the partitioner:
    no placement is that.
    """
    splits: list[tuple[int, int] | None] = [None] * len(names)
    for dim, entry in enumerate(entries):
        if entry is specs.UNCONSTRAINED:
            raise ValueError(
                f"placements: dim {dim} is left to the partitioner, for which there is no placement"
            )
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        split = [names.index(str(axis)) for axis in axes]
        for index, axis in enumerate(split):
            splits[axis] = (
                dim,
                math.prod(sizes[outer_axis] for outer_axis in split[:index] if outer_axis > axis),
            )
    return splits


@ends_at_user_line
def placements_of(sharding: Sharding, rank: int) -> tuple[Any, ...]:
    """The placements of a tensor of `rank` dims with this sharding, one per axis of its mesh.

    Axes that split a dim in another order than the mesh's are DTensor's strided shards. Raises
    ValueError for a dim that is left to the partitioner.

    >>> import spmd
    >>> from spmd.dtensor import placements_of
    >>> placements_of(spmd.Mesh(range(8), (2, 4), ("dp", "tp")).sharding((None, "tp"), 2), 2)
    (Replicate(), Shard(dim=1))
    """
    splits = splits_of(sharding.spec.entries(rank), sharding.axis_names, sharding.mesh_shape)
    # a second of imports
    types: Any = importlib.import_module("torch.distributed.tensor.placement_types")

    def shard(dim: int, split_factor: int) -> Any:
        return (
            types.Shard(dim)
            if split_factor == 1
            else types._StridedShard(dim, split_factor=split_factor)
        )

    return tuple(types.Replicate() if split is None else shard(*split) for split in splits)
