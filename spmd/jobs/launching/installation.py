"""The installation of this library as it is on this machine: versions, devices, cache, limits, and
what clashes."""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import torch
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from ...core import (
    MISCOMPILES,
    OTHER_OWNERS,
    config,
    extras,
    hardware,
    persistent,
    topology,
    variables,
)
from ...mesh.hints import did_you_mean

OK, NOTE, WRONG = "ok", "note", "WRONG"
_ACCELERATORS = {"/dev/nvidia0": "cuda", "/dev/accel0": "tpu"}
_FEW_FILES = 4096


class Remark(NamedTuple):
    """One line of the report: ok, note or WRONG; its subject; what was found, and what to do about
    it."""

    mark: str
    subject: str
    words: str


def findings() -> Iterator[Remark]:
    """Yields what there is to say; starts the device."""
    for find in (
        _versions,
        _extras,
        _clashes,
        _variables,
        _devices,
        _miscompiles,
        _cache,
        _limits,
        _step,
    ):
        yield from find()


def report(print_line: Callable[[str], object] = print) -> int:
    """Prints the findings, a line each; returns the exit status: 1 where something is wrong."""
    status = 0
    for mark, subject, words in findings():
        print_line(f"{mark:<6}{subject:<11} {words}")
        status |= mark == WRONG
    return int(status)


def _numbers(version: str | None) -> tuple[int, ...]:
    return Version(version or "0").release


def _fits(version: str | None, ranges: SpecifierSet) -> bool:
    return version is not None and ranges.contains(version, prereleases=True)


def _versions() -> Iterator[Remark]:
    about = importlib.metadata.metadata(extras.NAME)
    python = platform.python_version()
    python_versions = about["Requires-Python"]
    mark = OK if _fits(python, SpecifierSet(python_versions)) else WRONG
    yield Remark(mark, "Python", f"{python}, expected {python_versions}; {sys.executable}")
    for requirement in extras.requirements(extras.NAME):
        version = _installed(requirement.name)
        mark = OK if _fits(version, requirement.specifier) else WRONG
        yield Remark(
            mark,
            requirement.name,
            f"{version or 'is not installed'}, expected {requirement.specifier}",
        )
    if _numbers(jax.__version__) != _numbers(_installed("jaxlib")):
        words = f"jax is {jax.__version__}; jax's own releases go with a jaxlib of the same number"
        yield Remark(NOTE, "jaxlib", words)
    yield Remark(OK, extras.NAME, f"{about['Version']} at {Path(__file__).parents[3]}")


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _lacking(name: str, extra: str, visited: set[tuple[str, str]]) -> Iterator[str]:
    """The distributions that are missing for an extra, those of the extras that it requires
    included (`jax[tpu]`)."""
    if (name, extra) in visited:
        return
    visited.add((name, extra))
    for requirement in extras.requirements(name, extra):
        version = _installed(requirement.name)
        if version is None:
            yield requirement.name
        elif not _fits(version, requirement.specifier):
            yield f"{requirement.name} {requirement.specifier} (here is {version})"
        else:
            for nested in sorted(requirement.extras):
                yield from _lacking(requirement.name, nested, visited)


def _extras() -> Iterator[Remark]:
    provided = {*(importlib.metadata.metadata(extras.NAME).get_all("Provides-Extra") or ())} - {
        "dev",
        "docs",
        "test",
    }
    lacking = {
        extra: list(dict.fromkeys(_lacking(extras.NAME, extra, set())))
        for extra in sorted(provided)
    }
    yield Remark(
        OK,
        "extras",
        f"complete: {', '.join(extra for extra in lacking if not lacking[extra]) or 'none'}",
    )
    for extra in filter(lacking.get, lacking):
        yield Remark(
            NOTE,
            "extras",
            f"{extra} lacks {', '.join(lacking[extra])}: {extras.install_command(extra)}",
        )


def _clashes() -> Iterator[Remark]:
    words = (
        "is installed and claims torch's one XLA device, too: a process imports it or spmd, not "
        "both"
    )
    for name in filter(importlib.util.find_spec, OTHER_OWNERS):
        yield Remark(NOTE, name, words)


