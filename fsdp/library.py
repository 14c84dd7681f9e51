"""The package `spmd` that this one needs, or an error that names the other `spmd` that hides it."""

import spmd

if not hasattr(spmd, "mark_sharding"):
    # A folder without __init__.py is a namespace package, which has no file.
    found = getattr(spmd, "__file__", None) or ", ".join(getattr(spmd, "__path__", ()))
    raise ImportError(
        f"fsdp needs the package spmd of torch-spmd, but `import spmd` found {found}, which "
        "hides it. Rename that folder or file: Python searches the script's own folder first."
    )

PartitionSpec = spmd.PartitionSpec
load_checkpoint = spmd.load_checkpoint  # reads the shardings of the tensors, and needs nothing of FSDP
save_checkpoint = spmd.save_checkpoint
