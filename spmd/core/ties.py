"""Modules on the move: tied weights stay tied; weights that `weight_norm` and `spectral_norm` compute are made anew.

torch keeps a parameter's identity where it moves onto the device, by a swap; off the device it makes another one.
"""

import threading
from typing import Any

import torch
from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from .tensor import XlaTensor
from .uninitialized import put_back, take_out

_running = threading.local()


def _owners(module: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """For each parameter that is on the device in several places: where."""
    found: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if type(parameter) is XlaTensor:
                found.setdefault(id(parameter), []).append((part, name))
    return {key: places for key, places in found.items() if len(places) > 1}


def _drop_computed(module: nn.Module) -> list[tuple[nn.Module, WeightNorm | SpectralNorm]]:
    """Gives up the weights that hooks computed: their graphs hold the parameters, which torch then refuses to swap."""
    found = [
        (part, hook)
        for part in module.modules()
        for hook in part._forward_pre_hooks.values()
        if isinstance(hook, (WeightNorm, SpectralNorm))
    ]
    for part, hook in found:
        setattr(part, hook.name, getattr(part, hook.name).detach())
    return found


def _compute(part: nn.Module, hook: WeightNorm | SpectralNorm) -> torch.Tensor:
    return hook.compute_weight(part) if isinstance(hook, WeightNorm) else hook.compute_weight(part, False)


def keep_ties() -> None:
    """Wraps `Module._apply`, which `.to`, `.cpu()` and `.half()` go through; the outermost ties again what was tied."""
    apply = nn.Module._apply

    def _apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        if getattr(_running, "inside", False):
            return apply(self, fn, recurse)
        lazy = take_out(self, fn)
        _running.inside = True
        try:
            shared, computed = _owners(self), _drop_computed(self)
            made = apply(self, fn, recurse)
        finally:
            _running.inside = False
            put_back(lazy)
        for (first, name), *rest in shared.values():
            parameter = first._parameters[name]
            for part, other in rest:
                if isinstance(parameter, torch.Tensor):
                    part._parameters[other] = parameter
        for part, hook in computed:
            setattr(part, hook.name, _compute(part, hook))
        return made

    nn.Module._apply = _apply  # type: ignore[method-assign]
