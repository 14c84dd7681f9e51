"""Modules that torch imports by itself in the middle of a step: imported at the device's first use, at less cost.

torch's C++ imports DTensor's module at the first call of any tensor class written in Python; the first op of many kinds
on a meta device, and every optimizer's first step, import dynamo. Together they make 500 modules and a third of all of
a process's objects, which the cyclic collector scans again and again meanwhile: 1.0 s of processor time, of which it
takes 0.3.
"""

import gc
import importlib

import torch

from ..programs.cache import collected_later


def import_dynamo_and_dtensor() -> None:
    """Imports the modules, and has the collector treat what they made as old without looking at it."""
    with collected_later():
        importlib.import_module("torch._dynamo")
        if torch.distributed.is_available():
            importlib.import_module("torch.distributed.tensor")
        if not gc.get_freeze_count():  # else a program has frozen objects, and they must stay so
            gc.freeze()
            gc.unfreeze()  # into the oldest generation
