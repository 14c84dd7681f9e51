"""`nn.DataParallel`: there is one logical device, so the module runs as it is, on the device or on the CPU.
`DistributedDataParallel` of several processes and torch's own `fully_shard` are refused with an error that names the
alternative.

torch would move every wrapped module to the device, CPU programs' too, and scatter inputs with cuda kernels.
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._pytree import tree_map_only

from ..record.tensor import XlaTensor
from .when_imported import patch_when_imported


def _other_device_type() -> str | None:
    """The accelerator over which torch would spread replicas, unless it is ours."""
    found = torch._utils._get_available_device_type()
    return None if found == "xla" else found


def _moving_inputs(forward: Any) -> Any:
    """`DataParallel.forward` that first moves inputs to the module's device."""

    def moving(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if type(next(self.module.parameters(), None)) is XlaTensor:
            inputs, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("xla"), (inputs, kwargs))
        return forward(self, *inputs, **kwargs)

    return moving


def join_data_parallel() -> None:
    """Prevents `nn.DataParallel` from taking our device for one of many."""
    # Its name in the package is the name of a function.
    module: Any = sys.modules[DataParallel.__module__]
    module._get_available_device_type = _other_device_type
    DataParallel.forward = _moving_inputs(DataParallel.forward)  # type: ignore[method-assign]
    DistributedDataParallel.__init__ = _refusing(DistributedDataParallel.__init__)  # type: ignore[method-assign]


def join_fully_shard() -> None:
    """Has torch's `fully_shard`, when it is imported, refuse a module on the device."""
    module, purpose = "torch.distributed.fsdp._fully_shard._fully_shard", "the hint that names spmd's own fully_shard"
    patch_when_imported(module, _refuse_in_fully_shard, purpose, "_validate_module(module, func_name)")


def _is_ours(module: torch.nn.Module) -> bool:
    return any(type(parameter) is XlaTensor for parameter in module.parameters())


def _refusing(init: Any) -> Any:
    """`DistributedDataParallel.__init__`, which otherwise requires a process group first; of one process it does."""

    def checked(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        if _is_ours(module) and not (dist.is_initialized() and dist.get_world_size() == 1):
            raise NotImplementedError(
                "DistributedDataParallel: a module on xla needs no process group; shard its batch over a mesh, "
                "spmd.mark_sharding(x, mesh, (axis, ...)), and gradients are summed over all devices. "
                "fsdp.fully_shard(module, mesh) shards the parameters, too"
            )
        init(self, module, *args, **kwargs)

    return checked


def _refuse_in_fully_shard(fully_shard: Any) -> None:
    """Patches `_validate_module`, which torch calls before it requires a process group."""
    validate = fully_shard._validate_module

    def checked(module: Any, name: str) -> None:
        if _is_ours(module):
            raise NotImplementedError(
                f"torch.distributed.fsdp.{name}: a module on xla needs no process group; "
                "fsdp.fully_shard(module, mesh=mesh) of this library takes the same arguments, with mesh = "
                'spmd.Mesh(range(8), (8,), ("fsdp",)), or a mesh of torch\'s init_device_mesh("xla", (8,), ...)'
            )
        validate(module, name)

    fully_shard._validate_module = checked
