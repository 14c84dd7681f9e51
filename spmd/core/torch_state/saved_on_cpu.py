"""`torch.autograd.graph.save_on_cpu`: saved tensors stay in the host's memory until backward, inside the program.

torch would read each saved value to the CPU, which ends a program at each op of the forward pass.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from ..ops.create import TO_DEVICE, TO_HOST
from ..record.tensor import XlaTensor


class _OnHost(NamedTuple):
    tensor: torch.Tensor


class _HeldOnCpu(NamedTuple):
    """A parameter or buffer, which is on the device in any case, and its version when it was saved."""

    tensor: torch.Tensor
    version: int


def _pack(tensor: XlaTensor) -> _OnHost | _HeldOnCpu:
    if tensor._storage.is_state:
        return _HeldOnCpu(tensor, tensor._version)
    with torch.no_grad():
        return _OnHost(TO_HOST(tensor))


def _unpack(packed: _OnHost | _HeldOnCpu) -> torch.Tensor:
    if isinstance(packed, _OnHost):
        with torch.no_grad():
            return TO_DEVICE(packed.tensor)
    if packed.tensor._version != packed.version:
        raise RuntimeError(
            f"save_on_cpu: a parameter or buffer of shape {tuple(packed.tensor.shape)} that backward reads has been "
            f"modified by an inplace operation: it is at version {packed.tensor._version}; expected version "
            f"{packed.version}. On xla parameters and buffers are not copied; write into them after backward"
        )
    return packed.tensor


def join_save_on_cpu() -> None:
    """Has `save_on_cpu` place saved tensors of the device in the host's memory, and back: the program does it."""
    init = save_on_cpu.__init__

    @functools.wraps(init)
    def placing(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        pack, unpack = self.pack_hook, self.unpack_hook

        def pack_ours(tensor: torch.Tensor) -> Any:
            return _pack(tensor) if type(tensor) is XlaTensor else pack(tensor)

        def unpack_ours(packed: Any) -> torch.Tensor:
            return _unpack(packed) if isinstance(packed, _OnHost | _HeldOnCpu) else unpack(packed)

        saved_tensors_hooks.__init__(self, pack_ours, unpack_ours)

    save_on_cpu.__init__ = placing  # type: ignore[method-assign]
