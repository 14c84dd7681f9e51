"""The views that results are printed by, imported with the plans (`spmd.packages`): a process that prints none needs no
rich and no jinja2."""

from importlib import import_module

from ..planning.report import VIEWS

VIEWS["table"] = lambda: import_module("spmd.tools.reports.table")
VIEWS["page"] = lambda: import_module("spmd.tools.reports.page")
