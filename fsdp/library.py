"""The package `spmd` as `fsdp` needs it: an ImportError names another `spmd` that hides it. Also
the names that `fsdp` imports at their first use."""

import sys
from types import ModuleType

import spmd

if not hasattr(spmd, "mark_sharding"):
    # A folder without __init__.py is a namespace package, which has no file.
    path = getattr(spmd, "__file__", None) or ", ".join(getattr(spmd, "__path__", ()))
    raise ImportError(
        f"fsdp needs the package spmd of torch-spmd, but `import spmd` found {path}, which "
        "hides it. Rename that folder or file: Python searches the script's own folder first."
    )

from spmd.missing import missing  # after the check

# Taken here, after the check.
Mesh = spmd.Mesh
PartitionSpec = spmd.PartitionSpec


# Functions of spmd that need nothing of FSDP, imported at their first use.
_OF_SPMD = ("load_checkpoint", "save_checkpoint")


def __dir__() -> list[str]:
    # Without the files that the package is made of.
    names = (
        name
        for name, value in vars(sys.modules["fsdp"]).items()
        if not isinstance(value, ModuleType)
    )
    return sorted({*names, *_OF_SPMD})


def __getattr__(name: str) -> object:
    if name == "__all__":
        return [name for name in __dir__() if not name.startswith("_")]
    if name not in _OF_SPMD:
        raise missing("fsdp", name, sys._getframe(1))
    return getattr(spmd, name)
