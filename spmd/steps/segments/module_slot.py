"""torch's slot for compiled calls, which is that of all modules here: one function at a time looks
at calls."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Look = Callable[..., Any] | None

# Looks at calls while no other function does; None: no function.
resting: Look = None
_looking: Look = None


def look(function: Look) -> None:
    """Has a function look at calls."""
    global _looking
    _looking = function
    nn.Module._compiled_call_impl = None if function is None else _called


def rest() -> None:
    """Ends the look of another function."""
    look(resting)


def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Calls a module that has a slot of its own as one that has none."""
    return (resting or nn.Module._call_impl)(module, *args, **kwargs)


def _called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if _looking is None or torch.compiler.is_compiling():  # Dynamo traces it
        return module._call_impl(*args, **kwargs)
    return _looking(module, *args, **kwargs)
