"""Effects of `torch.use_deterministic_algorithms` on the device, as on torch's CPU. XLA's programs
always repeat their results.

torch itself decides at each call, and words the error. It refuses ops whose result depends on the
order of their writes to one place, and fills uninitialized memory.
"""

from collections.abc import Callable

import torch

from ..overloads import Args, Handler, Kwargs, TorchValue, aten


def _unpool(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
    """Has torch's CPU kernel raise (or warn) for an op that is not deterministic; the device's op
    follows."""
    if torch.are_deterministic_algorithms_enabled():
        dims = 2 if func is aten.max_unpool2d.default else 3
        input, window = torch.zeros((1,) * (dims + 1), device="cpu"), [1] * dims
        # torch's error, or its warning under warn_only.
        func(input, input.long(), window, *([window, [0] * dims] if dims == 3 else []))
    return NotImplemented


def _put(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
    """Has torch's CPU kernel raise (or warn) for a `put_` that does not accumulate; the device's op
    follows."""
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulates and torch.are_deterministic_algorithms_enabled():
        # torch's error, or its warning under warn_only.
        empty = torch.zeros(0, device="cpu")
        empty.put_(empty.long(), empty.clone())
    return NotImplemented


def fill_of(dtype: torch.dtype) -> TorchValue:
    """torch's fill value for uninitialized memory of this dtype; None if the setting is off."""
    if (
        torch.are_deterministic_algorithms_enabled()
        and torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    ):
        return torch.empty((), dtype=dtype, device="cpu").item()
    return None


def filled(func: torch._ops.OpOverload, args: Args, kwargs: Kwargs) -> TorchValue:
    """The result of `empty_like` or `new_empty` if torch fills it; else NotImplemented."""
    if func not in _EMPTY:
        return NotImplemented
    value = fill_of(kwargs.get("dtype") or args[0].dtype)
    return (
        NotImplemented
        if value is None
        else _EMPTY[func](value, args, {**kwargs, "device": torch.device("xla")})
    )


_EMPTY: dict[torch._ops.OpOverload, Callable[[TorchValue, Args, Kwargs], torch.Tensor]] = {
    aten.empty_like.default: lambda value, args, kwargs: aten.full_like.default(
        *args, value, **kwargs
    ),
    aten.new_empty.default: lambda value, args, kwargs: aten.new_full.default(
        *args, value, **kwargs
    ),
    aten.new_empty_strided.default: lambda value, args, kwargs: torch.empty_strided(
        *args[1:], **{"dtype": args[0].dtype, **kwargs}
    ),
}

HANDLERS: dict[torch._ops.OpOverload, Handler] = {
    aten.max_unpool2d.default: _unpool,
    aten.max_unpool3d.default: _unpool,
    aten.put.default: _put,
    aten.put_.default: _put,
}
