"""Patches of modules of torch that take long to import: applied when the program imports the module itself."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_patches: dict[str, list[Callable[[Any], None]]] = {}


class _Finder:
    """Finds a module as Python does, and patches it once it has run."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _patches:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            execute = found.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                for patch in _patches[name]:
                    patch(module)

            found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


def patch_when_imported(name: str, patch: Callable[[Any], None]) -> None:
    """Calls `patch` with the module of a name, now or when it is imported."""
    if name in sys.modules:
        patch(sys.modules[name])
        return
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    patches = _patches.setdefault(name, [])
    if patch not in patches:
        patches.append(patch)
