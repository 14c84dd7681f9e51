"""A tensor's data from a function, one piece at a time."""

from collections.abc import Callable

import torch

from ..annotate import on_device
from ..core.engine.filling import Filling, can_fill

Read = Callable[[tuple[slice, ...]], torch.Tensor]


def fill_shards(tensor: torch.Tensor, read: Read) -> torch.Tensor:
    """Overwrites a tensor with data that a function gives piece by piece, in place; returns the tensor.

    Each piece is uploaded before the next is asked for, so that the host never holds more than one; what the tensor
    held, or was to be initialised with, is never computed. With several processes each asks for its own pieces alone.

    Args:
        tensor: a tensor on xla, not a view, laid out as it is to stay (`mark_sharding`).
        read: called with the indices of a piece, a slice for each dim; gives these elements as a CPU tensor. They are
            cast to the tensor's dtype.

    Raises TypeError for a tensor that is not on xla, ValueError for a view or a piece of another shape. Source:
    `jax.make_array_from_callback`.

    >>> import torch, spmd
    >>> x = spmd.mark_sharding(torch.empty(16, device="xla"), spmd.Mesh(range(8), (8,), ("fsdp",)), ("fsdp",))
    >>> spmd.fill_shards(x, lambda indices: torch.arange(16.0)[indices]).sum().item()
    120.0
    """
    target = on_device(tensor, "fill_shards")
    if not target.numel():
        return tensor
    if not can_fill(target):
        raise ValueError("fill_shards: expected a whole tensor in dense order, got a view; pass its base")
    filling = Filling(target)
    for piece in filling.pieces:
        data = torch.empty(0, device="cpu") if 0 in piece.shape else read(piece.indices)
        if 0 not in piece.shape and tuple(data.shape) != piece.shape:
            raise ValueError(
                f"fill_shards: expected a piece of shape {list(piece.shape)} for {piece.indices}, got one of shape "
                f"{list(data.shape)}"
            )
        filling.put(piece, data.to(tensor.dtype).reshape(piece.shape))
    return tensor
