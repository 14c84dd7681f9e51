"""Moves of modules: `.to`, `.cpu()` and `.half()` change a parameter's data, never the object.

So tied weights stay tied, an optimizer made before goes on, and hooks, gradients, the user's attributes and the
sharding stay; also while a forward graph lives, whose backward pass then gives its gradients to the parameters as they
are now.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # its stub has not

from ..graph.source import warn
from ..record.annotations import annotate
from ..record.memory_formats import UnsupportedLayout, refuse_tensor
from ..record.tensor import XlaTensor
from ..sharding.value import Sharding
from . import grad_shardings, unasked_cpu
from .swap import swap
from .uninitialized import is_on_device, move_uninitialized

Function = Callable[[torch.Tensor], torch.Tensor]
# Called with a module and the function that has moved its own tensors.
after_move: list[Callable[[nn.Module, Function], None]] = []
ARRIVED = "_spmd_arrived"  # the attribute of a module that is called with it whenever its own tensors have moved
# The callables that may be called so later; each reports the future sharding of its module's tensors (`to_come`).
WAITING: "weakref.WeakSet[Any]" = weakref.WeakSet()


def to_come(tensor: torch.Tensor) -> Sharding | None:
    """Returns the sharding that a tensor on another device will have once its module moves here; None where unknown."""
    found = (one.to_come(tensor) for one in list(WAITING))
    return next((sharding for sharding in found if sharding is not None), None)


def _is_ours(tensor: torch.Tensor) -> bool:
    return type(tensor) is XlaTensor or is_on_device(tensor)


def _replace(tensor: torch.Tensor, made: Any) -> Any:
    """Returns the module's tensor after a move, from `made`: the same object, as far as torch lets it be.

    `torch.__future__.set_overwrite_module_params_on_conversion` requires another one.
    """
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    if made is tensor and not overwrites:
        return tensor
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, tensor.requires_grad)
    else:
        made.requires_grad_(tensor.requires_grad)
    if overwrites:
        return made
    if not tensor.is_leaf:
        raise RuntimeError("a tensor that was computed cannot be moved in place; make it an nn.Parameter, or detach it")
    if type(tensor) is XlaTensor and type(made) is XlaTensor and tensor.dtype == made.dtype:
        tensor.data = made.data  # a graph that has the tensor still has it
    elif type(tensor) is XlaTensor or type(made) is XlaTensor:
        swap(tensor, made)
    elif torch._has_compatible_shallow_copy_type(tensor, made):
        tensor.data = made.data
    else:
        return made
    return tensor


def _move_parameter(module: nn.Module, name: str, fn: Function) -> None:
    parameter: Any = module._parameters[name]
    if isinstance(parameter, UninitializedTensorMixin):
        move_uninitialized(parameter, fn)
        return
    gradient = parameter.grad
    with torch.no_grad():
        result = fn(parameter)
        if type(parameter) is XlaTensor and result.device.type == "cpu":
            unasked_cpu.tell()
        made_gradient = None if gradient is None else fn(gradient)
    parameter.grad = None  # the swap exchanges it with the data
    try:
        module._parameters[name] = moved = _replace(parameter, result)
    except (RuntimeError, TypeError) as error:
        parameter.grad = gradient
        raise RuntimeError(f"{type(module).__name__}.{name}: {error}") from error
    if gradient is not None:
        moved.grad = _replace(gradient, made_gradient) if gradient.is_leaf else made_gradient


def _move(module: nn.Module, fn: Function) -> None:
    """`Module._apply` for a module's own tensors, where one of them is on the device or goes there."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            _move_parameter(module, name, fn)
    for name, buffer in module._buffers.items():
        if isinstance(buffer, UninitializedTensorMixin):
            move_uninitialized(buffer, fn)
        elif buffer is not None:
            module._buffers[name] = moved = fn(buffer)
            _hold(module, name, moved)


