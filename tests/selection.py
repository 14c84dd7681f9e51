"""The tests that `make test` runs (`--quick`) of those that `make test-all` runs: by marker, partitioner and commit.

A test is `long` where its marker or the table in `selected.py` says so; a sweep runs one share of seven, by the commit.
A test is `partitioned` where its programs are over a mesh: it asks for a fixture that makes one, or it names one of
`MESHES`, itself or by a helper in the tests. No other can differ between the partitioners, so that under Shardy no
other runs; and of these those whose name says so (`TestSharded`, `test_over_two_hosts`), whose marker names a promise,
`@pytest.mark.partitioned("gradients")`, or which `selected.py` lists under one. In the folders of the
library, of fsdp and of packages around it, where nearly all names would, the last two.
"""

import datetime
import functools
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from selected import LONG, PROMISED, SWEPT, names

import spmd

# Of these names a script uses one, if its programs are over more than one device.
MESHES = frozenset({
    "Mesh", "HybridMesh", "DeviceMesh", "init_device_mesh", "set_global_mesh", "mark_sharding", "shard_map",
    "fully_shard", "FullyShardedDataParallel", "SpmdFullyShardedDataParallel", "FSDP", "ShardingRules", "simulate",
})  # fmt: skip
SHARES = 7  # a sweep over torch's databases runs one of so many

_TESTS = Path(__file__).resolve().parent
_ALL_ARE_PARTITIONED = ("spmd", "fsdp", "jobs", "manual", "names", "steps", "tools")
_SAYS_SO = re.compile("shard|partition|mesh|device|host|fsdp|tensor", re.IGNORECASE)


def mark(item: pytest.Item) -> None:
    """Gives a test the markers that it has by its name and by what it does."""
    known = names(item.nodeid)
    if any(name in LONG for name in known):
        item.add_marker("long")
    promise = next((PROMISED[name] for name in known if name in PROMISED), None)
    if item.path.is_relative_to(_TESTS / "sweep") or not SWEPT.isdisjoint(known):
        item.add_marker("swept")
    if promise is not None:
        item.add_marker(pytest.mark.partitioned(promise))
    elif is_partitioned(item):
        item.add_marker("partitioned")


def is_partitioned(item: pytest.Item) -> bool:
    """True for a test whose programs are over a mesh."""
    if not isinstance(item, pytest.Function):
        return False
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return (
        any("mesh" in name for name in item.fixturenames)
        or any(isinstance(value, spmd.Mesh) for value in given)
        or _names_mesh(item.function, item.cls)
    )


@functools.cache
def _names_mesh(test: FunctionType, cls: type | None) -> bool:
    """Follows a test into the functions and classes of the tests that it names."""
    seen: set[int] = set()
    waiting: list[Any] = [test]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, spmd.Mesh):
            return True
        for function in _functions(value):
            used, texts = _constants(function.__code__)
            if used & MESHES or any(f"{name}(" in text for text in texts for name in MESHES):
                return True
            spaces = [function.__globals__, *([vars(cls)] if cls else [])]
            found = [space[name] for space in spaces for name in used & space.keys()]
            modules = [one for one in found if isinstance(one, ModuleType) and _is_ours(getattr(one, "__file__", None))]
            waiting += [*found, *(vars(m)[name] for m in modules for name in used & vars(m).keys())]
    return False


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions of the tests behind a value: itself, what it wraps, the methods of a class."""
    if isinstance(value, functools.partial):
        value = value.func
    for one in vars(value).values() if isinstance(value, type) and _is_ours(_file(value)) else [value]:
        one = getattr(one, "__wrapped__", getattr(one, "__func__", one))
        if isinstance(one, FunctionType) and _is_ours(one.__code__.co_filename):
            yield one


def _file(cls: type) -> str | None:
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def _is_ours(file: str | None) -> bool:
    return file is not None and Path(file).is_relative_to(_TESTS)


def _constants(code: CodeType) -> tuple[set[str], list[str]]:
    """The names and texts in a function and the functions inside of it."""
    used, texts = {*code.co_names}, []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _constants(constant)
            used |= inner[0]
            texts += inner[1]
        elif isinstance(constant, str):
            texts.append(constant)
    return used, texts


def share() -> int:
    """The share of the sweeps that this commit runs, by its id; where there is no git, by the day."""
    git = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=_TESTS, check=False)
    return int(git.stdout, 16) % SHARES if git.returncode == 0 else datetime.date.today().toordinal() % SHARES


def is_quick(item: pytest.Item, share: int, partitioner: str) -> bool:
    """True for a test that `make test` runs under a partitioner, with a share of the sweeps."""
    if item.get_closest_marker("long"):
        return False
    folder = item.path.relative_to(_TESTS).parts[0]
    if (
        item.get_closest_marker("swept")
        and hasattr(item, "callspec")
        and zlib.crc32(item.name.encode()) % SHARES != share
    ):
        return False
    if partitioner != "shardy":
        return True
    if hasattr(item, "callspec") and not {"gspmd", "shardy"}.isdisjoint(map(str, item.callspec.params.values())):
        return False  # it sets the partitioner itself, and ran under both
    marks = list(item.iter_markers("partitioned"))
    if any(mark.args for mark in marks):
        return True
    return bool(marks) and folder not in _ALL_ARE_PARTITIONED and bool(_SAYS_SO.search(item.nodeid.partition("::")[2]))


def quick(items: Iterable[pytest.Item], share: int, partitioner: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run, and those that do not."""
    chosen: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        chosen[not is_quick(item, share, partitioner)].append(item)
    return chosen
