"""The exchange of the data of two tensor objects on any devices, by which modules move."""

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..record.annotations import annotate
from ..record.storage import LOCK
from ..record.tensor import OURS, XlaTensor
from ..record.view_rebase import renew_hooks as renew_hooks
from . import backward

# The attributes of a tensor that belong to its data; the others are its user's, and the hook of its
# annotation.
_DATA_ATTRIBUTES = {*OURS} - {"_pins_grad"}
# The shardings of parameters that have left the device, for their return. No attributes: a file
# would have them.
_FORMER_SHARDINGS: WeakIdKeyDictionary = WeakIdKeyDictionary()


def swap(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Gives a tensor the data of another one, on whichever device, and keeps its identity,
    attributes and hooks.

    torch's own `swap_tensors` refuses tensors that a graph or a weak reference holds, and takes
    hooks and attributes away. The old data continues in `source`; a graph that holds it gives its
    gradient to `tensor`.
    """
    requires_grad = tensor.requires_grad
    storage: Any = (
        tensor._storage if isinstance(tensor, XlaTensor) and tensor._view is None else None
    )
    former_sharding = None if storage is None else storage.sharding
    exchange(tensor, source)
    # The tensor has come back to the device, where it had a sharding before.
    if (
        storage is None
        and isinstance(tensor, XlaTensor)
        and (sharding := _FORMER_SHARDINGS.pop(tensor, None)) is not None
    ):
        annotate(tensor, sharding)
        backward.follow(tensor, after_leave=True)
    if not isinstance(tensor, XlaTensor):
        if former_sharding is not None:
            _FORMER_SHARDINGS[tensor] = former_sharding
        if "_pins_grad" in tensor.__dict__:  # off the device there is no mesh for gradients
            backward.leave(tensor)
            tensor.__dict__.pop(backward.PINNED)
    elif former_sharding is not None and tensor._storage.sharding is None:
        annotate(tensor, former_sharding)
    if storage is not None and storage.reads is not None and isinstance(tensor, XlaTensor):
        storage.reads.move(storage, tensor._storage)
    renew_hooks(tensor)
    # A graph recorded before still holds the old data, and leaves its gradient there.
    if requires_grad and source._use_count() > 1:  # type: ignore[attr-defined]
        source._post_accumulate_grad_hooks = OrderedDict({0: partial(_forward, tensor)})


def exchange(tensor: torch.Tensor, peer: torch.Tensor) -> None:
    """Exchanges the data of two tensors; a second call restores them."""
    with LOCK:
        torch._C._swap_tensor_impl(tensor, peer)
        tensor.__class__, peer.__class__ = peer.__class__, tensor.__class__
        # Attributes of the data change places; the tensor keeps the others, the peer loses them.
        attributes, peer_attributes = tensor.__dict__, peer.__dict__
        moved = {name: peer_attributes[name] for name in _DATA_ATTRIBUTES & {*peer_attributes}}
        peer_attributes.clear()
        peer_attributes.update(
            (name, attributes.pop(name)) for name in _DATA_ATTRIBUTES & {*attributes}
        )
        attributes.update(moved)


def _forward(tensor: torch.Tensor, old: torch.Tensor) -> None:
    """The hook of a replaced tensor that only an old graph references: adds its gradient to the
    parameter's, and runs the parameter's hooks."""
    gradient, old.grad = old.grad, None
    assert gradient is not None
    gradient = gradient.to(tensor.device, tensor.dtype)
    tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
    for hook in [*(tensor._post_accumulate_grad_hooks or {}).values()]:
        hook(tensor)
