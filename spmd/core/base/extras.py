"""Extras of this library: their requirements on this machine, and the commands that install
them."""

import importlib.metadata
import shlex
from collections.abc import Iterator
from itertools import chain
from types import ModuleType
from typing import Any

NAME = "torch-spmd"


def requirements(name: str, extra: str = "") -> Iterator[Any]:
    """The requirements of a distribution on this machine: by itself, or in addition for one of its
    extras."""
    # Imported here, as it takes a tenth of a second and only reports and errors need it.
    parse = importlib.import_module("packaging.requirements").Requirement
    for requirement in map(parse, importlib.metadata.requires(name) or ()):
        marker = requirement.marker
        is_unconditional = marker is None or marker.evaluate({"extra": ""})
        # An extra adds the requirements that apply only with it.
        if (
            not is_unconditional and marker.evaluate({"extra": extra})
            if extra
            else is_unconditional
        ):
            yield requirement


def _packages(extra: str) -> Iterator[str]:
    """The packages of an extra as pip reads them, those of its nested extras included."""
    for requirement in requirements(NAME, extra):
        if requirement.name == NAME:
            yield from chain.from_iterable(map(_packages, sorted(requirement.extras)))
        elif requirement.name.startswith("jax-cuda"):
            # jax takes the plugin of its version; the range has newer ones
            yield f"{requirement.name}=={importlib.metadata.version('jax')}"
        else:
            yield str(requirement).partition(";")[0]


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra, by their own names.

    It does not name this library: no package index has it, and a stranger could register its name
    there.
    """
    try:
        return shlex.join(("pip", "install", *_packages(extra)))
    except importlib.metadata.PackageNotFoundError:  # a checkout on Python's path
        return f"pip install '.[{extra}]' in a checkout"


def imported(module: str, extra: str, caller: str) -> ModuleType:
    """Imports a module of an extra; raises ModuleNotFoundError with the command that installs
    it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(
            f"{caller} needs {module}: {install_command(extra)}", name=error.name
        ) from error
