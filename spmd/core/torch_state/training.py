"""torch's helpers of a training loop: loaders, `GradScaler`, `save_on_cpu`, and the stager of
`async_save`."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.data._utils import collate, pin_memory

from ...ops.create import TO_DEVICE, TO_HOST
from ..record.tensor import XlaTensor
from .saving import shared_host_copy
from .when_imported import patch_when_imported, replaces

# --- loaders: pinned memory, which the device does not need, and batches that a worker stacks of
# its tensors

_library = torch.library.Library("aten", "IMPL")


def _pin(self: torch.Tensor, device: torch.types.Device = None) -> torch.Tensor:
    # another tensor, as torch promises: autograd would otherwise write its history into this one
    return self.detach()


def _pin_batch(data: object, device: torch.types.Device = None) -> object:
    # torch would rebuild its containers, which a loader without an accelerator does not
    return data


def _stack(batch: list[torch.Tensor], *, collate_fn_map: object = None) -> torch.Tensor:
    # torch would have a worker stack them into a storage, which ours do not have
    return torch.stack(batch)


def join_loaders() -> None:
    """Replaces torch's pinning, which needs an accelerator: loaders and `pin_memory()` of CPU
    tensors call it."""
    pin_memory.pin_memory = _pin_batch
    collate.default_collate_fn_map[XlaTensor] = _stack
    _library.impl("_pin_memory", _pin, "CPU")


# --- the state of `GradScaler`: data, as a parameter's is, and no op of the next step -------------


def fill_scaler(
    original: Callable[..., None], scaler: torch.amp.GradScaler, *args: object, **kwargs: object
) -> None:
    """Makes a scaler on the device keep its first and its loaded numbers as data.

    torch fills its tensors: the first step, and the one after `load_state_dict`, would be programs
    of their own.
    """
    original(scaler, *args, **kwargs)
    # Both methods fill these with these two numbers, which both set.
    for tensor, number in (
        (scaler._scale, scaler._init_scale),
        (scaler._growth_tracker, scaler._init_growth_tracker),
    ):
        if isinstance(tensor, XlaTensor):
            tensor.copy_(torch.tensor(number, dtype=tensor.dtype, device="cpu"))


# --- `save_on_cpu`: saved tensors stay in the host's memory until backward, inside the program ----

# torch would read each saved value to the CPU, which ends a program at each op of the forward pass.


class _SavedCall(partial[torch.Tensor]):
    """A saved tensor as the call that returns it."""


@torch.no_grad()
def _pack(tensor: XlaTensor) -> _SavedCall:
    if tensor._storage.is_state:  # a parameter or buffer is on the device in any case
        return _SavedCall(_unchanged, tensor, tensor._version)
    return _SavedCall(TO_DEVICE, TO_HOST(tensor))


def _unchanged(tensor: torch.Tensor, version: int) -> torch.Tensor:
    if tensor._version != version:
        raise RuntimeError(
            f"save_on_cpu: a parameter or buffer of shape {tuple(tensor.shape)} that backward "
            "reads has been modified by an inplace operation: it is at version "
            f"{tensor._version}; expected version {version}. On xla parameters and buffers are "
            "not copied; write into them after backward"
        )
    return tensor


def join_save_on_cpu() -> None:
    """Has `save_on_cpu` place saved tensors of the device in the host's memory, and back: the
    program does it."""

    @replaces(save_on_cpu, "__init__")
    def placing(init: Callable[..., None], self: Any, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        pack, unpack = self.pack_hook, self.unpack_hook

        def pack_ours(tensor: torch.Tensor) -> object:
            return _pack(tensor) if isinstance(tensor, XlaTensor) else pack(tensor)

        def unpack_ours(packed: object) -> torch.Tensor:
            if not isinstance(packed, _SavedCall):
                return unpack(packed)
            with torch.no_grad():
                return packed()

        saved_tensors_hooks.__init__(self, pack_ours, unpack_ours)


# --- the stager of `async_save`: the copy of state to the host before it is written in the
# background

# torch copies storages, which our tensors do not have. Its module for this takes seconds to import,
# so it is patched when the program imports it.


def _stage_ours(stager: ModuleType) -> None:
    """Has the stager copy tensors of the device by a read."""

    @replaces(stager.StateDictStager, "_offload_tensor")
    def offload_tensor(
        offload: Callable[..., torch.Tensor],
        self: object,
        x: torch.Tensor,
        memo: dict[int, object],
        non_blocking: bool = False,
    ) -> torch.Tensor:
        if not isinstance(x, XlaTensor):
            return offload(self, x, memo, non_blocking=non_blocking)
        memo[id(x)] = staged = shared_host_copy(x)
        return staged


def join_staging() -> None:
    """Patches the stager, now or when it is imported."""
    needs = "StateDictStager._offload_tensor(self, x, memo, non_blocking)"
    patch_when_imported(
        "torch.distributed.checkpoint._state_dict_stager", _stage_ours, "async_save of xla", needs
    )


def averaging_devices(devices: Callable[[], list[str]]) -> list[str]:
    """torch's devices with list ops for averages of weights, without xla: these list ops raise for
    integer buffers, on every device."""
    return [device for device in devices() if device != "xla"]
