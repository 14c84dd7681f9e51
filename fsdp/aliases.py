"""The names of PyTorch/XLA's two FSDPs, with their keywords."""

import inspect
from typing import Any

from torch import nn

from .keywords import XLA, translate
from .wrapper import FullyShardedDataParallel

_OURS = dict.fromkeys(inspect.signature(FullyShardedDataParallel).parameters)


class XlaFullyShardedDataParallel(FullyShardedDataParallel):
    """`FullyShardedDataParallel` with the keywords of `torch_xla.distributed.fsdp` (FSDP v1) in addition to its own.

    `compute_dtype`, `buffer_dtype`, `fp32_reduce_scatter` make a precision policy, `shard_param_on_dim_0` a placement;
    keywords without a meaning here are named in one warning. Raises TypeError for an unknown keyword.

    >>> import torch, spmd, fsdp
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model = fsdp.XlaFullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=mesh, compute_dtype=torch.bfloat16)
    >>> model(torch.ones(3, 4, device="xla")).dtype
    torch.bfloat16
    """

    def __init__(self, module: nn.Module, reshard_after_forward: bool | int = True, **how: Any):
        translated = translate(type(self).__name__, how, XLA, _OURS)
        super().__init__(module, reshard_after_forward=reshard_after_forward, **translated)


class SpmdFullyShardedDataParallel(FullyShardedDataParallel):
    """`FullyShardedDataParallel` under the name of `torch_xla.experimental.spmd_fully_sharded_data_parallel` (FSDP v2).

    >>> import torch, spmd, fsdp
    >>> model = fsdp.SpmdFullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> model(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    """
