"""Loaders: pinned memory, which the device does not need, and batches that a worker stacks of the device's tensors."""

from typing import Any

import torch
from torch.utils.data._utils import collate, pin_memory

from ..record.tensor import XlaTensor

_libraries: list[torch.library.Library] = []


def _pin(self: torch.Tensor, device: torch.types.Device = None) -> torch.Tensor:
    return self.detach()  # another tensor, as torch promises: autograd would otherwise write its history into this one


def _pin_batch(data: Any, device: torch.types.Device = None) -> Any:
    return data  # torch would rebuild its containers, which a loader without an accelerator does not


def _stack(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.stack(batch)  # torch would have a worker stack them into a storage, which ours do not have


def join_loaders() -> None:
    """Replaces torch's pinning, which needs an accelerator: loaders and `pin_memory()` of CPU tensors call it."""
    pin_memory.pin_memory = _pin_batch
    collate.default_collate_fn_map[XlaTensor] = _stack
    library = torch.library.Library("aten", "IMPL")
    library.impl("_pin_memory", _pin, "CPU")
    _libraries.append(library)
