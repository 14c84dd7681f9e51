"""Batches of a framework's loop, sharded over all devices where nothing else shards them."""

import math
from typing import Any

from torch import Tensor

from ...mesh.mesh import Mesh
from ...mesh.notes import note_whole
from ...mesh.partition_spec import PartitionSpec
from ...tensors.annotate import mark_sharding
from ..data.trees import Path, mapped


def shard_batch(caller: str, batch: Any, mesh: Mesh, axes: tuple[str, ...]) -> None:
    """Shards dim 0 of a batch's tensors over axes of a mesh, in place. A batch whose rows the axes
    do not divide is replicated, and a line says so; so are tensors with another dim 0 than the
    first one."""
    tensors: dict[Path, Tensor] = {}
    mapped(batch, _has_rows, tensors.setdefault)
    ways = math.prod(mesh.shape()[axis] for axis in axes)
    shape = next((tuple(tensor.shape) for tensor in tensors.values()), (0,))
    if shape[0] % ways:
        note_whole(caller, shape, 0, ways)
    for tensor in tensors.values() if ways > 1 else ():
        entry = axes if shape[0] % ways == 0 and tensor.shape[0] == shape[0] else None
        mark_sharding(tensor, mesh, PartitionSpec(entry, *[None] * (tensor.dim() - 1)))


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "xla" and value.dim() > 0
