"""Parameters and buffers of lazy modules (`nn.LazyLinear`) on the device: they hold no data until
the first forward.

torch changes such a tensor's class and data in place, which a wrapper cannot follow. Until its
shape is known it is torch's own uninitialized tensor on the CPU, of a class that remembers the
device; then the two are swapped.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import parameter as torch_parameter

from .swap import swap
from .when_imported import replaces


class _OnDevice:
    """A tensor whose `device` is xla; becomes a tensor of xla when its shape is known."""

    @property
    def device(self) -> torch.device:
        return torch.device("xla", 0)

    def materialize(
        self: Any,
        shape: Sequence[int],
        device: torch.types.Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        result = torch.empty(shape, device=device or "xla", dtype=dtype or self.dtype)
        if isinstance(self, nn.Parameter):
            result = nn.Parameter(result, self.requires_grad)
        swap(self, result)

    def __reduce_ex__(self: Any, protocol: object) -> tuple[type, tuple[bool]]:
        kind = next(kind for kind in _KINDS if isinstance(self, kind))
        # as for every tensor of the device, a file holds a CPU tensor
        return kind, (self.requires_grad,)


class UninitializedParameter(_OnDevice, torch_parameter.UninitializedParameter):  # type: ignore[override]
    """A parameter of xla without a shape."""

    def __new__(
        cls, requires_grad: bool = True, device: object = None, dtype: torch.dtype | None = None
    ) -> Any:
        return _new_parameter(cls, requires_grad, "cpu", dtype)


class UninitializedBuffer(_OnDevice, torch_parameter.UninitializedBuffer):  # type: ignore[override]
    """A buffer of xla without a shape."""

    def __new__(
        cls,
        requires_grad: bool = False,
        device: object = None,
        dtype: torch.dtype | None = None,
        persistent: bool = True,
    ) -> Any:
        return _new_buffer(cls, requires_grad, "cpu", dtype, persistent)


_new_parameter = torch_parameter.UninitializedParameter.__new__
_new_buffer = torch_parameter.UninitializedBuffer.__new__
_KINDS: dict[type, type] = {
    torch_parameter.UninitializedParameter: UninitializedParameter,
    torch_parameter.UninitializedBuffer: UninitializedBuffer,
}


def _patch_new(kind: type) -> None:
    """Has torch's class make ours where the device argument, or the default device, is xla."""

    @replaces(kind, "__new__")
    def choose(new: Callable[..., object], cls: type, *args: Any, **kwargs: Any) -> object:
        device = args[1] if len(args) > 1 else kwargs.get("device")
        is_ours = (
            cls is kind
            and torch.device(torch.get_default_device() if device is None else device).type == "xla"
        )
        return _KINDS[kind](*args, **kwargs) if is_ours else new(cls, *args, **kwargs)


def is_on_device(tensor: torch.Tensor) -> bool:
    """True for an uninitialized tensor of the device."""
    return isinstance(tensor, _OnDevice)


def move_uninitialized(tensor: torch.Tensor, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Gives an uninitialized tensor the device to which `fn` would move it; it stays the same
    object."""
    target = fn(torch.empty(0, dtype=tensor.dtype, device=tensor.device))
    kind = next(kind for kind in _KINDS if isinstance(tensor, kind))
    tensor.__class__ = _KINDS[kind] if target.device.type == "xla" else kind
    tensor.data = target.detach().cpu()


def join_lazy_modules() -> None:
    """Adds the device to torch's uninitialized parameters and buffers."""
    for kind in _KINDS:
        _patch_new(kind)