def _keeping(module: nn.Module, fn: Function) -> Function:
    """Returns `fn` that leaves a buffer that the device cannot hold where it is, with a warning that names it."""

    def kept(tensor: torch.Tensor) -> torch.Tensor:
        try:
            result = fn(tensor)
            if type(result) is not XlaTensor and result.device.type == "xla":
                refuse_tensor(result)
            return result
        except UnsupportedLayout as error:
            for name, value in module._buffers.items():
                if value is tensor:
                    warn(f"the buffer {type(module).__name__}.{name} stays on the {tensor.device}: {error}")
                    return tensor
            for name, value in module._parameters.items():
                if value is not None and (value is tensor or value.grad is tensor):
                    label = f"{type(module).__name__}.{name}{'' if value is tensor else '.grad'}"
                    raise UnsupportedLayout(f"{label}: {error}") from None
            raise

    return kept


def _apply_to_own(module: nn.Module, fn: Function, original: Callable[..., Any]) -> None:
    """Calls torch's own `_apply`, unless a tensor is on the device, or the function takes the first one there."""
    parameters = [tensor for tensor in module._parameters.values() if tensor is not None]
    held = [*parameters, *(tensor for tensor in module._buffers.values() if tensor is not None)]
    fn = _keeping(module, fn)
    if not held or any(_is_ours(tensor) for tensor in held):
        _move(module, fn)
        return
    first = held[0]  # torch, too, calls the function with it first
    with torch.set_grad_enabled(torch.is_grad_enabled() and not parameters):
        known = [fn(first)]

    def once(tensor: torch.Tensor) -> torch.Tensor:
        return known.pop() if known and tensor is first else fn(tensor)

    if known[0].device.type == "xla":
        _move(module, once)
    else:
        original(module, once, False)


def _hold(module: nn.Module, name: str, buffer: torch.Tensor | None) -> None:
    """Marks a storage as a module's buffer; `nn.Parameter` marks parameters."""
    if type(buffer) is XlaTensor:
        buffer._storage.is_state = True


def know_buffers() -> None:
    """Marks every buffer as state from its registration on: its initial value is no part of the first step."""
    register_module_buffer_registration_hook(_hold)


def keep_identity() -> None:
    """Wraps `Module._apply`, which `.to`, `.cpu()` and `.half()` go through."""
    original = nn.Module._apply

    def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        if torch.__future__.get_swap_module_params_on_conversion():  # the user requires torch's own way
            return original(self, fn, recurse)
        if recurse:
            for module in self.children():
                module._apply(fn)
        _apply_to_own(self, fn, original)
        for after in after_move:
            after(self, fn)
        arrived = self.__dict__.get(ARRIVED)
        if arrived is not None:
            arrived(self)
        return self

    nn.Module._apply = _apply  # type: ignore[method-assign]


def keep_annotations() -> None:
    """Wraps `Module._load_from_state_dict`: a tensor that `load_state_dict(assign=True)` puts on the device in place of
    one with a sharding, now or later, takes that sharding, whatever the file says."""
    original = nn.Module._load_from_state_dict

    def _load_from_state_dict(self: nn.Module, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        before = _own_shardings(self) if local_metadata.get("assign_to_params_buffers") else {}
        original(self, state_dict, prefix, local_metadata, *args)
        for name, sharding in before.items():
            new = _own(self).get(name)
            if type(new) is XlaTensor and new._view is None and new.dim() >= len(sharding.spec.dims):
                if new._storage.sharding is not sharding:
                    annotate(new, sharding)
                grad_shardings.follow(new)

    nn.Module._load_from_state_dict = _load_from_state_dict  # type: ignore[method-assign,assignment]


def _own(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The parameters and buffers of a module itself, without its submodules."""
    return {**module._parameters, **module._buffers}


def _own_shardings(module: nn.Module) -> dict[str, Sharding]:
    """The shardings of a module's own tensors, also future ones, without those of tensors that have no annotation."""
    found = {}
    for name, tensor in _own(module).items():
        if type(tensor) is XlaTensor and tensor._view is None:
            found[name] = tensor._storage.sharding
        elif tensor is not None and not _is_ours(tensor):
            found[name] = to_come(tensor)
    return {name: sharding for name, sharding in found.items() if sharding is not None}
