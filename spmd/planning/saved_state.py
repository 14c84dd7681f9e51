"""The user's objects while a step is planned: on the device without data, and restored afterwards."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # its stub has not
from torch.utils._pytree import tree_leaves

from ..core.backend.swap import exchange
from ..core.ir.graph import DeviceData
from ..core.ir.meta import dense_meta
from ..core.lazy.storage import Storage
from ..core.lazy.tensor import XlaTensor, wrap
from ..rules.applied import moved
from .reachable import Reachable, outermost


@contextlib.contextmanager
def kept(reachable: Reachable) -> Iterator[None]:
    """Restores the reachable objects at the end of the context."""
    state = reachable.state()
    try:
        yield
    finally:
        state.put_back()


@contextlib.contextmanager
def without_data(reachable: Reachable, arguments: Any) -> Iterator[None]:
    """Moves modules to the device without data, with their optimizers' state and the arguments, for the context.

    The move is as by `.to("xla")`: rules and FSDP shard the tensors that arrive. A module on the device is not changed,
    as in a run.
    """
    exchanged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def stand_in(tensor: Any, made: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if isinstance(tensor, torch.Tensor) and _is_elsewhere(tensor) and id(tensor) not in exchanged:
            gradient = tensor.grad if tensor.is_leaf else None
            exchanged[id(tensor)] = tensor, made(tensor)
            exchange(*exchanged[id(tensor)])
            if gradient is not None:
                tensor.grad = _abstract(gradient)

    try:
        for module in reachable.modules:
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                stand_in(tensor, _abstract)
        has_moved = bool(exchanged)
        for optimizer in reachable.optimizers:
            for parameter, state in optimizer.state.items():
                for tensor in tree_leaves(state) if id(parameter) in exchanged else ():
                    if isinstance(tensor, torch.Tensor) and tensor.dim():
                        stand_in(tensor, _abstract)
        for tensor in [*tree_leaves(arguments), *reachable.tensors]:
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                stand_in(tensor, _abstract)
        for tensor in tree_leaves(arguments) if has_moved else ():
            stand_in(tensor, lambda tensor: tensor.detach().to("xla"))
        for root in outermost(reachable.modules):
            if any(id(tensor) in exchanged for tensor in (*root.parameters(), *root.buffers())):
                moved(root)
        yield
    finally:
        for tensor, made in reversed(exchanged.values()):
            exchange(tensor, made)


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type in ("meta", "cpu")
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and not isinstance(tensor, UninitializedTensorMixin)
    )


def _abstract(tensor: torch.Tensor) -> XlaTensor:
    meta = dense_meta(tuple(tensor.shape), tensor.dtype)
    made = wrap(meta, Storage(DeviceData(meta, is_abstract=True), meta))  # without an annotation, as data on the host
    made.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        made._is_param = True
    return made
