"""`torch.distributed.checkpoint.async_save`: how it copies state to the host before it writes in the background.

It copies storages, which our tensors do not have. The module that does so takes seconds to import, so it is patched
when the program imports it.
"""

import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..lazy.tensor import XlaTensor
from .saving import shared_host_copy

_STAGER = "torch.distributed.checkpoint._state_dict_stager"


def _stage_ours(stager: Any) -> None:
    if not hasattr(stager.StateDictStager, "_offload_tensor"):
        return  # another version of torch, in which it copies by other means
    offload = stager.StateDictStager._offload_tensor

    def offload_tensor(self: Any, x: Any, memo: dict[int, Any], non_blocking: bool = False) -> Any:
        if type(x) is not XlaTensor:
            return offload(self, x, memo, non_blocking=non_blocking)
        memo[id(x)] = staged = shared_host_copy(x)
        return staged

    stager.StateDictStager._offload_tensor = offload_tensor


class _AtImport:
    """Finds the stager as Python does, and has it patched once it has run."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _STAGER:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _stage_ours(module)

            found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


def join_staging() -> None:
    """Patches the stager, now or when it is imported."""
    if _STAGER in sys.modules:
        _stage_ours(sys.modules[_STAGER])
    else:
        sys.meta_path.insert(0, _AtImport)
