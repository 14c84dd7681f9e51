"""Paths of modules that stand elsewhere: both names give the same module."""

import importlib.util
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Aliases:
    """A finder of `sys.meta_path`: packages, with what is in them, under the names that documents and scripts have.

    paths: the full name of a package by the name that it is imported by.
    """

    def __init__(self, paths: Mapping[str, str]):
        self._paths = dict(paths)

    def _path(self, name: str) -> str | None:
        for known, path in self._paths.items():
            if name == known or name.startswith(f"{known}."):
                return path + name.removeprefix(known)
        return None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec for a name of the table, or of what is in a package of it; else None."""
        path_there = self._path(name)
        if path_there is None or importlib.util.find_spec(path_there) is None:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # importlib calls these methods alone

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves making a module to Python; `exec_module` puts another in its place."""

    def exec_module(self, module: ModuleType) -> None:
        """Imports the module that stands elsewhere and registers it under this name."""
        path = self._path(module.__name__)
        assert path is not None, "find_spec has found it"
        sys.modules[module.__name__] = importlib.import_module(path)


class Later:
    """A function of a module that is imported at the first call.

    path: `package.module:name`. points: the lists that have this object, where the function itself takes its place.
    """

    def __init__(self, path: str, *points: list[Any]):
        self._path, self._points = path, points
        for point in points:
            point.append(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function = pkgutil.resolve_name(self._path)
        for point in self._points:
            point[:] = [function if one is self else one for one in point]
        return function(*args, **kwargs)
