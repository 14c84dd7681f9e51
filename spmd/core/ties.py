"""Tied weights stay tied when a module leaves the device: torch keeps a parameter's identity only where it moves onto it."""

import threading
from typing import Any

import torch
from torch import nn

from .tensor import XlaTensor

_running = threading.local()


def _owners(module: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """For each parameter that is on the device in several places: where."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if type(parameter) is XlaTensor:
                found.setdefault(id(parameter), []).append((part, name))
    return {key: places for key, places in found.items() if len(places) > 1}


def keep_ties() -> None:
    """Wraps `Module._apply`, which `.to`, `.cpu()` and `.half()` go through; the outermost call ties again what was tied."""
    apply = nn.Module._apply

    def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        if getattr(_running, "inside", False):
            return apply(self, fn, recurse)
        _running.inside = True
        try:
            shared = _owners(self)
            made = apply(self, fn, recurse)
        finally:
            _running.inside = False
        for (first, name), *rest in shared.values():
            parameter = first._parameters[name]
            for part, other in rest:
                if isinstance(parameter, torch.Tensor):
                    part._parameters[other] = parameter
        return made

    nn.Module._apply = _apply  # type: ignore[method-assign]
