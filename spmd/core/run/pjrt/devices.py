"""PJRT devices: the number that this process sees, and their memory."""

import functools
import os
import pathlib
import threading

import jax

from ...base import forking
from ...base.config import (
    add_xla_defaults,
    forced_cpu_devices,
    prepare_cuda,
    requested_hardware,
    reset_pool_width,
    set_pool_width,
)
from ...base.jax_private import backends_are_initialized
from ...graph.source import ends_at_user_line
from ...sharding.topology import all_devices
from ...sharding.value import Sharding
from . import processes

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

_prepare_lock = forking.survives_fork(threading.Lock())
_prepared = False
is_running = backends_are_initialized


def use_cpu_devices(count: int) -> None:
    """Gives this process `count` CPU devices in place of the environment's; call it before the
    first use of a device."""
    global _prepared
    _prepared = True
    # XLA reads its flags once, when the backend starts.
    add_xla_defaults()
    set_pool_width(count)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def prepare() -> None:
    """Applies PJRT_DEVICE, CPU_NUM_DEVICES and GPU_NUM_DEVICES once, unless `use_cpu_devices` or a
    running backend has decided already."""
    global _prepared
    with _prepare_lock:
        # A backend that runs has its devices; changing the settings now would do nothing, in
        # silence.
        if _prepared or is_running():
            _prepared = True
            return
        add_xla_defaults()
        prepare_cuda()
        # The variables of PyTorch/XLA, which its users' scripts and launchers set.
        hardware = requested_hardware()
        if hardware.platform is not None:
            jax.config.update("jax_platforms", hardware.platform)
        if hardware.num_cpu_devices is not None:
            jax.config.update("jax_num_cpu_devices", hardware.num_cpu_devices)
        if hardware.gpus is not None:
            jax.config.update("jax_cuda_visible_devices", ",".join(map(str, hardware.gpus)))
        num_devices = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # -1: as in XLA_FLAGS
        set_pool_width(num_devices if num_devices > 0 else forced_cpu_devices() or 1)
        _prepared = True


@ends_at_user_line
def devices() -> tuple[jax.Device, ...]:
    """Returns every device of every process, in the order of their ordinals."""
    forking.check()
    prepare()
    pjrt_devices = all_devices()
    # The thread pool has its size by now; a child process must not inherit the setting.
    reset_pool_width()
    return pjrt_devices


def default_sharding() -> Sharding:
    """Returns the sharding of an array without a mesh: the first device; with several processes,
    replicated on all."""
    if not _prepared:
        prepare()
    # All processes launch the same programs, so that a program spans the devices of all.
    return _everywhere() if processes.several() else Sharding.single(0)


@functools.cache
def _everywhere() -> Sharding:
    """Returns the sharding of an array that is replicated over the devices of all processes."""
    ids = tuple(range(len(all_devices())))
    return Sharding.of(ids, (len(ids),), ("devices",))


@functools.cache
def host_memory() -> int | None:
    """Returns the bytes that all CPU devices of this process share, swap and the process's own
    limit included.

    None for other devices (their clients raise when memory runs out), and if the system does not
    report its memory.
    """
    if jax.default_backend() != "cpu" or not hasattr(os, "sysconf"):
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _swap_bytes()
    process = resource.getrlimit(resource.RLIMIT_AS)[0] if resource is not None else -1
    return machine if process < 0 else min(machine, process)


def _swap_bytes() -> int:
    """Returns the size of the machine's swap; 0 if the system does not report it."""
    meminfo = pathlib.Path("/proc/meminfo")
    if not meminfo.exists():
        return 0
    sizes = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(sizes.get("SwapTotal", "0 kB").split()[0]) * 1024
