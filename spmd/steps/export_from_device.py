"""`torch.export.export` of a model on the device, and `run_decompositions` of its program: a copy
on the CPU is traced; the program has the model's tensors."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.export.exported_program import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.utils._pytree import tree_leaves, tree_map_only

from ..core import Patch, XlaTensor


def _export(
    original: Callable[..., Any],
    mod: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    **how: Any,
) -> Any:
    """`torch.export.export`: a model, or arguments, on the device are traced as on the CPU. torch's
    tracers take no tensor that is a wrapper around recorded ops."""
    state = [*mod.parameters(), *mod.buffers()] if isinstance(mod, nn.Module) else []
    tensors = [
        leaf for leaf in (*state, *tree_leaves((args, kwargs))) if isinstance(leaf, torch.Tensor)
    ]
    if not any(isinstance(tensor, XlaTensor) for tensor in tensors):
        return original(mod, args, kwargs, **how)
    on_host = next(
        (tensor for tensor in tensors if not isinstance(tensor, XlaTensor) and tensor.dim()), None
    )
    if on_host is not None:
        raise RuntimeError(
            "torch.export.export: expected the model and its arguments on one device, got tensors "
            "on xla and one "
            f'of shape {list(on_host.shape)} on {on_host.device}; move it with .to("xla") first'
        )
    on_cpu = copy.deepcopy(mod, _memory(state))
    traced = original(on_cpu, _without_device(args), _without_device(kwargs), **how)
    names = (
        *mod.named_parameters(remove_duplicate=False),
        *mod.named_buffers(remove_duplicate=False),
    )
    return _on_xla(traced, dict(names), (tuple(args), dict(kwargs or {})))


def _run_decompositions(
    original: Callable[..., ExportedProgram], self: ExportedProgram, *args: Any, **how: Any
) -> ExportedProgram:
    """`ExportedProgram.run_decompositions`, which traces the program once more."""
    state = {**self.state_dict, **self.constants}
    if not any(isinstance(leaf, XlaTensor) for leaf in tree_leaves((state, self.example_inputs))):
        return original(self, *args, **how)
    return _on_xla(original(_program_on_cpu(self), *args, **how), state, self.example_inputs)


def _on_xla(
    program: ExportedProgram, state: Mapping[str, Any], example_inputs: Any
) -> ExportedProgram:
    """A program of the CPU moved to the device, with these tensors as its state."""
    program = move_to_device_pass(program, "xla")
    for table in (program._state_dict, program._constants):
        table.update({name: state[name] for name in table if name in state})
    program._example_inputs = example_inputs
    return program


def _program_on_cpu(program: ExportedProgram) -> ExportedProgram:
    """A copy of a program with memory on the CPU in place of its state's data."""
    memo = _memory(list(program.state_dict.values()))
    leaves = tree_leaves((program.constants, program.example_inputs))
    memo |= {id(leaf): _without_device(leaf) for leaf in leaves}
    return move_to_device_pass(copy.deepcopy(program, memo), "cpu")


def _memory(state: list[torch.Tensor]) -> dict[int, Any]:
    """Memory on the CPU in place of tensors on the device, as `deepcopy` takes it; no trace reads
    or writes it."""
    memo: dict[int, Any] = {}
    for tensor in state:
        if isinstance(tensor, XlaTensor):
            memory: Any = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
            is_parameter = isinstance(tensor, nn.Parameter)
            memo[id(tensor)] = (
                nn.Parameter(memory, tensor.requires_grad) if is_parameter else memory
            )
    return memo


def _without_device(nested: Any) -> Any:
    return tree_map_only(
        XlaTensor, lambda tensor: tensor.detach().cpu().requires_grad_(tensor.requires_grad), nested
    )


PATCHES = (
    Patch(
        "`torch.export.export(mod, args, kwargs, ...)`",
        "a copy on the CPU, which is traced",
        None,
        (_export,),
    ),
    Patch(
        "`torch.export.ExportedProgram.run_decompositions`",
        "the same",
        None,
        (_run_decompositions,),
    ),
)

for _patch in PATCHES:
    _patch.apply()
