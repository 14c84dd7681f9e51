"""`nn.DataParallel`: there is one logical device, so the module runs as it is, on the device or on the CPU.
`DistributedDataParallel` of several processes and torch's own `fully_shard` are refused with an error that names the
alternative.

torch would move every wrapped module to the device, CPU programs' too, and scatter inputs with cuda kernels.
"""

from collections.abc import Callable
from types import ModuleType

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel
from torch.utils._pytree import tree_map_only

from ..record.tensor import XlaTensor
from .when_imported import patch_when_imported, replaces


def other_device_type(available: Callable[[], str | None]) -> str | None:
    """Prevents `nn.DataParallel` from taking our device for one of many."""
    kind = available()
    return None if kind == "xla" else kind


def forward(original: Callable[..., object], self: DataParallel, *inputs: object, **kwargs: object) -> object:
    """`DataParallel.forward`, with inputs on the device where the module is."""
    if type(next(self.module.parameters(), None)) is XlaTensor:
        inputs, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("xla"), (inputs, kwargs))
    return original(self, *inputs, **kwargs)


def distributed_init(
    original: Callable[..., None], self: object, module: torch.nn.Module, *args: object, **kwargs: object
) -> None:
    """`DistributedDataParallel.__init__`, which requires a process group first; one of a single process it takes."""
    if _is_ours(module) and not (dist.is_initialized() and dist.get_world_size() == 1):
        raise NotImplementedError(
            "DistributedDataParallel: a module on xla needs no process group; shard its batch over a mesh, "
            "spmd.mark_sharding(x, mesh, (axis, ...)), and gradients are summed over all devices. "
            "fsdp.fully_shard(module, mesh) shards the parameters, too"
        )
    original(self, module, *args, **kwargs)


def join_fully_shard() -> None:
    """Has torch's `fully_shard`, when it is imported, refuse a module on the device."""
    module, purpose = "torch.distributed.fsdp._fully_shard._fully_shard", "the hint that names spmd's own fully_shard"
    patch_when_imported(module, _refuse_in_fully_shard, purpose, "_validate_module(module, func_name)")


def _is_ours(module: torch.nn.Module) -> bool:
    return any(isinstance(parameter, XlaTensor) for parameter in module.parameters())


def _refuse_in_fully_shard(fully_shard: ModuleType) -> None:
    """Patches `_validate_module`, which torch calls before it requires a process group."""

    @replaces(fully_shard, "_validate_module")
    def checked(validate: Callable[[torch.nn.Module, str], None], module: torch.nn.Module, name: str) -> None:
        if _is_ours(module):
            raise NotImplementedError(
                f"torch.distributed.fsdp.{name}: a module on xla needs no process group; "
                "fsdp.fully_shard(module, mesh=mesh) of this library takes the same arguments, with mesh = "
                'spmd.Mesh(range(8), (8,), ("fsdp",)), or a mesh of torch\'s init_device_mesh("xla", (8,), ...)'
            )
        validate(module, name)
