"""The package `spmd` that this one needs, or an error that names the other `spmd` that hides it."""

from typing import Any

import spmd

if not hasattr(spmd, "mark_sharding"):
    # A folder without __init__.py is a namespace package, which has no file.
    found = getattr(spmd, "__file__", None) or ", ".join(getattr(spmd, "__path__", ()))
    raise ImportError(
        f"fsdp needs the package spmd of torch-spmd, but `import spmd` found {found}, which "
        "hides it. Rename that folder or file: Python searches the script's own folder first."
    )

PartitionSpec = spmd.PartitionSpec


def __getattr__(name: str) -> Any:
    """`load_checkpoint` and `save_checkpoint` are those of `spmd`: they need nothing of FSDP."""
    if name in ("load_checkpoint", "save_checkpoint"):
        return getattr(spmd, name)
    raise AttributeError(f"module 'fsdp' has no attribute {name!r}")
