"""PJRT devices: the number that this process sees, and their memory."""

import functools
import os
import pathlib
import threading

import jax

from ..base import forking
from ..base.config import (
    add_xla_defaults,
    config,
    forced_cpu_devices,
    prepare_cuda,
    requested_hardware,
    reset_pool_width,
    set_pool_width,
)
from ..base.jax_private import backends_are_initialized
from ..sharding.topology import all_devices
from ..sharding.value import Sharding
from . import processes

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

_prepare_lock = forking.survives_fork(threading.Lock())
_prepared = False


def simulate(num_devices: int, *, slices: int = 1) -> None:
    """Makes this process see `num_devices` CPU devices, so that any mesh can be tried on one machine.

    Must run before the first use of a device. Of several processes that have joined (`spmd.initialize`, `python -m spmd
    launch`) each gets its part of the devices, which must be what `launch --devices` has given it, if that was given.
    slices: the devices stand for so many slices of equal size, for a `HybridMesh`. Raises ValueError for a count below
    1 or one that the slices or the processes do not divide or that gives a process another number than it has, and
    RuntimeError when JAX's backend is already up with another number of devices; a repeated call with the same count
    does nothing.

    >>> import spmd
    >>> spmd.simulate(8)
    """
    global _prepared
    if not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"simulate: expected a number of devices of 1 or more, got {num_devices!r}")
    if not isinstance(slices, int) or slices < 1 or num_devices % slices:
        raise ValueError(f"simulate: {num_devices} devices make no {slices!r} slices of equal size")
    if num_devices % processes.count():
        raise ValueError(f"simulate: {num_devices} devices cannot be split over {processes.count()} processes")
    if backends_are_initialized():
        present = len(jax.devices())
        if present == num_devices and jax.default_backend() == "cpu":
            config.num_slices = slices if slices > 1 else 0
            return
        raise RuntimeError(
            f"simulate({num_devices}) came too late: JAX is already running with {present} {jax.default_backend()} "
            "device(s). Call spmd.simulate before the first tensor, mesh or jax.devices() of the process."
        )
    own = num_devices // processes.count()
    given = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # -1: not given
    if processes.several() and given not in (-1, own):
        raise ValueError(
            f"simulate({num_devices}) counts the devices of all {processes.count()} processes, {own} each, and each "
            f"has {given} already (launch --devices, CPU_NUM_DEVICES, or an earlier call): leave one of the two out, "
            f"or call spmd.simulate({given * processes.count()})"
        )
    _prepared = True
    config.num_slices = slices if slices > 1 else 0
    add_xla_defaults()
    set_pool_width(own)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", own)


def is_running() -> bool:
    """True if jax's backend has started."""
    return backends_are_initialized()


def prepare() -> None:
    """Applies PJRT_DEVICE, CPU_NUM_DEVICES and GPU_NUM_DEVICES once, unless `simulate` or a running backend has already
    decided."""
    global _prepared
    with _prepare_lock:
        if _prepared or backends_are_initialized():
            _prepared = True
            return
        add_xla_defaults()
        prepare_cuda()
        hardware = requested_hardware()
        if hardware.platform is not None:
            jax.config.update("jax_platforms", hardware.platform)
        if hardware.num_cpu_devices is not None:
            jax.config.update("jax_num_cpu_devices", hardware.num_cpu_devices)
        if hardware.gpus is not None:
            jax.config.update("jax_cuda_visible_devices", ",".join(map(str, hardware.gpus)))
        given = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # -1: as in XLA_FLAGS
        set_pool_width(given if given > 0 else forced_cpu_devices() or 1)
        _prepared = True


def devices() -> tuple[jax.Device, ...]:
    """Returns every device of every process, in the order of their ordinals."""
    forking.check()
    prepare()
    found = all_devices()
    reset_pool_width()
    return found


def default_sharding() -> Sharding:
    """Returns the sharding of an array without a mesh: the first device; with several processes, replicated on all."""
    if not _prepared:
        prepare()
    return _everywhere() if processes.several() else Sharding.single(0)


@functools.cache
def _everywhere() -> Sharding:
    ids = tuple(range(len(all_devices())))
    return Sharding.of(ids, (len(ids),), ("devices",))


@functools.cache
def host_memory() -> int | None:
    """Returns the bytes that all CPU devices of this process share, swap and the process's own limit included.

    None for other devices, whose clients raise at once where memory runs out, and where the system does not report it.
    """
    if jax.default_backend() != "cpu" or not hasattr(os, "sysconf"):
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + _swap_bytes()
    own = resource.getrlimit(resource.RLIMIT_AS)[0] if resource is not None else -1
    return machine if own < 0 else min(machine, own)


def _swap_bytes() -> int:
    meminfo = pathlib.Path("/proc/meminfo")
    if not meminfo.exists():
        return 0
    sizes = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(sizes.get("SwapTotal", "0 kB").split()[0]) * 1024
