"""`torch.distributed.checkpoint.async_save`: the copy of state to the host before it is written in the background.

torch copies storages, which our tensors do not have. Its module for this takes seconds to import, so it is patched when
the program imports it.
"""

from typing import Any

from ..record.tensor import XlaTensor
from .saving import shared_host_copy
from .when_imported import patch_when_imported


def _stage_ours(stager: Any) -> None:
    offload = stager.StateDictStager._offload_tensor

    def offload_tensor(self: Any, x: Any, memo: dict[int, Any], non_blocking: bool = False) -> Any:
        if type(x) is not XlaTensor:
            return offload(self, x, memo, non_blocking=non_blocking)
        memo[id(x)] = staged = shared_host_copy(x)
        return staged

    stager.StateDictStager._offload_tensor = offload_tensor


def join_staging() -> None:
    """Patches the stager, now or when it is imported."""
    needs = "StateDictStager._offload_tensor(self, x, memo, non_blocking)"
    patch_when_imported("torch.distributed.checkpoint._state_dict_stager", _stage_ours, "async_save of xla", needs)
