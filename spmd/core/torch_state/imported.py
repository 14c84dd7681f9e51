"""Modules that torch and jax import by themselves in the middle of a step: imported earlier.

torch's profiler (`with_stack`, `record_shapes`) keeps pointers to the names of code objects. A
module's own code is freed once it is imported, so an import during a profile leaves an event with
arbitrary bytes as its name, and `key_averages` raises UnicodeDecodeError.
"""

import gc
import importlib
import importlib.util
from concurrent.futures import ThreadPoolExecutor

import torch

from ..programs.cache import collected_later

_AT_THE_FIRST_STEP = (
    "jax.experimental.multihost_utils",  # the first upload
    "jaxlib.mlir.dialects.builtin",
    "jaxlib.mlir.dialects.mhlo",  # the first lowering
    "torch.profiler._cupti_monitor",  # the first step of an optimizer; torch 2.12 has none
)

for _name in _AT_THE_FIRST_STEP:
    if importlib.util.find_spec(_name) is not None:
        importlib.import_module(_name)


def _import() -> None:
    importlib.import_module("torch._dynamo")
    if torch.distributed.is_available():
        importlib.import_module("torch.distributed.tensor")


def import_dynamo_and_dtensor() -> None:
    """Imports the modules, and moves their objects to the collector's oldest generation unscanned.

    torch's C++ imports DTensor's module at the first call of any tensor class written in Python;
    the first op of many kinds on a meta device, and every optimizer's first step, import dynamo.
    Together they make 500 modules and a third of all of a process's objects, which the cyclic
    collector scans again and again meanwhile: 1.0 s of processor time, of which it takes 0.3.
    """
    with collected_later():
        # In a thread: `torch.fx.wrap` leaves its frame in a cycle, with all frames below it, here
        # those of the user's first op. Its result would stay alive, and the second step be another
        # program than the first.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_import).result()
        if not gc.get_freeze_count():  # else a program has frozen objects, and they must stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
