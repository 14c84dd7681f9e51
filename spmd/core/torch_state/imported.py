"""Modules that jax and torch import only at the first step, imported together with the library.

torch's profiler (`with_stack`, `record_shapes`) keeps pointers to the names of code objects. A module's own code is
freed once it is imported, so an import during a profile leaves an event with arbitrary bytes as its name, and
`key_averages` raises UnicodeDecodeError.
"""

import importlib
import importlib.util

_AT_THE_FIRST_STEP = (
    "jax.experimental.multihost_utils",  # the first upload
    "jaxlib.mlir.dialects.builtin", "jaxlib.mlir.dialects.mhlo",  # the first lowering
    "torch.profiler._cupti_monitor",  # the first step of an optimizer; torch 2.12 has none
)  # fmt: skip

for _name in _AT_THE_FIRST_STEP:
    if importlib.util.find_spec(_name) is not None:
        importlib.import_module(_name)
