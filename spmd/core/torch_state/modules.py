"""Moves of modules: `.to`, `.cpu()` and `.half()` change a parameter's data, never the object.

So tied weights stay tied, existing optimizers stay valid, and hooks, gradients, the user's
attributes and the sharding stay. A live forward graph gives its gradients to the moved parameters.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # its stub has not

from ..graph.source import nearest_user_frame, warn
from ..record.annotations import annotate
from ..record.memory_formats import UnsupportedLayout, refuse_tensor
from ..record.tensor import XlaTensor
from ..sharding.value import Sharding
from .backward import follow
from .subclasses import user_class
from .swap import swap
from .uninitialized import is_on_device, move_uninitialized

Function = Callable[[torch.Tensor], torch.Tensor]
# Called with a module and the function that has moved its own tensors.
after_move: list[Callable[[nn.Module, Function], None]] = []
# the attribute of a module for a function, called with it whenever its own tensors have moved
ARRIVED = "_spmd_arrived"
# The objects that may be called so later. Their method `future_sharding` returns the sharding that
# their module's tensors will have.
WAITING: "weakref.WeakSet[Any]" = weakref.WeakSet()


def future_sharding(tensor: torch.Tensor) -> Sharding | None:
    """Returns the sharding that a tensor on another device will have once its module moves here;
    None where unknown."""
    shardings = (waiting.future_sharding(tensor) for waiting in list(WAITING))
    return next((sharding for sharding in shardings if sharding is not None), None)


def _is_ours(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, XlaTensor) or is_on_device(tensor)


def _replace(tensor: torch.Tensor, moved: torch.Tensor) -> Any:
    """Returns the module's tensor after a move to `moved`: the same object, as far as torch lets it
    be.

    `torch.__future__.set_overwrite_module_params_on_conversion` requires another one.
    """
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    if moved is tensor and not overwrites:
        return tensor
    if isinstance(tensor, nn.Parameter):
        kind = user_class(type(tensor))
        if issubclass(kind, nn.Parameter):
            moved = torch.Tensor._make_subclass(kind, moved, tensor.requires_grad)
        else:
            moved = nn.Parameter(moved, tensor.requires_grad)
    else:
        moved.requires_grad_(tensor.requires_grad)
    if overwrites:
        return moved
    if not tensor.is_leaf:
        raise RuntimeError(
            "a tensor that was computed cannot be moved in place; make it an nn.Parameter, or "
            "detach it"
        )
    # Between the device and others, or between dtypes, the data is exchanged; else `.data =`
    # suffices.
    are_ours = isinstance(tensor, XlaTensor), isinstance(moved, XlaTensor)
    if any(are_ours) and not (all(are_ours) and tensor.dtype == moved.dtype):
        swap(tensor, moved)
    elif all(are_ours) or torch._has_compatible_shallow_copy_type(tensor, moved):
        tensor.data = moved.data  # a graph that has the tensor still has it
    else:
        return moved
    return tensor


def _move_parameter(module: nn.Module, name: str, fn: Function) -> None:
    """Moves a module's parameter and its gradient; on an error both stay."""
    parameter: Any = module._parameters[name]
    if isinstance(parameter, UninitializedTensorMixin):
        move_uninitialized(parameter, fn)
        return
    gradient = parameter.grad
    with torch.no_grad():
        result = fn(parameter)
        if isinstance(parameter, XlaTensor) and result.device.type == "cpu":
            _warn_of_cpu()
        moved_gradient = None if gradient is None else fn(gradient)
    parameter.grad = None  # the swap exchanges it with the data
    try:
        module._parameters[name] = moved = _replace(parameter, result)
    except (RuntimeError, TypeError) as error:
        parameter.grad = gradient
        raise RuntimeError(f"{type(module).__name__}.{name}: {error}") from error
    if gradient is not None and moved_gradient is not None:
        moved.grad = _replace(gradient, moved_gradient) if gradient.is_leaf else moved_gradient


def _move(module: nn.Module, fn: Function) -> None:
    """`Module._apply` for a module's own tensors, where one of them is on the device or goes
    there."""
    for name, parameter in module._parameters.items():
        if parameter is not None:
            _move_parameter(module, name, fn)
    for name, buffer in module._buffers.items():
        if isinstance(buffer, UninitializedTensorMixin):
            move_uninitialized(buffer, fn)
        elif buffer is not None:
            module._buffers[name] = moved = fn(buffer)
            _mark_buffer(module, name, moved)


def _skipping_unsupported(module: nn.Module, fn: Function) -> Function:
    """Wraps `fn`: a buffer that the device cannot hold stays in place, with a warning that names
    it."""

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        """Applies `fn` to a tensor; a buffer of an unsupported layout stays, a parameter of one
        raises."""
        try:
            result = fn(tensor)
            if not isinstance(result, XlaTensor) and result.device.type == "xla":
                refuse_tensor(result)
            return result
        except UnsupportedLayout as error:
            # The layout is not supported: a buffer stays, a parameter cannot.
            for name, value in module._buffers.items():
                if value is tensor:
                    warn(
                        f"the buffer {type(module).__name__}.{name} stays on the {tensor.device}: "
                        f"{error}"
                    )
                    return tensor
            for name, value in module._parameters.items():
                if value is not None and (value is tensor or value.grad is tensor):
                    label = f"{type(module).__name__}.{name}{'' if value is tensor else '.grad'}"
                    raise UnsupportedLayout(f"{label}: {error}") from None
            raise

    return convert


