"""Names of the device: one logical device, xla:0, stands for all physical devices."""

from collections.abc import Callable
from typing import TypeVar

import torch


def only_device(device: torch.device | None) -> None:
    """Raises for an index other than 0: there is one logical device."""
    if device is not None and device.index:
        raise RuntimeError(
            f"there is no device {device}: the one logical device xla:0 stands for all physical "
            "devices. Use 'xla', and spmd.mark_sharding to place data on them."
        )


_Function = TypeVar("_Function", bound=Callable[..., object])
_Class = TypeVar("_Class", bound=type)


def skipped_by_dynamo(function: _Function) -> _Function:
    """Has Dynamo skip a function that is called between two graphs; returns the function."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def check_index(device: torch.types.Device, call: str) -> int:
    """Returns 0 for any name of the one logical device; an index below 0 means none, as in
    torch.cuda."""
    if isinstance(device, (str, torch.device)):
        named = torch.device(device)
        if named.type != "xla":
            raise ValueError(f"{call}: expected a device of type xla, got {named}")
        only_device(named)
    elif device is not None and not isinstance(device, int):
        raise TypeError(f"{call}: expected a device, its name or its index, got {device!r}")
    elif device is not None and device > 0:
        only_device(torch.device("xla", device))
    return 0


def substitute_class(
    torch_class: _Class, device_class: type, is_ours: Callable[..., bool]
) -> _Class:
    """Returns a substitute of a class of torch: called with `is_ours` arguments it makes a
    `device_class`, with any others a `torch_class`.

    As a class it equals `torch_class`; its own subclasses behave as they would without it.
    """

    class Substitute(type(torch_class)):  # type: ignore[misc]  # the metaclass of a class of torch's C++
        def __call__(cls, *args: object, **kwargs: object) -> object:
            if cls is not substitute:
                return super().__call__(*args, **kwargs)
            return (device_class if is_ours(*args, **kwargs) else torch_class)(*args, **kwargs)

        def __instancecheck__(cls, instance: object) -> bool:
            return (
                isinstance(instance, torch_class)
                if cls is substitute
                else super().__instancecheck__(instance)
            )

        def __subclasscheck__(cls, subclass: type) -> bool:
            return (
                issubclass(subclass, torch_class)
                if cls is substitute
                else super().__subclasscheck__(subclass)
            )

    substitute: _Class = Substitute(
        torch_class.__name__,
        (torch_class,),
        {"__module__": "torch", "__doc__": torch_class.__doc__},
    )
    return substitute
