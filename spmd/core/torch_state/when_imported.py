"""Changes to other packages, guarded: a package of an unexpected version stays unchanged.

Each change declares the names that it needs. Where one is missing, or takes other parameters, the
change is left out with a warning that says the package's version, and the import goes on. A module
that takes long to import is changed when the program imports it itself.
"""

import functools
import importlib.machinery
import importlib.metadata
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from ..graph.source import warn

_patches: dict[str, dict[object, Callable[[ModuleType], None]]] = {}  # by name, by patch


def guarded(needs: Sequence[str], purpose: str, patch: Callable[[], object]) -> None:
    """Calls `patch` if its package has the names that it needs; else warns and leaves the package
    unchanged.

    Args:
        needs: full names, with parameters where the patch relies on them:
            `torch.export.export(mod, ...)`.
        purpose: what the patch is for, as the warning says it.
    """
    lack = next(filter(None, map(_lack, needs)), None)
    try:
        if lack is None:
            patch()
            return
    except (AttributeError, ImportError, TypeError) as error:
        # a name that the patch needs and does not declare
        if not needs:
            raise
        lack = str(error)
    package = needs[0].partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None) or importlib.metadata.version(
        package
    )
    warn(f"{package} {version}: {lack}. spmd leaves it as it is, without {purpose}")


def replaces(owner: object, name: str) -> Callable[[Callable[..., object]], None]:
    """A decorator: the function takes the place of another package's, once, and gets the original
    as its first argument.

    Modules that imported a function from its own package before, such as the user's script, get the
    new one, too.
    """
    original = getattr(owner, name)
    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    importers = [owner]
    if isinstance(owner, ModuleType) and str(original.__module__).startswith(owner.__name__):
        importers += [
            module
            for module in [*sys.modules.values()]
            if getattr(module, "__dict__", {}).get(name) is original
        ]

    def put(function: Callable[..., object]) -> None:
        """Puts a function into each importer, in place of the original."""

        @functools.wraps(original)
        def replacement(*args: object, **kwargs: object) -> object:
            return function(original, *args, **kwargs)

        # By the code: a second call with the same function changes nothing.
        replacement.by = function.__code__  # type: ignore[attr-defined]
        for importer in importers if getattr(original, "by", None) is not function.__code__ else ():
            setattr(importer, name, staticmethod(replacement) if is_static else replacement)

    return put


class Patch(NamedTuple):
    """A change to code of the process. The new code first checks for a tensor of the device, or for
    its name.

    target: the changed objects, as text; its `torch....` names are the needs of the change (see
    `guarded`). why: the reason. put: a function that makes the change. replacements: functions that
    take the places of the first of these names (see `replaces`).
    """

    target: str
    why: str
    put: Callable[[], None] | None = None
    replacements: Sequence[Callable[..., object]] = ()

    def apply(self) -> None:
        needs = re.findall(r"`(torch\.[^`]*)`", self.target)
        guarded(needs, self.why, functools.partial(self._install, needs))

    def _install(self, needs: Sequence[str]) -> None:
        """Installs the replacements, then calls `put`."""
        for need, function in zip(needs, self.replacements, strict=False):
            owner, _, name = need.partition("(")[0].rpartition(".")
            replaces(pkgutil.resolve_name(owner), name)(function)
        if self.put is not None:
            self.put()


def _lack(need: str) -> str | None:
    """Describes a missing name or parameter; None if none is missing."""
    path, _, expected = need.rstrip(")").partition("(")
    try:
        value = pkgutil.resolve_name(path)
        names = [*inspect.signature(value).parameters] if expected else []
    except (AttributeError, ImportError, TypeError, ValueError):  # the last two: no Python function
        return f"it has no {need}"
    if expected.endswith("..."):
        names[expected.count(",") :] = ["..."]
    parameters = ", ".join(names)
    return (
        None
        if parameters == expected
        else f"{path} has the parameters ({parameters}), expected ({expected})"
    )


class _PatchingFinder:
    """Finds a module as Python does, and patches it once it has run."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:

            @replaces(spec.loader, "exec_module")
            def exec_module(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
                execute(module)
                for apply in _patches[name].values():
                    apply(module)

        return spec


def patch_when_imported(name: str, patch: Callable[[Any], None], purpose: str, *needs: str) -> None:
    """Calls `patch` with the module of a name, now or when it is imported, if it has the names that
    the patch needs."""

    def apply(module: ModuleType) -> None:
        guarded([f"{name}.{need}" for need in needs], purpose, functools.partial(patch, module))

    _patches.setdefault(name, {})[patch] = apply
    if name in sys.modules:
        apply(sys.modules[name])
    elif _PatchingFinder not in sys.meta_path:
        sys.meta_path.insert(0, _PatchingFinder)
