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
    """Shards dim 0 of a batch's tensors over axes of a mesh, in place. A batch whose rows the axes do not divide is
    replicated, and a line says so; so are tensors with another dim 0 than the first one."""
    tensors: list[Tensor] = []

    def take(_: Path, tensor: Tensor) -> Tensor:
        tensors.append(tensor)
        return tensor

    mapped(batch, _has_rows, take)
    ways = math.prod(mesh.shape()[axis] for axis in axes)
    if not tensors or ways == 1:
        return
    rows = tensors[0].shape[0]
    if rows % ways:
        note_whole(caller, tuple(tensors[0].shape), 0, ways)
    for tensor in tensors:
        entry = axes if rows % ways == 0 and tensor.shape[0] == rows else None
        mark_sharding(tensor, mesh, PartitionSpec(entry, *[None] * (tensor.dim() - 1)))


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "xla" and value.dim() > 0
