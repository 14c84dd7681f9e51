"""Recompute (activation checkpointing) of a module: its forward keeps little, and backward computes
the rest again."""

from typing import Any, TypeVar

from torch import nn

import spmd
from spmd.mesh.hints import kind_of
from spmd.mesh.notes import ends_at_user_line

_M = TypeVar("_M", bound=nn.Module)


@ends_at_user_line
def checkpoint_module(module: _M, *, policy: Any = None) -> _M:
    """Makes backward compute a module's forward again, in place, and returns the module.

    Its class, names and hooks stay; it may be called before or after the module is wrapped.
    `policy` chooses the values that are kept in addition to inputs, as in `spmd.remat`. Source:
    `torch_xla.distributed.fsdp.checkpoint_module`.

    Raises TypeError for an argument that is no module, ValueError for a module that is checkpointed
    already.

    >>> import torch, spmd, fsdp
    >>> layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    >>> model = fsdp.fully_shard(
    ...     fsdp.checkpoint_module(layers), mesh=spmd.Mesh([0], (1,), ("fsdp",))
    ... )
    >>> model(torch.ones(2, 4, device="xla")).sum().backward()
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"checkpoint_module: expected a torch.nn.Module, got {kind_of(module)}")
    if isinstance(module.__dict__.get("forward"), _Recomputed):
        raise ValueError(f"checkpoint_module: {type(module).__name__} is checkpointed already")
    module.__dict__["forward"] = _Recomputed(module, policy)
    return module


# An object in the instance's __dict__, and no closure: a deep copy of the module copies it with its
# own module.
class _Recomputed:
    """The forward of a checkpointed module; a copied module has a copy of its own."""

    def __init__(self, module: nn.Module, policy: Any):
        self.module, self.policy = module, policy
        spmd.remat(self._forward, policy=policy)  # raises now for an argument that is no policy

    def __call__(self, *args: object, **kwargs: object) -> object:
        return spmd.remat(self._forward, policy=self.policy)(*args, **kwargs)

    def _forward(self, *args: object, **kwargs: object) -> object:
        return type(self.module).forward(self.module, *args, **kwargs)
