"""The `spmd` below this package, or an error that says which other `spmd` hides it."""

import spmd

if not hasattr(spmd, "mark_sharding"):
    # A folder without __init__.py is a namespace package, which has no file.
    found = getattr(spmd, "__file__", None) or ", ".join(getattr(spmd, "__path__", ()))
    raise ImportError(
        f"fsdp needs the package spmd of torch-spmd, but `import spmd` found {found}, which "
        "hides it. Rename that folder or file: what lies beside the script is found first."
    )

PartitionSpec = spmd.PartitionSpec
load_checkpoint = spmd.load_checkpoint  # reads what FSDP has laid out, and needs to know no more of it
