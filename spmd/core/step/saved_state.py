"""The user's objects while a step is planned: on the device without data, and restored
afterwards."""

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # its stub has not
from torch.utils._pytree import tree_leaves

from ..base import seed
from ..graph.graph import DeviceData
from ..graph.meta import dense_meta
from ..record.storage import Storage
from ..record.tensor import OURS, XlaTensor, wrap
from ..record.threads import enter_thread
from ..run.recording import Recording, recorded
from ..torch_state.modules import after_move
from ..torch_state.swap import exchange
from .contents import Kind, Snapshot
from .objects import Objects, outermost


@contextlib.contextmanager
def abstractly(step: Any, arguments: Any, recording: Recording | None = None) -> Iterator[Objects]:
    """Yields what is reachable from a step; in the context its calls are recorded without data, and
    nothing runs."""
    enter_thread()
    reachable = Objects.of_step(step, arguments)
    with (
        recorded(recording or Recording()),
        restored_after(reachable),
        without_data(reachable, arguments),
    ):
        yield reachable


@contextlib.contextmanager
def restored_after(reachable: Objects) -> Iterator[None]:
    """Restores the reachable objects and the random streams at the end of the context."""
    reached_tensors = [tensor for _, tensor in reachable.tensors.values()]
    tensors = [
        *reached_tensors,
        *(tensor.grad for tensor in reached_tensors if tensor.is_leaf and tensor.grad is not None),
    ]
    undo: list[Callable[[], object]] = [
        # Containers first: what is restored behind them are tensors, whatever holds these.
        reachable.restore,
        *(restore for tensor in tensors for restore in _restorers(tensor)),
        partial(torch.set_rng_state, torch.get_rng_state()),
        partial(random.setstate, random.getstate()),
        partial(np.random.set_state, np.random.get_state()),
        partial(seed.set_state, seed.get_state()),
    ]
    try:
        yield
    finally:
        for restore in undo:
            restore()


_SMALL = 1 << 20  # bytes up to which the values of a CPU tensor are restored


def _restorers(tensor: Any) -> Iterator[Callable[[], Any]]:
    """Yields the functions that restore a tensor: attributes of the library, gradient, hooks, small
    values on the CPU."""
    # An annotation made inside the context belongs to the plan.
    if tensor.is_leaf and (tensor.requires_grad or isinstance(tensor, XlaTensor)):
        attributes = {name: value for name, value in tensor.__dict__.items() if name in OURS}
        yield partial(_restore_library_attributes, tensor, attributes)
    if tensor.is_leaf and tensor.requires_grad:
        # The hooks stay with the object whatever its data: annotations and units add some.
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks", "grad"):
            attribute = getattr(tensor, name)
            # The same dict is restored, as the user's handles refer to it.
            if isinstance(attribute, dict):
                yield Snapshot(attribute, "", Kind.DICT).restore
            yield partial(_restore_attribute, tensor, name, attribute)
    # Values of small CPU tensors, such as an optimizer's counters; a dataset is not copied.
    if (
        not isinstance(tensor, XlaTensor)
        and tensor.device.type == "cpu"
        and tensor.nbytes <= _SMALL
    ):
        yield partial(_restore_values, tensor, tensor.detach().clone(), tensor._version)


def _restore_library_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    for name in OURS:
        tensor.__dict__.pop(name, None)
    tensor.__dict__.update(attributes)


def _restore_attribute(tensor: torch.Tensor, name: str, value: Any) -> None:
    if getattr(tensor, name) is not value:
        setattr(tensor, name, value)


def _restore_values(tensor: torch.Tensor, original: torch.Tensor, version: int) -> None:
    # Only if the step has written: writing would be a new version for autograd.
    if tensor._version != version:
        tensor.detach().copy_(original)


@contextlib.contextmanager
def without_data(reachable: Objects, arguments: Any) -> Iterator[None]:
    """Moves modules to the device without data, with their optimizers' state and the arguments, for
    the context.

    The move is as by `.to("xla")`: rules and FSDP shard the tensors that arrive. A module on the
    device is not changed, as in a run.
    """
    exchanged: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    roots: list[nn.Module] = []

    def replace(tensor: Any, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Exchanges a tensor for the one that `make` returns, with its gradient; each tensor
        once."""
        if (
            isinstance(tensor, torch.Tensor)
            and _is_elsewhere(tensor)
            and id(tensor) not in exchanged
        ):
            gradient = tensor.grad if tensor.is_leaf else None
            exchanged[id(tensor)] = tensor, make(tensor)
            exchange(*exchanged[id(tensor)])
            if gradient is not None:
                tensor.grad = _abstract(gradient)

    try:
        for module in reachable.of(nn.Module):
            # Exchanged in place: the Parameter objects stay those that the optimizer and the user
            # hold.
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                replace(tensor, _abstract)
        # A step whose model is on the device takes its arguments as they are, as a run does.
        has_moved = bool(exchanged)
        for optimizer in reachable.of(torch.optim.Optimizer):
            for parameter, state in optimizer.state.items():
                for tensor in tree_leaves(state) if id(parameter) in exchanged else ():
                    if isinstance(tensor, torch.Tensor) and tensor.dim():
                        replace(tensor, _abstract)
        for tensor in [
            *tree_leaves(arguments),
            *(tensor for _, tensor in reachable.tensors.values()),
        ]:
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                replace(tensor, _abstract)
        for tensor in tree_leaves(arguments) if has_moved else ():
            replace(tensor, lambda tensor: tensor.detach().to("xla"))
        for root in outermost(reachable.of(nn.Module)):
            if any(id(tensor) in exchanged for tensor in (*root.parameters(), *root.buffers())):
                roots.append(root)
                root._apply(_identity)
        yield
    finally:
        # In the reverse order, as a tensor may have been exchanged as a gradient before.
        for tensor, replacement in reversed(exchanged.values()):
            exchange(tensor, replacement)
        for root in roots:
            restore_module(root)


def _identity(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def restore_module(root: nn.Module) -> None:
    """Calls the functions of `after_move` on a module whose tensors are restored: devices written
    into an exported program are the CPU's again."""
    for notify in after_move:
        notify(root, _identity)


def _is_elsewhere(tensor: torch.Tensor) -> bool:
    """True for a leaf tensor on the CPU or on meta that can move to the device."""
    return (
        tensor.device.type in ("meta", "cpu")
        and tensor.layout is torch.strided
        and tensor.is_leaf
        and not isinstance(tensor, UninitializedTensorMixin)
    )


def _abstract(tensor: torch.Tensor) -> XlaTensor:
    """A tensor of the device with this shape and dtype, without data."""
    meta = dense_meta(tuple(tensor.shape), tensor.dtype)
    # without an annotation, as data on the host
    result = wrap(meta, Storage(DeviceData(meta, is_abstract=True), meta))
    result.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        result._is_param = True
    return result
