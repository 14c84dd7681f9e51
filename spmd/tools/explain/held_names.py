"""The name by which the program that is running holds a tensor, for errors: found in the frames of
the call."""

import sys
from collections import UserDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...core.extend import user_lines


def held_name(tensor: torch.Tensor) -> str:
    """Returns "model.layers.0.weight" of a parameter or buffer of the outermost module,
    "optimizer.state.0.exp_avg", or a variable's name or entry in the nearest of the user's frames
    that has one; "" if none has."""
    base = _base(tensor)
    state = variable = ""
    frame = sys._getframe(1)
    while frame is not None:
        is_users = not user_lines.is_library(frame.f_code)
        for name, value in [*frame.f_locals.items()]:
            # The type, as a proxy of an object that is gone raises at its class.
            if issubclass(type(value), (nn.Module, Optimizer)):
                owner = name if is_users and name != "self" else type(value).__name__
                state = next(
                    (
                        f"{owner}.{path}"
                        for path, candidate in _held(value)
                        if _base(candidate) is base
                    ),
                    state,
                )
            elif is_users and not variable:
                variable = next(
                    (
                        entry_name
                        for entry_name, candidate in _entries(name, value)
                        if _base(candidate) is base
                    ),
                    "",
                )
        frame = frame.f_back  # type: ignore[assignment]
    return state or variable


def _base(value: Any) -> Any:
    """The tensor whose values a view has; another value itself."""
    return value._base if issubclass(type(value), torch.Tensor) and value._is_view() else value


def _held(owner: nn.Module | Optimizer) -> Iterator[tuple[str, Any]]:
    if isinstance(owner, nn.Module):
        yield from owner.named_parameters()
        yield from owner.named_buffers()
        return
    parameters = [parameter for group in owner.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(parameters):
        for key, value in owner.state.get(parameter, {}).items():
            yield f"state.{number}.{key}", value


def _entries(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield name, value
    if issubclass(type(value), (dict, UserDict)):
        for key, inner in value.items():
            yield f"{name}[{key!r}]", inner
