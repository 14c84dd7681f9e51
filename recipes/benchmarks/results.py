"""The figures of docs/benchmarks.md: commands run, and what they print kept in docs/results/.

A section's file has, for each command: the commit, the date, the machine, the versions, the code by
its hash, and the tables that were printed. `bench_all.py` is the command line.
"""

import ast
import datetime
import functools
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from recipes.benchmarks.sections import SECTIONS, Section

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "results"
_PACKAGES = ("torch", "jax", "jaxlib", "transformers", "libtpu")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Run = dict[str, Any]


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


def runs_of(name: str) -> list[Run]:
    """The kept runs of a section; empty where it never ran."""
    path = path_of(name)
    runs: list[Run] = json.loads(path.read_text())["runs"] if path.exists() else []
    return runs


def changed_since(name: str, run: Run) -> list[str]:
    """The paths of a section whose code is not that of a run."""
    return [path for path in SECTIONS[name].code if run["code"].get(path) != code_hash(path)]


# -- The code.


@functools.cache
def code_hash(path: str) -> str:
    """A hash of the syntax of the Python files at a path; docstrings, comments and format do not
    count."""
    place, digest = ROOT / path, hashlib.sha256()
    for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        digest.update(
            f"{file.relative_to(ROOT).as_posix()}\n{_syntax(_code(file.read_text()))}\n".encode()
        )
    return digest.hexdigest()[:12]


def _code(source: str) -> ast.Module:
    """The tree of a file without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return tree


def _syntax(value: object) -> str:
    """A tree as text; unlike `ast.dump`, it is the same in each Python: a field that is empty is
    left out."""
    if isinstance(value, ast.AST):
        fields = [
            f"{name}={_syntax(field)}"
            for name, field in ast.iter_fields(value)
            if field not in (None, [])
        ]
        return f"{type(value).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(_syntax, value))}]" if isinstance(value, list) else repr(value)


# -- A run.


def commit() -> str:
    """The commit of the checkout, by ten letters."""
    command = ["git", "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def hashes(section: Section) -> dict[str, str]:
    """The code of a section, by its hash."""
    return {path: code_hash(path) for path in section.code}


def machine() -> dict[str, Any]:
    """The processor, its cores, and the memory in GiB."""
    names = [
        line.partition(":")[2].strip()
        for line in _lines("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    name = names[0] if names else platform.processor() or platform.machine()
    return {"processor": name, "cores": os.cpu_count(), "memory": round(total)}


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def versions() -> dict[str, str]:
    installed = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    return {
        "python": platform.python_version(),
        **{name: installed[name] for name in _PACKAGES if name in installed},
    }


def run(section: Section, command: str) -> Run:
    """Runs a command, whose output goes through, and returns its figures; raises CalledProcessError
    if it fails."""
    module, *arguments = shlex.split(command)
    load, started, day = (
        os.getloadavg()[0],
        time.perf_counter(),
        datetime.datetime.now(datetime.UTC).date(),
    )
    with tempfile.TemporaryDirectory() as folder:
        notes = Path(folder) / "notes.json"
        noted = [
            sys.executable,
            "-m",
            "recipes.benchmarks.noted",
            str(notes),
            f"recipes.benchmarks.{module}",
        ]
        subprocess.run(
            [*noted, *arguments], cwd=ROOT, env={**os.environ, **section.settings}, check=True
        )
        printed = json.loads(notes.read_text())
    settings = [f"{name}={value}" for name, value in section.settings.items()]
    return {
        "command": " ".join([*settings, "python -m", f"recipes.benchmarks.{command}"]),
        "commit": commit(),
        "date": day.isoformat(),
        "seconds": round(time.perf_counter() - started),
        "load": round(load, 1),
        "machine": machine(),
        "versions": versions(),
        "code": hashes(section),
        **printed,
    }


def keep(name: str, runs: list[Run]) -> None:
    FOLDER.mkdir(exist_ok=True)
    path_of(name).write_text(
        json.dumps({"section": name, "runs": runs}, indent=1, ensure_ascii=False) + "\n"
    )
