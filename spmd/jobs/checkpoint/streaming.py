"""Filling of a tensor by a function, one shard at a time."""

from collections.abc import Callable

import torch

from ...core import XlaTensor, ends_at_user_line
from ...tensors.annotate import on_device
from ...tensors.shards import Filling, can_fill

Read = Callable[[tuple[slice, ...]], torch.Tensor]


@ends_at_user_line
def fill_shards(tensor: torch.Tensor, read: Read) -> torch.Tensor:
    """Overwrites a tensor with data that a function returns shard by shard, in place; returns the
    tensor.

    Each shard is uploaded before the next is read, so that the host never holds more than one; the
    tensor's old or initial value, if recorded, is never computed. Each process reads its own shards
    only.

    Args:
        tensor: a tensor on xla, not a view, with its final sharding (`mark_sharding`).
        read: called with the indices of a shard, a slice for each dim; returns these elements as a
            CPU tensor. They are cast to the tensor's dtype.

    Raises TypeError for a tensor that is not on xla, ValueError for a view or a shard of another
    shape. Source: `jax.make_array_from_callback`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(
    ...     torch.empty(16, device="xla"), spmd.Mesh(range(8), (8,), ("fsdp",)), ("fsdp",)
    ... )
    >>> spmd.checkpoint.fill_shards(x, lambda indices: torch.arange(16.0)[indices]).sum().item()
    120.0
    """
    target = on_device(tensor, "fill_shards")
    if not target.numel():
        return tensor
    if not can_fill(target):
        raise ValueError(
            "fill_shards: expected a dense tensor that is no view, got a view; pass its base"
        )
    filling = Filling(target)
    for shard in filling.shards:
        data = torch.empty(0, device="cpu") if 0 in shard.shape else read(shard.indices)
        if 0 not in shard.shape and tuple(data.shape) != shard.shape:
            raise ValueError(
                f"fill_shards: expected a shard of shape {list(shard.shape)} for {shard.indices}, "
                f"got one of shape {list(data.shape)}"
            )
        filling.put(shard, data.to(tensor.dtype).reshape(shard.shape))
    return tensor


def load_into(
    target: torch.Tensor, read: Callable[[tuple[slice, ...] | None], torch.Tensor]
) -> None:
    """Overwrites a tensor with data that a function returns: shard by shard, or where it has none,
    all (None)."""
    if isinstance(target, XlaTensor) and can_fill(target):
        fill_shards(target, read)
    else:  # on the CPU, or a view, whose base has the shards
        target.copy_(read(None))