def _variables() -> Iterator[Remark]:
    for variable, value in variables.known_variables().items():
        yield Remark(OK, "variable", f"{variable}={value}")
    for variable, flags in variables.unknown_variables().items():
        yield Remark(WRONG, "variable", f"{variable} sets nothing{did_you_mean(variable, flags)}")


def _devices() -> Iterator[Remark]:
    present = hardware.devices()
    first = present[0]
    memory = (first.memory_stats() or {}).get("bytes_limit")
    size = f", {memory / 2**30:,.0f} GiB each" if memory else ""
    yield Remark(OK, "devices", f"{len(present)} x {first.device_kind} ({first.platform}){size}")
    for path, kind in _ACCELERATORS.items():
        if Path(path).exists() and first.platform == "cpu":
            yield Remark(
                NOTE,
                "devices",
                f"{path} is here, and jax has no plugin for {kind}: {topology.PLUGINS[kind]}",
            )
    for plugin in ("jax-cuda12-plugin", "jax-cuda13-plugin"):
        version = _installed(plugin)
        if version is not None and _numbers(version) != _numbers(jax.__version__):
            yield Remark(
                WRONG, plugin, f"is {version}, jax is {jax.__version__}: they must be equal"
            )


def _miscompiles() -> Iterator[Remark]:
    platform = hardware.devices()[0].platform
    for row in MISCOMPILES:
        if platform in row.platforms and row.is_here():
            yield Remark(
                NOTE,
                "miscompile",
                f"{row.name}: a program that has it is named in the compile log ({row})",
            )


def _cache() -> Iterator[Remark]:
    if not config.program_cache or not config.program_cache_dir:
        yield Remark(
            NOTE,
            "cache",
            "is off: every start compiles (SPMD_PROGRAM_CACHE, SPMD_PROGRAM_CACHE_DIR)",
        )
        return
    folder = Path(config.program_cache_dir).expanduser()
    if not folder.is_dir():
        yield Remark(OK, "cache", f"{folder}, which the first compilation makes")
        return
    if hasattr(os, "geteuid") and not persistent.is_private(folder.stat()):
        yield Remark(
            WRONG,
            "cache",
            f"{folder} is not used: other users may enter it, or it is another's; chmod 700",
        )
        return
    sizes = [path.stat().st_size for path in folder.rglob("*.program")]
    free = shutil.disk_usage(folder).free
    words = (
        f"{folder}: {len(sizes)} programs, {sum(sizes) / 2**20:,.0f} of "
        f"{config.program_cache_bytes / 2**20:,.0f} MiB"
    )
    yield Remark(OK if free > 1 << 30 else NOTE, "cache", f"{words}; {free / 2**30:,.1f} GiB free")


def _limits() -> Iterator[Remark]:
    memory = hardware.host_memory()
    if memory is not None:
        yield Remark(
            OK, "memory", f"{memory / 2**30:,.1f} GiB for CPU devices, swap and limits included"
        )
    if hardware.resource is not None:
        soft, hard = hardware.resource.getrlimit(hardware.resource.RLIMIT_NOFILE)
        few = 0 <= soft < _FEW_FILES
        advice = f"; loaders with many workers need more: ulimit -n {hard}" if few else ""
        yield Remark(NOTE if few else OK, "open files", f"{soft}{advice}")


def _step() -> Iterator[Remark]:
    """A gradient on the device, against torch on the CPU."""
    x = torch.linspace(-1, 1, 12).view(3, 4)
    grads = []
    for device in ("cpu", "xla"):
        tensor = x.detach().clone().to(device).requires_grad_()
        (tensor @ tensor.T).tanh().sum().backward()
        assert tensor.grad is not None
        grads.append(tensor.grad.cpu())
    error = (grads[0] - grads[1]).abs().max().item()
    yield Remark(
        OK if error < 1e-2 else WRONG, "a step", f"runs; its gradient is the CPU's to {error:.0e}"
    )
