"""The import finder behind `import torch_xla`: names of this library, by the table of
`torch_xla_names`.

Nothing of the table is imported before a script requests it.
"""

import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ...mesh.hints import did_you_mean
from . import defaults
from .torch_xla_names import HINTS, IMPORTS, MODULES, NAMES, VERSION, Row

ROOT = "torch_xla"
_ROOT = str(Path(__file__).resolve().parents[3])  # the folder of the packages spmd and fsdp


def install() -> None:
    """Serves `import torch_xla` and its modules from this library, in this process; a second call
    does nothing.

    Call it before libraries that probe for `torch_xla` at their import (accelerate, transformers,
    diffusers): `importlib.util.find_spec("torch_xla")` and
    `importlib.metadata.version("torch_xla")` answer, too.
    `python -m spmd run script.py` calls it before a script starts. A name of PyTorch/XLA that is
    not here can be imported, and raises what serves instead when it is used; one that it has not
    raises AttributeError or ImportError. As there, an op without a rule
    runs on the CPU and is counted (`met.executed_fallback_ops()`), and `torch.einsum` promotes
    dtypes.

    Raises RuntimeError where another `torch_xla` is installed or imported: one process has one
    device xla.

    >>> import spmd
    >>> spmd.compat.install()
    >>> import torch_xla.core.xla_model as xm
    >>> xm.xla_device()
    device(type='xla', index=0)
    >>> spmd.compat.uninstall()
    """
    if _FINDER in sys.meta_path:
        return
    loaded = sys.modules.get(ROOT)
    spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(ROOT)
    if spec is not None:
        where = spec.origin or next(iter(spec.submodule_search_locations or ()), "this process")
        raise RuntimeError(
            f"spmd.compat.install: expected no other torch_xla, found the one of {where}; one "
            "process has one device xla. Remove it (pip uninstall torch_xla), or leave out `spmd "
            "run` and install()"
        )
    sys.meta_path.insert(0, _FINDER)
    defaults.begin()


def uninstall() -> None:
    """Undoes `install`: `import torch_xla` raises again; names that a script has imported stay
    usable.

    >>> import spmd
    >>> spmd.compat.uninstall()
    """
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
        defaults.end()
        for name in [name for name in sys.modules if name.split(".")[0] == ROOT]:
            del sys.modules[name]


def preload() -> None:
    """Imports the packages of the table before a script's own folders can hide them."""
    packages = {
        row.target.partition(":")[0].partition(".")[0]
        for rows in NAMES.values()
        for row in rows.values()
    }
    sys.path.insert(0, _ROOT)  # the current folder may have one of these names, too
    try:
        for module in sorted(packages - {"", ROOT}):
            importlib.import_module(module)
    finally:
        sys.path.remove(_ROOT)


