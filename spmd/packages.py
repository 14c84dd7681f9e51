"""The packages around the library, each of which may be left out: what of them is imported, and
when.

A name of theirs in `spmd` is imported at its first use, a module that changes torch when it must,
and what joins a point of the core at the first use of the device. See docs/extending.md.
"""

import functools
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from .core import patch_when_imported, points, processes, variables
from .missing import missing


class Aliases:
    """A finder of `sys.meta_path`: packages, with what is in them, under the names that documents
    and scripts have.

    paths: the full name of a package by the name that it is imported by.
    """

    def __init__(self, paths: Mapping[str, str]):
        self._paths = dict(paths)

    def _path(self, name: str) -> str | None:
        for alias, path in self._paths.items():
            if name == alias or name.startswith(f"{alias}."):
                return path + name.removeprefix(alias)
        return None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns a spec for a name of the table, or of what is in a package of it; else None."""
        path_there = self._path(name)
        if path_there is None or importlib.util.find_spec(path_there) is None:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # importlib calls these methods alone

    def create_module(self, spec: ModuleSpec) -> None:
        """Leaves making a module to Python; `exec_module` puts another in its place."""

    def exec_module(self, module: ModuleType) -> None:
        """Imports the module that stands elsewhere and registers it under this name."""
        path = self._path(module.__name__)
        assert path is not None, "find_spec has found it"
        sys.modules[module.__name__] = importlib.import_module(path)


# By module, its names in `spmd`; of a module without names, the module itself.
NAMES = {
    "adaptive.padding.marks": "mark_dynamic",
    "jobs.checkpoint": "",
    "jobs.checkpoint.loading": "load_checkpoint",
    "jobs.checkpoint.manager": "CheckpointManager",
    "jobs.checkpoint.model_saving": "save_checkpoint",
    "jobs.data": "",
    "jobs.data.loader": "DataLoader",
    "jobs.frameworks.choice": "use",
    "names.compat": "",
    "names.dtensor": "",
    "names.torch_xla": "",
    "parallel.kernels": "kernel",
    "steps.exporting": "Exported LoadedProgram export load_exported",
    "steps.replay.compiled_function": "compile",
    "tools.debug.check": "check eager nan_guard",
    "tools.explain.program_folder": "load_programs",
    "tools.explain.forbidden": "CollectiveError RecompileError allow no_recompile",
    "tools.planning": "Plan plan warm",
    "tools.planning.clock": "describe_gpu",
    "tools.profiler": "",
    "tools.show.inspection": "inspect",
    "tools.show.pictures": "show_sharding",
    "tools.suggestions.suggest": "suggest",
    "tools.verification": "Verification verify",
}
# Packages by the names under which documents and scripts import them.
PATHS = {
    f"spmd.{name}": f"spmd.{package}.{name}"
    for package, names in {
        "jobs": "checkpoint data frameworks launching",
        "names": "compat dtensor torch_xla",
        "steps": "exporting replay",
        "tools": "planning profiler reports show suggestions verification",
    }.items()
    for name in names.split()
}
# Modules as they were called when pickles were written that name what is in them.
PICKLED = {
    "spmd.core.backend": "spmd.core.torch_state",
    "spmd.core.control": "spmd.loops",
    "spmd.core.lazy": "spmd.core.record",
    "spmd.core.sharding.spec": "spmd.core.sharding.value",
}
# Imported with the library: passes, and patches of what torch has imported.
AT_IMPORT = (
    "adaptive",
    "jobs.checkpoint_hooks",
    "jobs.launching.process_group",
    "parallel",
    "steps.exported_graphs",
)
# Imported when another module is; a function gets that module.
WHEN_IMPORTED = {
    "torch._dynamo": "steps.dynamo.join_compiler",
    "torch.distributed.fsdp": "names.torch_words:change",
    "torch.distributed.tensor": "names.torch_words:change",
    "torch.distributed.tensor.parallel": "names.torch_words:change",
    "transformers.generation.utils": "steps.decoding.generation",
}
# The modules that print a plan, with rich and with jinja2: a process that prints none needs
# neither.
VIEWS = {"table": "spmd.tools.reports.table", "page": "spmd.tools.reports.page"}
# Functions that join the points of the core, always or by a flag, imported at the first use of the
# device: torch's profiler must not see an import in a step, as it reads names of code that is freed
# after it.
JOINS: tuple[tuple[str, list[Any], str], ...] = (
    ("", points.while_compiling, "tools.explain.status:while_compiling"),
    ("", points.names_of, "tools.explain.held_names:held_name"),
    ("", points.before_recorded_run, "tools.explain.waiting_device:note_run"),
    ("", points.before_run, "tools.explain.idle_devices:note_program"),
    ("", points.before_recorded_run, "tools.explain.idle_devices:note_batch"),
    ("", points.on_launch, "tools.explain.waiting_device:note_launched"),
    ("", points.after_read, "tools.explain.step_hints:note_read"),
    ("", points.after_read, "tools.explain.waiting_device:note_read"),
    ("", points.after_wait, "tools.explain.waiting_device:note_read"),
    ("", points.after_fallback, "tools.explain.step_hints:note_fallback"),
    ("record_modules", points.on_schedule, "steps.decoding.module_calls:note_run"),
    ("replay_steps", points.on_schedule, "steps.segments.segment_calls:note_run"),
    ("module_paths", points.noted_by, "tools.explain.module_paths:note"),
    ("module_paths", points.before_recorded_run, "tools.explain.module_paths:note_run"),
    ("graphs_file", points.after_compiling, "tools.explain.graph_text:append_to_file"),
    ("hints", points.after_compiling, "tools.explain.step_hints:note_compile"),
    ("print_graphs", points.after_pass, "tools.explain.graph_text:print_graph"),
    ("hints", points.before_run, "tools.explain.step_hints:note_run"),
)
PROGRAM_READERS = {
    "facts": "tools.hlo.program_facts:facts_of",
    "tables": "tools.hlo.program_facts:tables_of",
    "difference": "tools.explain.difference:described",
}

_modules = {
    name: module
    for module, names in NAMES.items()
    for name in names.split() or [module.rpartition(".")[2]]
}


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(f"spmd.{package}") is not None
    except ModuleNotFoundError:  # how a finder may say that there is none
        return False


_installed = set(filter(_is_installed, ("adaptive", "jobs", "names", "parallel", "steps", "tools")))


def is_here(module: str) -> bool:
    """True if the package of a module is installed."""
    return module.partition(".")[0] in _installed


def _import(path: str, module: ModuleType) -> None:
    value = pkgutil.resolve_name(f"spmd.{path}")
    if ":" in path:
        value(module)


def _add_views(report: ModuleType) -> None:
    report.VIEWS.update(
        {name: functools.partial(importlib.import_module, path) for name, path in VIEWS.items()}
    )


def _join_points() -> None:
    for name, path in PROGRAM_READERS.items():
        if is_here(path):
            setattr(points.PROGRAM_READERS, name, pkgutil.resolve_name(f"spmd.{path}"))
    for flag, point, path in JOINS:
        if is_here(path):
            points.join_while(flag, point, pkgutil.resolve_name(f"spmd.{path}"))


class _Later:
    """A module that is imported when something of it is needed."""

    def __init__(self, path: str):
        self._path = path

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(f"spmd.{self._path}"), name)


def _join() -> None:
    """Joins what is installed to the core and to torch."""
    paths = {name: path for name, path in PATHS.items() if is_here(path.removeprefix("spmd."))}
    sys.meta_path.insert(0, Aliases(paths | PICKLED))
    points.AT_FIRST_USE.append(_join_points)
    if is_here("tools"):  # where there are several processes
        processes.comparisons.append(_Later("tools.processes.agreement"))
    for module in AT_IMPORT:
        if is_here(module):
            importlib.import_module(f"spmd.{module}")
    for imported, module in WHEN_IMPORTED.items():
        if is_here(module):
            patch_when_imported(imported, functools.partial(_import, module), f"spmd.{module}")
    patch_when_imported("spmd.tools.planning.report", _add_views, "spmd.tools.reports")
    if variables.names_xla_for_frameworks() and is_here("jobs"):
        importlib.import_module("spmd.jobs.frameworks.choice").use()


def __dir__() -> list[str]:
    # Without the folders and files that the package is made of.
    names = (
        name
        for name, value in vars(sys.modules["spmd"]).items()
        if not isinstance(value, ModuleType)
    )
    return sorted({"checkpoint_policies", "manual", "metrics", *names, *_modules})


def __getattr__(name: str) -> Any:
    if name == "__all__":  # `from spmd import *` takes these names, too
        return [name for name in __dir__() if not name.startswith("_")]
    module = _modules.get(name)
    if module is None:
        raise missing("spmd", name, sys._getframe(1))
    if not is_here(module):
        raise ImportError(
            f"spmd.{name} is of the package spmd.{module.partition('.')[0]}, which is not installed"
        )
    value = importlib.import_module(f"spmd.{module}")
    if name in NAMES[module].split():
        value = getattr(value, name)
    setattr(sys.modules["spmd"], name, value)
    return value


_join()
