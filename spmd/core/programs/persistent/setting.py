"""The dependencies of a compiled program besides its graph: versions, machine, devices, flags, our own source."""

import functools
import hashlib
import platform
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any

import jax
import jaxlib
import numpy as np
import torch

from ...base.config import compiler_flags, config
from ...base.jax_private import trace_context, xla_client
from ...sharding.partitioner import compiler_context

_PLAIN = (bool, int, str, Enum, NoneType)
_PACKAGE = Path(__file__).resolve().parents[2]


def setting(device_ids: tuple[int, ...]) -> dict[str, str]:
    """Returns, by name, all that a program over these devices depends on besides its graph."""
    with compiler_context():
        traced = [repr(value) for value in trace_context() if isinstance(value, _PLAIN)]
    return {
        **_fixed(),
        "devices": ",".join(map(str, device_ids)),
        "process": process(),
        "check_shardings": str(config.check_shardings),
        "flags": _digest((compiler_flags(), traced, sorted((name, str(v)) for name, v in jax.config.values.items()))),
    }


def process() -> str:
    """Returns the number of this process among several, each of which has executables of its own; "" for one."""
    return f"process_{jax.process_index()}_of_{jax.process_count()}" if jax.process_count() > 1 else ""


def readable() -> dict[str, Any]:
    """Returns, by name, what all programs of this process depend on, as text to compare with another process's."""
    flags = zip(("XLA_FLAGS", "LIBTPU_INIT_ARGS"), map(str, compiler_flags()), strict=True)
    with compiler_context():
        options = {f"jax_{name.removeprefix('jax_')}": str(value) for name, value in jax.config.values.items()}
    devices = {"devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}"}
    ours = {"check_shardings": str(config.check_shardings), "processes": str(jax.process_count())}
    return {**devices, **_fixed(), **ours, **dict(flags), **options}


@functools.cache
def _fixed() -> dict[str, str]:
    """Returns the entries that stay the same in a process whose devices have started."""
    client = jax.devices()[0].client
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "platform": f"{client.platform} {client.platform_version}",
        "topology": str(xla_client.get_topology_for_devices(jax.devices()).fingerprint()),
        "cpu": _digest(_cpu_features()),
        "source": _source(),
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _cpu_features() -> str:
    """Returns the processor and the features of its kind, if the system lists them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    kept = sorted({line for line in lines if line.partition("\t")[0].strip(": ") in names})
    return "\n".join([platform.machine(), platform.processor(), *kept])


def _source() -> str:
    """Returns the sha256 of this package's files."""
    files = sorted(_PACKAGE.rglob("*.py"))
    text = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        text.update(f"{file.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return text.hexdigest()
