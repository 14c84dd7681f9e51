"""The modules that print and draw plans, imported at their first use: a program that plans nothing needs no rich."""

from importlib import import_module
from types import ModuleType

from ..planning import report


def _load(name: str) -> ModuleType:
    return import_module("spmd.tools.reports.page") if name == "page" else import_module("spmd.tools.reports.table")


report.set_loader(_load)
