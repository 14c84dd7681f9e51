"""`torch.distributed.checkpoint` of tensors of the device: each piece that this process's devices hold is a chunk.

torch asks any tensor that has these three methods what to write and what to read (its protocol `_Checkpointable`), so
that a checkpoint has the pieces as they lie, and is read into pieces that lie otherwise. torch's own module takes
seconds to import; whoever calls these methods has imported it.
"""

import sys
from typing import Any

import numpy as np
import torch

from ..engine.filling import Filling, Target, begins, can_fill, targets
from ..engine.reads import leased
from ..lazy.tensor import XlaTensor
from ..pjrt.host import leaving
from ..pjrt.transfer import host_tensor, pieces_here

Offsets = tuple[int, ...]

# The attribute of a tensor that a load is under way for: what is to be read, by where the pieces begin.
_LOADING = "_loading"


def _torch(module: str) -> Any:
    return sys.modules[f"torch.distributed.checkpoint.{module}"]


def _chunk(offsets: Offsets, sizes: tuple[int, ...]) -> Any:
    return _torch("metadata").ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))


def _create_write_items(tensor: XlaTensor, fqn: str, value: Any) -> list[Any]:
    """What this process writes of a tensor: of each of its pieces the first copy."""
    planner, metadata = _torch("planner"), _torch("metadata")
    tensor.__dict__.pop(_LOADING, None)  # of a load that failed half way
    if not can_fill(tensor):
        return [_torch("planner_helpers")._create_write_item_for_tensor(fqn, tensor)]
    properties = metadata.TensorProperties(dtype=tensor.dtype, requires_grad=tensor.requires_grad)
    return [
        planner.WriteItem(
            index=metadata.MetadataIndex(fqn, torch.Size(offsets)),
            type=planner.WriteItemType.SHARD,
            tensor_data=planner.TensorWriteData(_chunk(offsets, sizes), properties, tensor.size()),
        )
        for offsets, sizes in _first_copies(tensor)
    ]


def _first_copies(tensor: XlaTensor) -> list[tuple[Offsets, tuple[int, ...]]]:
    with leased(tensor._cell, "saving a checkpoint", on_device=True) as lease:
        buffer, lies = lease.placed()
        first = {shard.device for shard in buffer.addressable_shards if shard.replica_id == 0}
    pieces = [piece for piece in pieces_here(tensor._meta.shape, lies) if first & {*piece.devices}]
    return [(begins(piece.indices), piece.shape) for piece in pieces if 0 not in piece.shape]


def _create_chunk_list(tensor: XlaTensor) -> list[Any]:
    """What this process is to read of a tensor; nothing of what it holds is looked at."""
    if not can_fill(tensor):
        return [_torch("planner_helpers")._create_chunk_from_tensor(tensor)]
    filling = Filling(tensor, lambda: tensor.__dict__.pop(_LOADING, None))
    tensor.__dict__[_LOADING] = found = dict(targets(filling))
    return [_chunk(offsets, target.piece.shape) for offsets, target in found.items()]


def _get_tensor_shard(tensor: XlaTensor, index: Any) -> torch.Tensor:
    """The piece at an index: to be written while a load is under way, else its values."""
    if not can_fill(tensor):
        return tensor
    offsets = tuple(index.offset or [0] * tensor.dim())
    found: dict[Offsets, Target] | None = tensor.__dict__.get(_LOADING)
    return _piece(tensor, offsets) if found is None else found[offsets].staged()


def _piece(tensor: XlaTensor, offsets: Offsets) -> torch.Tensor:
    leaving("saving a checkpoint", repr(tensor._meta))
    with leased(tensor._cell, "saving a checkpoint", on_device=True) as lease:
        buffer, lies = lease.placed()
        for piece in pieces_here(tensor._meta.shape, lies):
            if begins(piece.indices) == offsets and 0 not in piece.shape:
                data = next(shard.data for shard in buffer.addressable_shards if shard.device in piece.devices)
                return host_tensor(np.asarray(data)[tuple(slice(0, dim) for dim in piece.shape)])
    raise ValueError(
        f"saving a checkpoint: no piece of {tensor._meta!r} begins at {list(offsets)} any more, as it was laid out "
        "anew since the plan was made; save again"
    )


def join_checkpointing() -> None:
    """Gives the tensor class what torch's checkpoints ask of a tensor that lies in pieces."""
    XlaTensor.__create_write_items__ = _create_write_items  # type: ignore[attr-defined]
    XlaTensor.__create_chunk_list__ = _create_chunk_list  # type: ignore[attr-defined]
    XlaTensor.__get_tensor_shard__ = _get_tensor_shard  # type: ignore[attr-defined]
