"""`torch.export.export` of a model on the device: a copy on the CPU is traced; the program has the model's tensors."""

import copy
import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_leaves, tree_map_only

from ..lazy.tensor import XlaTensor


def join_export() -> None:
    """Wraps `torch.export.export`: a model, or arguments, on the device are traced as on the CPU. torch's tracers take
    no tensor that is a wrapper around recorded ops."""
    original = torch.export.export

    @functools.wraps(original)
    def export(mod: nn.Module, args: Any, kwargs: Mapping[str, Any] | None = None, **how: Any) -> Any:
        held = [*mod.parameters(), *mod.buffers()] if isinstance(mod, nn.Module) else []
        tensors = [one for one in (*held, *tree_leaves((args, kwargs))) if isinstance(one, torch.Tensor)]
        if not any(isinstance(one, XlaTensor) for one in tensors):
            return original(mod, args, kwargs, **how)
        away = next((one for one in tensors if not isinstance(one, XlaTensor) and one.dim()), None)
        if away is not None:
            raise RuntimeError(
                "torch.export.export: expected the model and its arguments on one device, got tensors on xla and one "
                f'of shape {list(away.shape)} on {away.device}; move it with .to("xla") first'
            )
        traced = original(_on_cpu(mod, held), _without_device(args), _without_device(kwargs), **how)
        program = move_to_device_pass(traced, "xla")
        own = {**dict(mod.named_parameters(remove_duplicate=False)), **dict(mod.named_buffers(remove_duplicate=False))}
        for table in (program._state_dict, program._constants):
            table.update({name: own[name] for name in table if name in own})
        program._example_inputs = tuple(args), dict(kwargs or {})
        return program

    torch.export.export = export


def _on_cpu(mod: nn.Module, held: list[torch.Tensor]) -> nn.Module:
    """A copy of a module with memory on the CPU in place of its tensors' data, which no trace reads or writes."""
    memo: dict[int, Any] = {}
    for tensor in held:
        if isinstance(tensor, XlaTensor):
            made: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            memo[id(tensor)] = nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made
    return copy.deepcopy(mod, memo)


def _without_device(nested: Any) -> Any:
    def made(tensor: XlaTensor) -> torch.Tensor:
        return tensor.detach().cpu().requires_grad_(tensor.requires_grad)

    return tree_map_only(XlaTensor, made, nested)