class _Facade(ModuleType):
    """A module of PyTorch/XLA; its names are looked up in the table at their first read."""

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__name__}.{name}"
        row = NAMES.get(self.__name__, {}).get(name)
        if row is not None:
            value = served(row)
        elif path in NAMES:
            value = importlib.import_module(path)
        else:
            words = _missing(self.__name__, name)
            # No library probes their C++ module for a function; scripts hand such functions on.
            is_function = self.__name__ == f"{ROOT}._XLAC" and path in HINTS
            if not (is_function or _is_import(sys._getframe(1))):
                raise AttributeError(words, name=name)
            if name[:2] == "__" or not _hint(self.__name__, name):
                raise ImportError(words, name=name)
            return _Missing(words)  # a later read of the module's name raises
        # what a script assigns to a name of the module stands before the table's as well
        self.__dict__[name] = value
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: `from module import name` finds a missing name as a module, too."""
        if self.__name__ in NAMES:
            raise TypeError(f"{self!r} is not callable")
        raise NotImplementedError(_missing(*self.__name__.rsplit(".", 1)))

    def __dir__(self) -> Iterable[str]:
        return {*self.__dict__, *NAMES.get(self.__name__, ()), *_children(self.__name__)}


class _Missing:
    """A name of PyTorch/XLA that is not here: a script may import it, and no more."""

    def __init__(self, words: str):
        self._words = words

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._words, name=name)

    def __repr__(self) -> str:
        return f"<{self._words}>"

    def _use(self, *_: object, **__: object) -> Any:
        raise NotImplementedError(self._words)

    __bool__ = __call__ = __contains__ = __enter__ = __getitem__ = __iter__ = __len__ = _use
    __instancecheck__ = __mro_entries__ = __setitem__ = _use


def served(row: Row) -> Any:
    """Returns the object of a row of the table; a function by their parameters where the row has
    some of its own."""
    value = resolve(row.target) if row.target else row.value
    is_adapted = row.ours or row.defaults or row.parameters is not None
    return (
        _by_their_parameters(value if row.target else lambda: value, row) if is_adapted else value
    )


def resolve(target: str) -> Any:
    """Returns the object of a target of the table, "module:attribute" or "module:"."""
    module = target.partition(":")[0]
    if module == "fsdp":
        package = importlib.import_module(module)
        if not (package.__file__ or "").startswith(_ROOT):
            raise ImportError(
                f"torch_xla: {package.__file__ or next(iter(package.__path__))} hides this "
                "library's package fsdp; run the script by `python -m spmd run`, or give it "
                "another name",
                name=module,
            )
    return pkgutil.resolve_name(target)


def _by_their_parameters(function: Callable[..., Any], row: Row) -> Callable[..., Any]:
    """Adapts a function to PyTorch/XLA's parameters: renamed ones, or all of theirs; it gets those
    that it takes."""
    function_signature = inspect.signature(function)
    theirs = {name: key for key, name in row.ours.items()}
    shown = [
        parameter.replace(name=theirs.get(name, name))
        for name, parameter in function_signature.parameters.items()
    ]
    if row.parameters is not None:  # text of the table
        shown = [*inspect.signature(eval(f"lambda {row.parameters}: None")).parameters.values()]
    signature = function_signature.replace(parameters=shown)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if row.parameters is not None:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            read = [
                name
                for name in bound.arguments
                if row.ours.get(name, name) in function_signature.parameters
            ]
            args, kwargs = (), {name: bound.arguments[name] for name in read}
        return function(
            *args, **{**row.defaults, **{row.ours.get(name, name): kwargs[name] for name in kwargs}}
        )

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _is_import(caller: Any) -> bool:
    """True for `from a import b`, which drops the words of an AttributeError."""
    return dis.opname[caller.f_code.co_code[caller.f_lasti]] == "IMPORT_FROM"


def _hint(module: str, name: str) -> str:
    """What serves instead of a name of PyTorch/XLA; empty for one that is not known, or close to
    another."""
    path = f"{module}.{name}"
    hint = HINTS.get(path, "")
    if hint or _similar(module, name):
        return hint
    # that of a module around it, which has it or is itself not here
    while not hint and (path := path.rpartition(".")[0]):
        hint = HINTS.get(f"{path}.*", "") or HINTS.get(path, "")
    return hint


def _similar(module: str, name: str) -> str:
    return did_you_mean(name, [*NAMES.get(module, ()), *_children(module)])


def _missing(module: str, name: str) -> str:
    if name[:2] == "__":  # Python and tools look for it in every module
        return f"module {module!r} has no attribute {name!r}"
    hint = _hint(module, name)
    after = f": {hint}" if hint else _similar(module, name)
    after = after or "; docs/torch-xla-names.md lists names"
    return f"{module}.{name} of PyTorch/XLA is not in spmd.compat{after}"


def _children(module: str) -> list[str]:
    """The names of the modules directly inside a module."""
    return [path.rpartition(".")[2] for path in NAMES if path.rpartition(".")[0] == module]


class _Distribution(Distribution):
    """The metadata of an installed `torch_xla`, for libraries that read its version."""

    def read_text(self, filename: str) -> str | None:
        return {
            "METADATA": f"Metadata-Version: 2.1\nName: {ROOT}\nVersion: {VERSION}\n",
            "top_level.txt": f"{ROOT}\n",
        }.get(filename)

    def locate_file(self, path: str | os.PathLike[str]) -> Any:
        raise FileNotFoundError(f"{ROOT} is no folder: spmd.compat serves its names")


class _Finder(DistributionFinder, Loader):
    """Finds and makes the modules of the table."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_ours = fullname.startswith(f"{ROOT}.")
        module, _, name = fullname.rpartition(".")
        # a probe is answered by None
        is_import = sys._getframe(2).f_code is not importlib.util.find_spec.__code__
        if fullname in NAMES or (is_ours and is_import and _hint(module, name)):
            is_package = fullname not in NAMES or bool(_children(fullname))
            return ModuleSpec(fullname, self, origin="spmd.compat", is_package=is_package)
        if is_ours and is_import:
            raise ModuleNotFoundError(_missing(module, name), name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Facade(
            spec.name,
            f"PyTorch/XLA's `{spec.name}`: names of this library (docs/torch-xla-names.md).",
        )

    def exec_module(self, module: ModuleType) -> None:
        names = [*NAMES.get(module.__name__, ()), *_children(module.__name__)]
        module.__dict__["__all__"] = [name for name in names if not name.startswith("_")]
        for path in IMPORTS.get(module.__name__, ()):
            value = resolve(path)
            if callable(value):
                value()
        if module.__name__ in MODULES:
            here = resolve(f"{MODULES[module.__name__]}:")
            here.__dict__["__getattr__"] = module.__getattr__
            sys.modules[module.__name__] = here
        if module.__name__ == ROOT:
            module.__dict__["__version__"] = VERSION

    def find_distributions(
        self, context: Any = DistributionFinder.Context()
    ) -> Iterable[Distribution]:
        is_meant = context.name is None or context.name.replace("-", "_").lower() == ROOT
        return [_Distribution()] if is_meant else []


_FINDER = _Finder()
