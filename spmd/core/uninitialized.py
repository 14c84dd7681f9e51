"""Parameters and buffers of lazy modules (`nn.LazyLinear`) on the device: they hold no data until the first forward.

torch changes such a tensor's class and data in place, which a wrapper cannot follow. Until its shape is known it stands
as torch's own uninitialised tensor on the CPU, of a class that remembers the device; then the two are swapped.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import parameter as torch_parameter
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]  # its stub has not

Place = tuple[dict[str, Any], str]


class _OnDevice:
    """Says that it is on xla; becomes a tensor of xla when its shape is known."""

    @property
    def device(self) -> torch.device:
        return torch.device("xla", 0)

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        made = torch.empty(shape, device=device or "xla", dtype=dtype or self.dtype)
        if isinstance(self, nn.Parameter):
            made = nn.Parameter(made, self.requires_grad)
        else:
            made.persistent, made._is_buffer = self.persistent, True  # type: ignore[attr-defined]
        torch.utils.swap_tensors(self, made)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        kind = next(kind for kind in _KINDS if isinstance(self, kind))
        return kind, (self.requires_grad,)  # as of every tensor of the device, a file holds it as one of the CPU


class UninitializedParameter(_OnDevice, torch_parameter.UninitializedParameter):  # type: ignore[override]
    """A parameter of xla without a shape."""

    def __new__(cls, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        return _new_parameter(cls, requires_grad, "cpu", dtype)


class UninitializedBuffer(_OnDevice, torch_parameter.UninitializedBuffer):  # type: ignore[override]
    """A buffer of xla without a shape."""

    def __new__(
        cls, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> Any:
        return _new_buffer(cls, requires_grad, "cpu", dtype, persistent)


_new_parameter = torch_parameter.UninitializedParameter.__new__
_new_buffer = torch_parameter.UninitializedBuffer.__new__
_KINDS: dict[Any, Any] = {
    torch_parameter.UninitializedParameter: UninitializedParameter,
    torch_parameter.UninitializedBuffer: UninitializedBuffer,
}


def _join(kind: Any, ours: Any, new: Callable[..., Any]) -> None:
    """Lets torch's class make ours where the device asked for, or the default one, is xla."""

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        chosen = cls is kind and torch.empty(0, device=device).device.type == "xla"
        return ours(*args, **kwargs) if chosen else new(cls, *args, **kwargs)

    kind.__new__ = made


def take_out(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> list[tuple[Place, Any]]:
    """Takes out the uninitialised tensors that `fn` moves onto the device or off it, and says what replaces them."""
    moved: dict[int, Any] = {}
    found: list[tuple[Place, Any]] = []
    for part in module.modules():
        for owner in (part._parameters, part._buffers):
            for name, tensor in list(owner.items()):
                if not isinstance(tensor, UninitializedTensorMixin):
                    continue
                if id(tensor) not in moved:
                    moved[id(tensor)] = _moved(tensor, fn)
                if moved[id(tensor)] is not tensor:
                    found.append(((owner, name), moved[id(tensor)]))
                    owner[name] = None
    return found


def put_back(found: list[tuple[Place, Any]]) -> None:
    """Gives a module the uninitialised tensors where they have moved."""
    for (owner, name), tensor in found:
        owner[name] = tensor


def _moved(tensor: Any, fn: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    target = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
    if type(tensor) not in _KINDS.values() and target.device.type != "xla":
        return tensor
    kind = next(kind for kind in _KINDS if isinstance(tensor, kind))
    options = {"persistent": tensor.persistent} if isinstance(tensor, torch_parameter.UninitializedBuffer) else {}
    return kind(tensor.requires_grad, target.device, target.dtype, **options)


def join_lazy_modules() -> None:
    """Teaches torch's uninitialised parameters and buffers that there is the device."""
    _join(torch_parameter.UninitializedParameter, UninitializedParameter, _new_parameter)
    _join(torch_parameter.UninitializedBuffer, UninitializedBuffer, _new_buffer)
