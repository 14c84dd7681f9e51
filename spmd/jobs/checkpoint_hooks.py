"""`torch.distributed.checkpoint` of tensors of the device: each shard on this process's devices is
a chunk.

torch calls these three methods of any tensor for what to write and what to read (its protocol
`_Checkpointable`), so a checkpoint has the shards as they are, and is read into shards of another
sharding. torch's own module takes seconds to import; a caller of these methods has imported it.
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ..core import Patch, XlaTensor, host_reads, leaving, storage_of, tensor_meta, transfer
from ..tensors.shards import Filling, Target, begins, can_fill, targets

Offsets = tuple[int, ...]

# The attribute of a tensor that a load is under way for: the targets to be read, by the first index
# of their shard.
_LOADING = "_loading"


def _torch(module: str) -> Any:
    return sys.modules[f"torch.distributed.checkpoint.{module}"]


def _chunk(offsets: Offsets, sizes: tuple[int, ...]) -> Any:
    return _torch("metadata").ChunkStorageMetadata(
        offsets=torch.Size(offsets), sizes=torch.Size(sizes)
    )


def _create_write_items(tensor: XlaTensor, fqn: str, value: Any) -> list[Any]:
    """Returns the items that this process writes of a tensor: the first copy of each of its
    shards."""
    tensor.__dict__.pop(_LOADING, None)  # of a load that failed half way
    if not can_fill(tensor):
        return [_torch("planner_helpers")._create_write_item_for_tensor(fqn, tensor)]
    return write_items(fqn, tensor, tensor.size(), _first_copies(tensor))


def write_items(
    fqn: str,
    values: torch.Tensor,
    size: torch.Size,
    chunks: Iterable[tuple[Offsets, tuple[int, ...]]],
) -> list[Any]:
    """Returns the items that write the chunks of a tensor, by their first index and sizes.

    values: any tensor with its dtype. size: that of the whole.
    """
    planner, metadata = _torch("planner"), _torch("metadata")
    properties = metadata.TensorProperties(dtype=values.dtype, requires_grad=values.requires_grad)
    return [
        planner.WriteItem(
            index=metadata.MetadataIndex(fqn, torch.Size(offsets)),
            type=planner.WriteItemType.SHARD,
            tensor_data=planner.TensorWriteData(_chunk(offsets, sizes), properties, size),
        )
        for offsets, sizes in chunks
    ]


def _first_copies(tensor: XlaTensor) -> list[tuple[Offsets, tuple[int, ...]]]:
    with host_reads.leased(storage_of(tensor), "saving a checkpoint", on_device=True) as lease:
        buffer, sharding = lease.placed()
        first = {shard.device for shard in buffer.addressable_shards if shard.replica_id == 0}
    shard_slices = transfer.shards_here(tensor_meta(tensor).shape, sharding)
    shard_slices = [shard_slice for shard_slice in shard_slices if first & {*shard_slice.devices}]
    return [
        (begins(shard_slice.indices), shard_slice.shape)
        for shard_slice in shard_slices
        if 0 not in shard_slice.shape
    ]


def _create_chunk_list(tensor: XlaTensor) -> list[Any]:
    """Returns the chunks that this process reads into a tensor, without a look at its values."""
    if not can_fill(tensor):
        return [_torch("planner_helpers")._create_chunk_from_tensor(tensor)]
    filling = Filling(tensor, lambda: tensor.__dict__.pop(_LOADING, None))
    tensor.__dict__[_LOADING] = chunks = dict(targets(filling))
    return [_chunk(offsets, target.shard.shape) for offsets, target in chunks.items()]


def _get_tensor_shard(tensor: XlaTensor, index: Any) -> torch.Tensor:
    """Returns the shard at an index: to be written while a load is under way, else its values."""
    if not can_fill(tensor):
        return tensor
    offsets = tuple(index.offset or [0] * tensor.dim())
    chunks: dict[Offsets, Target] | None = tensor.__dict__.get(_LOADING)
    return _shard(tensor, offsets) if chunks is None else chunks[offsets].staged()


def _shard(tensor: XlaTensor, offsets: Offsets) -> torch.Tensor:
    leaving("saving a checkpoint", repr(tensor_meta(tensor)))
    with host_reads.leased(storage_of(tensor), "saving a checkpoint", on_device=True) as lease:
        buffer, sharding = lease.placed()
        for shard_slice in transfer.shards_here(tensor_meta(tensor).shape, sharding):
            if begins(shard_slice.indices) == offsets and 0 not in shard_slice.shape:
                data = next(
                    shard.data
                    for shard in buffer.addressable_shards
                    if shard.device in shard_slice.devices
                )
                return transfer.host_tensor(
                    np.asarray(data)[tuple(slice(0, dim) for dim in shard_slice.shape)]
                )
    raise ValueError(
        f"saving a checkpoint: no shard of {tensor_meta(tensor)!r} begins at {list(offsets)} any "
        "more, as the tensor was resharded after the plan was made; save again"
    )


def _join_checkpointing() -> None:
    """Gives the tensor class the methods that torch's checkpoints call on a sharded tensor."""
    XlaTensor.__create_write_items__ = _create_write_items  # type: ignore[attr-defined]
    XlaTensor.__create_chunk_list__ = _create_chunk_list  # type: ignore[attr-defined]
    XlaTensor.__get_tensor_shard__ = _get_tensor_shard  # type: ignore[attr-defined]


PATCH = Patch(
    "the methods that torch's checkpoints call", "a chunk for each shard", _join_checkpointing
)
PATCH.apply()