def _apply_to_own(module: nn.Module, fn: Function, original: Callable[..., nn.Module]) -> None:
    """Calls torch's own `_apply`, unless a tensor is on the device, or the function takes the first
    one there."""
    parameters = [tensor for tensor in module._parameters.values() if tensor is not None]
    tensors = [*parameters, *(tensor for tensor in module._buffers.values() if tensor is not None)]
    fn = _skipping_unsupported(module, fn)
    if not tensors or any(_is_ours(tensor) for tensor in tensors):
        _move(module, fn)
        return
    first = tensors[0]  # torch, too, calls the function with it first
    with torch.set_grad_enabled(torch.is_grad_enabled() and not parameters):
        results = [fn(first)]

    def once(tensor: torch.Tensor) -> torch.Tensor:
        # The first tensor's result is known: `fn` may have effects, and is called once for each.
        return results.pop() if results and tensor is first else fn(tensor)

    if results[0].device.type == "xla":
        _move(module, once)
    else:
        original(module, once, False)


def _mark_buffer(module: nn.Module, name: str, buffer: torch.Tensor | None) -> None:
    """Marks a storage as a module's buffer; `nn.Parameter` marks parameters."""
    if isinstance(buffer, XlaTensor):
        buffer._storage.is_state = True


def know_buffers() -> None:
    """Marks every buffer as state from its registration on: its initial value is no part of the
    first step."""
    register_module_buffer_registration_hook(_mark_buffer)


def apply_in_place(
    original: Callable[..., nn.Module], self: nn.Module, fn: Function, recurse: bool = True
) -> nn.Module:
    """`Module._apply`, which `.to`, `.cpu()` and `.half()` go through, with parameters that stay
    the same objects."""
    if torch.__future__.get_swap_module_params_on_conversion():  # the user requires torch's own way
        return original(self, fn, recurse)
    if recurse:
        for module in self.children():
            module._apply(fn)
    _apply_to_own(self, fn, original)
    for notify in after_move:
        notify(self, fn)
    arrived = self.__dict__.get(ARRIVED)
    if arrived is not None:
        arrived(self)
    return self


def load_annotated(
    original: Callable[..., None],
    self: nn.Module,
    state_dict: object,
    prefix: str,
    local_metadata: Mapping[str, object],
    *args: object,
) -> None:
    """`Module._load_from_state_dict`: a tensor that `load_state_dict(assign=True)` puts in place of
    a sharded one takes its sharding, now or when it moves to the device, whatever the file says."""
    shardings = _own_shardings(self) if local_metadata.get("assign_to_params_buffers") else {}
    original(self, state_dict, prefix, local_metadata, *args)
    for name, sharding in shardings.items():
        tensor = _own_tensors(self).get(name)
        if (
            isinstance(tensor, XlaTensor)
            and tensor._view is None
            and tensor.dim() >= len(sharding.spec.dims)
        ):
            if tensor._storage.sharding is not sharding:
                annotate(tensor, sharding)
            follow(tensor)


def _own_tensors(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The parameters and buffers of a module itself, without its submodules."""
    return {**module._parameters, **module._buffers}


def _own_shardings(module: nn.Module) -> dict[str, Sharding]:
    """The shardings of a module's own tensors, present or to come, without tensors that have
    none."""
    shardings = {}
    for name, tensor in _own_tensors(module).items():
        if isinstance(tensor, XlaTensor) and tensor._view is None:
            shardings[name] = tensor._storage.sharding
        elif tensor is not None and not _is_ours(tensor):
            shardings[name] = future_sharding(tensor)
    return {name: sharding for name, sharding in shardings.items() if sharding is not None}


# --- the CPU: one warning where a framework that does not see the device moves a model there, to
# train it

# The modules of frameworks that place a model where they train it; a script's own `model.cpu()` has
# no frame of these.
_PLACING = ("accelerate.accelerator", "transformers.trainer")
# The packages whose frames stand between such a module and the user's line.
_FRAMEWORKS = ("accelerate", "transformers", "trl", "peft", "diffusers")
warned_of_cpu: list[bool] = []


def _warn_of_cpu() -> None:
    """Warns, once in a process, if a framework's call of `model.to` moves the model to the CPU to
    train it there."""
    frame = nearest_user_frame(sys._getframe(1))
    # a model's class has its own, as transformers' have
    while frame is not None and frame.f_code.co_name == "to":
        frame = nearest_user_frame(frame.f_back)
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    if warned_of_cpu or name not in _PLACING:
        return
    warned_of_cpu.append(True)
    while (
        frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _FRAMEWORKS
    ):
        frame = nearest_user_frame(frame.f_back)
    text = (
        f"{name.partition('.')[0]} moves the model from xla to the CPU and trains it there: call "
        "spmd.use() before the first Accelerator() or TrainingArguments(), or set "
        "ACCELERATE_TORCH_DEVICE=xla"
    )
    if frame is None:
        warnings.warn(text, stacklevel=2)
    else:
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
