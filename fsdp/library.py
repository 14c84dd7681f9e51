"""The `spmd` below this package, or an error that says which other `spmd` hides it."""

import spmd

if not hasattr(spmd, "mark_sharding"):
    raise ImportError(
        f"fsdp needs the package spmd of torch-spmd, but `import spmd` found {getattr(spmd, '__file__', None)}, which "
        "hides it. Rename that folder or file: what lies beside the script is found first."
    )

PartitionSpec = spmd.PartitionSpec
load_checkpoint = spmd.load_checkpoint  # reads what FSDP has laid out, and needs to know no more of it
