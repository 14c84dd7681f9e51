"""DTensor's placements, one per mesh axis, as a PartitionSpec, one entry per tensor dim, and back.

A dim that several axes split is split by the first of them first; where a spec has another order of axes, DTensor says
so by a strided shard, whose factor is the number of pieces that the axes behind it have made before it.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch._C import _distributed as kinds  # what torch.distributed.tensor's placements are made of; imports nothing

from .core.sharding.spec import UNCONSTRAINED
from .partition_spec import PartitionSpec

Placement = kinds.Placement


def are_placements(given: Any) -> bool:
    """Whether a sequence is one of placements rather than of a spec's entries."""
    return isinstance(given, (tuple, list)) and bool(given) and all(isinstance(one, Placement) for one in given)


def spec_of(
    placements: Sequence[Any], rank: int, names: Sequence[str], sizes: Sequence[int], caller: str
) -> PartitionSpec:
    """The spec of a tensor of `rank` dims that is placed so on a mesh of these axes.

    Raises ValueError for another number of placements than axes and for a dim that is not there, NotImplementedError
    for a sum that is left to do, which nobody can ask of data.
    """
    if len(placements) != len(names):
        raise ValueError(
            f"{caller}: {list(placements)!r} are {len(placements)} placements, but the mesh has {len(names)} axes "
            f"({', '.join(map(repr, names))}); give one for each"
        )
    axes: list[list[int]] = [[] for _ in range(rank)]
    for i in reversed(range(len(names))):
        placement = placements[i]
        if isinstance(placement, kinds.Partial):
            raise NotImplementedError(
                f"{caller}: {placement!r} says that a sum over axis {names[i]!r} is left to do; a tensor can be asked "
                "to be split or whole only. The partitioner leaves such sums where that is cheaper"
            )
        if isinstance(placement, kinds.Replicate):
            continue
        dim: Any = placement.dim
        if not -rank <= dim < rank:
            raise ValueError(f"{caller}: {placement!r} splits dim {dim}, but the tensor has {rank} dims")
        split = axes[dim % rank]
        split.insert(_place(placement, split, sizes, caller), i)
    entries = [tuple(names[i] for i in split) for split in axes]
    return PartitionSpec(*[None if not entry else entry[0] if len(entry) == 1 else entry for entry in entries])


def _place(placement: Any, split: Sequence[int], sizes: Sequence[int], caller: str) -> int:
    """Behind which of the axes that split the dim already this one comes: those that make `split_factor` pieces."""
    wanted = placement.split_factor if isinstance(placement, kinds.StridedShard) else 1
    pieces = 1
    for place, axis in enumerate(split):
        if pieces == wanted:
            return place
        pieces *= sizes[axis]
    if pieces == wanted:
        return len(split)
    raise ValueError(
        f"{caller}: {placement!r} counts {wanted} pieces of dim {placement.dim} that are made before it, but the axes "
        f"behind it make {pieces}"
    )


def splits_of(entries: Sequence[Any], names: Sequence[str], sizes: Sequence[int]) -> list[tuple[int, int] | None]:
    """Which dim each axis of a mesh splits, and how many pieces axes behind it have made before; None: it splits none.

    entries: of a spec, axes by name. Raises ValueError for a dim that is left to the partitioner: no placement says so.
    """
    found: list[tuple[int, int] | None] = [None] * len(names)
    for dim, entry in enumerate(entries):
        if entry is UNCONSTRAINED:
            raise ValueError(f"placements: dim {dim} is left to the partitioner, which no placement says")
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        split = [names.index(str(axis)) for axis in axes]
        for place, axis in enumerate(split):
            found[axis] = (dim, math.prod(sizes[before] for before in split[:place] if before > axis))
    return found
