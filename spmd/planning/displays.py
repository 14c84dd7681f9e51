"""The modules that print and draw plans, imported at their first use: they need packages that the library does not."""

from importlib import import_module
from types import ModuleType

from . import report


def _load(name: str) -> ModuleType:
    return import_module("spmd.planning.page") if name == "page" else import_module("spmd.planning.table")


report.set_loader(_load)
