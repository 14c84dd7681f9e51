"""The names of PyTorch/XLA's two FSDPs, with their keywords."""

import functools
import inspect
from typing import Any
from weakref import WeakSet

from torch import nn

from .keywords import XLA, translate
from .wrapper import FullyShardedDataParallel

_OURS = dict.fromkeys(inspect.signature(FullyShardedDataParallel).parameters)
# PyTorch/XLA's arguments after the first two, by position: the table's up to this one, and three of ours.
_ORDER = [*XLA]
_ORDER[_ORDER.index("coalesce_all_gather_ops") + 1 :] = "auto_wrap_policy", "auto_wrapper_callable", "param_init_fn"


# The modules that an auto_wrap_policy of these classes chose; they stay themselves and are units.
_CHOSEN: "WeakSet[nn.Module]" = WeakSet()


class _WithUnits(type):
    """A class of wrappers whose instances, for `isinstance`, are the modules that its auto_wrap_policy chose, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (isinstance(instance, nn.Module) and instance in _CHOSEN)


class XlaFullyShardedDataParallel(FullyShardedDataParallel, metaclass=_WithUnits):
    """`FullyShardedDataParallel` with the keywords of `torch_xla.distributed.fsdp` (FSDP v1) in addition to its own.

    `compute_dtype`, `buffer_dtype`, `fp32_reduce_scatter` make a precision policy, `shard_param_on_dim_0` a placement;
    keywords without a meaning here are named in one warning. Raises TypeError for an unknown keyword.

    >>> import torch, spmd, fsdp
    >>> mesh = spmd.Mesh([0], (1,), ("fsdp",))
    >>> model = fsdp.XlaFullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=mesh, compute_dtype=torch.bfloat16)
    >>> model(torch.ones(3, 4, device="xla")).dtype
    torch.bfloat16
    """

    def __init__(self, module: nn.Module, reshard_after_forward: bool | int = True, *more: Any, **how: Any):
        translated = translate(type(self).__name__, {**dict(zip(_ORDER, more, strict=False)), **how}, XLA, _OURS)
        super().__init__(module, reshard_after_forward=reshard_after_forward, **translated)
        _CHOSEN.update(unit for _, unit in self.units)

    @property
    def sharded_params(self) -> list[nn.Parameter]:
        """The parameters that are sharded."""
        return list(self.parameters())

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters, with their names in the wrapped module."""
        return list(self.named_parameters())


class SpmdFullyShardedDataParallel(FullyShardedDataParallel, metaclass=_WithUnits):
    """`FullyShardedDataParallel` under the name of `torch_xla.experimental.spmd_fully_sharded_data_parallel` (FSDP v2).

    >>> import torch, spmd, fsdp
    >>> model = fsdp.SpmdFullyShardedDataParallel(torch.nn.Linear(4, 2), mesh=spmd.Mesh([0], (1,), ("fsdp",)))
    >>> model(torch.ones(3, 4, device="xla")).shape
    torch.Size([3, 2])
    """

    @functools.wraps(FullyShardedDataParallel.__init__)  # type: ignore[misc]  # mypy takes no decorated constructor
    def __init__(self, *args: Any, **how: Any):
        super().__init__(*args, **how)
        _CHOSEN.update(unit for _, unit in self.units)

    @property
    def _orig_module(self) -> nn.Module:
        return self.module
