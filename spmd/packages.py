"""The names of packages that stand in folders of their kind: `spmd.checkpoint` is `spmd.jobs.checkpoint`."""

import sys

from .core.base.lazy import Aliases

PATHS = {
    **{f"spmd.{name}": f"spmd.jobs.{name}" for name in ("checkpoint", "data", "frameworks", "launching")},
    **{f"spmd.{name}": f"spmd.names.{name}" for name in ("compat", "dtensor", "torch_xla")},
    **{f"spmd.{name}": f"spmd.steps.{name}" for name in ("exporting", "replay")},
    **{
        f"spmd.{name}": f"spmd.tools.{name}"
        for name in ("planning", "profiler", "reports", "show", "suggestions", "verification")
    },
}

sys.meta_path.insert(0, Aliases(PATHS))
