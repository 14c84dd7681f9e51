"""`nn.DataParallel`: there is one logical device, so the module runs as it is, on the device or on
the CPU. `DistributedDataParallel` of several processes is refused with an error that names the
alternative.

torch would move every wrapped module to the device, CPU programs' too, and scatter inputs with cuda
kernels.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel
from torch.utils._pytree import tree_map_only

from ..record.tensor import XlaTensor


def other_device_type(available: Callable[[], str | None]) -> str | None:
    """Prevents `nn.DataParallel` from taking our device for one of many."""
    kind = available()
    return None if kind == "xla" else kind


def forward(
    original: Callable[..., object], self: DataParallel, *inputs: object, **kwargs: object
) -> object:
    """`DataParallel.forward`, with inputs on the device where the module is."""
    if type(next(self.module.parameters(), None)) is XlaTensor:
        inputs, kwargs = tree_map_only(
            torch.Tensor, lambda tensor: tensor.to("xla"), (inputs, kwargs)
        )
    return original(self, *inputs, **kwargs)


def distributed_init(
    original: Callable[..., None],
    self: object,
    module: torch.nn.Module,
    *args: object,
    **kwargs: object,
) -> None:
    """`DistributedDataParallel.__init__`, which requires a process group first; a group of one
    process is enough."""
    is_ours = any(isinstance(parameter, XlaTensor) for parameter in module.parameters())
    if is_ours and not (dist.is_initialized() and dist.get_world_size() == 1):
        raise NotImplementedError(
            "DistributedDataParallel: a module on xla needs no process group; shard its batch "
            "over a mesh, spmd.mark_sharding(x, mesh, (axis, ...)), and gradients are summed over "
            "all devices. fsdp.fully_shard(module, mesh) shards the parameters, too"
        )
    original(self, module, *args, **kwargs)
