"""Subclasses of `torch.Tensor` and `nn.Parameter` on the device: a class for each of the user's,
derived from both.

torch allows one Python object per tensor of a wrapper class, so its `as_subclass` and
`_make_subclass` raise. Here they return another tensor over the same memory, of a class with the
user's methods first.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from ..record.tensor import OURS, XlaTensor
from .when_imported import replaces

_DISABLED = torch._C._disabled_torch_function_impl
_ATTRIBUTES: Any = torch.Tensor.__dict__["__dict__"]
_TORCHS = {XlaTensor, *nn.Parameter.__mro__}


def user_class(cls: type) -> type:
    """Returns the user's class behind a class of `device_class`, `torch.Tensor` for `XlaTensor`;
    any other class as it is."""
    return getattr(cls, "_user_class", cls)


class _UserTensor:
    """The first base of the classes that `device_class` makes."""

    def __init_subclass__(cls) -> None:
        """Does nothing: a user's `__init_subclass__` is for subclasses that the user writes."""

    @property
    def __dict__(self: Any) -> dict[str, Any]:
        return _ATTRIBUTES.__get__(self)

    @__dict__.setter
    def __dict__(self: Any, new: dict[str, Any]) -> None:
        # Classes that copy the attributes of an operand copy all of them; those of the data stay.
        library_attributes = {
            name: value for name, value in _ATTRIBUTES.__get__(self).items() if name in OURS
        }
        _ATTRIBUTES.__set__(
            self,
            {name: value for name, value in new.items() if name not in OURS} | library_attributes,
        )

    @property
    def data(self: Any) -> torch.Tensor:
        if has_torch_function_unary(self):
            return handle_torch_function(torch.Tensor.data.__get__, (self,), self)  # type: ignore[attr-defined]
        return XlaTensor.data.__get__(self)

    @data.setter
    def data(self: Any, new: torch.Tensor) -> None:
        XlaTensor.data.__set__(self, new)  # type: ignore[attr-defined]


@functools.cache
def device_class(cls: type) -> type:
    """Returns the class of the device's tensors for a user's subclass of torch.Tensor, derived from
    it and from `XlaTensor`.

    `type(x)` is this class. It has the name, methods and `__torch_function__` of the user's class,
    and a call of it makes a tensor of the user's class.
    """
    if issubclass(cls, XlaTensor) or cls in _TORCHS:
        return cls if issubclass(cls, XlaTensor) else XlaTensor

    class UserTensorType(type(cls)):  # type: ignore[misc]
        def __call__(self, *args: object, **kwargs: object) -> object:
            return cls(*args, **kwargs)

        def mro(self) -> list[type]:
            # with nn.Parameter before XlaTensor, whose copies and pickles it has not
            order = super().mro()
            torchs = [base for base in order if base in _TORCHS and base is not XlaTensor]
            return [*(base for base in order if base not in _TORCHS), XlaTensor, *torchs]

    def torch_function(
        func: Callable[..., object], types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> object:
        return cls.__torch_function__(func, tuple(map(user_class, types)), args, kwargs)  # type: ignore[attr-defined]

    is_disabled = cls.__torch_function__ is _DISABLED  # type: ignore[attr-defined]
    names = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_user_class": cls,
        "__torch_function__": _DISABLED if is_disabled else staticmethod(torch_function),
    }
    return UserTensorType(cls.__name__, (_UserTensor, cls, XlaTensor), names)


def _as_subclass(original: Callable[..., Any], self: torch.Tensor, cls: type) -> torch.Tensor:
    """`Tensor.as_subclass`: makes a tensor of the device another one over its memory, which
    autograd knows."""
    if not isinstance(self, XlaTensor) or not (
        isinstance(cls, type) and issubclass(cls, torch.Tensor)
    ):
        return original(self, user_class(cls))
    if has_torch_function_unary(self):
        return handle_torch_function(torch.Tensor.as_subclass, (self,), self, cls)
    result = torch.ops.aten.alias.default(self)
    result.__class__ = device_class(cls)
    return result


def _make_subclass(
    original: Callable[..., Any],
    cls: type,
    data: torch.Tensor,
    require_grad: bool = False,
    **how: object,
) -> torch.Tensor:
    """`Tensor._make_subclass`: makes a tensor of the device an alias, of the device's class for
    `cls`."""
    if not isinstance(data, XlaTensor):
        return original(user_class(cls), data, require_grad, **how)
    with torch._C.DisableTorchFunctionSubclass():
        result: Any = data.detach()
        result.__class__ = device_class(cls)
        if issubclass(cls, nn.Parameter):
            result._is_param = True
        return result.requires_grad_(require_grad)


def _new_parameter(
    original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any
) -> torch.Tensor:
    """`nn.Parameter.__new__`: a parameter on the device, too, is an instance of the user's
    class."""
    parameter = original(cls, *args, **kwargs)
    if type(parameter) is XlaTensor:
        parameter.__class__ = device_class(cls)
    return parameter


def _new_tensor(original: Callable[..., Any], cls: type, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`Tensor.__new__`: a call with one tensor of the device returns an alias of the user's class,
    as torch does for its own tensors.

    The device's class is that of parameters, too: `type(parameter)(data, requires_grad=False)`
    makes a parameter, as accelerate does.
    """
    if cls is XlaTensor:
        is_parameter = "requires_grad" in kwargs or [*map(type, args[1:])] == [bool]
        return nn.Parameter(*args, **kwargs) if is_parameter else torch.Tensor(*args, **kwargs)
    if len(args) == 1 and isinstance(args[0], XlaTensor):
        return args[0].as_subclass(cls)
    return original(cls, *args, **kwargs)


def join_subclasses() -> None:
    """Has torch's makers of subclasses take tensors of the device."""
    XlaTensor._user_class = torch.Tensor  # type: ignore[attr-defined]
    replaces(nn.Parameter, "__new__")(_new_parameter)
    makers: dict[str, Callable[..., Any]] = {
        "__new__": _new_tensor,
        "as_subclass": _as_subclass,
        "_make_subclass": _make_subclass,
    }
    for name, function in makers.items():
        replaces(torch.Tensor, name)(function)
    torch.Tensor._make_subclass = staticmethod(torch.Tensor._make_subclass)  # type: ignore[method-assign]
