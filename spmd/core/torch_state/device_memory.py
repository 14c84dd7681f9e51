"""The memory that the devices hold, summed over all physical devices of this process, as
`torch.xla` reports it.

On GPU and TPU these are the runtime's figures. The CPU's runtime has none: there the live arrays
are added up, and a peak is the most that any of these calls has seen.
"""

import math
import os
from collections import OrderedDict
from typing import Any

import jax
from torch.types import Device

from ..graph.buffer_leases import bytes_here
from ..run.pjrt.devices import devices
from ..sharding.value import DEVICE, memory_of

_peak = 0  # the most bytes that a call has seen since the last reset
_runtime_peak_at_reset = 0


def _stats() -> list[dict[str, int]] | None:
    """Returns the runtime's figures for each device of this process; None where it has none."""
    local = jax.local_devices() if devices() else []
    stats = [device.memory_stats() for device in local]
    return stats if all(stats) else None  # one device without figures has none for all


def _runtime_peak() -> int:
    return sum(device.get("peak_bytes_in_use", 0) for device in _stats() or ())


def memory_allocated(device: Device = None) -> int:
    """Returns the bytes of live buffers in device memory, a replicated one counted on each of its
    devices."""
    global _peak
    stats = _stats()
    if stats is not None:
        in_use = sum(device["bytes_in_use"] for device in stats)
    else:
        # Offloaded state is the host's memory, and would hide what offloading saves.
        in_use = sum(
            bytes_here(array)
            for array in jax.live_arrays()
            if not array.is_deleted() and memory_of(array.sharding) == DEVICE
        )
    _peak = max(_peak, in_use)
    return in_use


def max_memory_allocated(device: Device = None) -> int:
    """Returns the most bytes since `reset_peak_memory_stats`; on the CPU the most that any of these
    calls has seen."""
    # A runtime's peak counts only if it has grown since the reset.
    peak, in_use = _runtime_peak(), memory_allocated()
    return max(_peak, in_use, peak if peak > _runtime_peak_at_reset else 0)


def free_bytes() -> float:
    """Returns the bytes of device memory that no buffer takes; infinite where the runtime does not
    report them."""
    stats = _stats()
    if stats is None:
        return math.inf
    return sum(max(device.get("bytes_limit", 0) - device["bytes_in_use"], 0) for device in stats)


def memory_reserved(device: Device = None) -> int:
    """Returns the bytes that the runtime's allocator holds; if it does not report them, the bytes
    of live buffers."""
    stats = _stats()
    if stats is None:
        return memory_allocated()
    return sum(max(device.get("pool_bytes", 0), device["bytes_in_use"]) for device in stats)


def max_memory_reserved(device: Device = None) -> int:
    """Returns the known peak of `memory_reserved`, at least `max_memory_allocated`."""
    return max(memory_reserved(), max_memory_allocated())


def reset_peak_memory_stats(device: Device = None) -> None:
    """Starts the peaks again.

    A runtime's own peak cannot be reset: it is returned once it has been passed.
    """
    global _peak, _runtime_peak_at_reset
    _peak, _runtime_peak_at_reset = 0, _runtime_peak()


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Does nothing: only peaks are accumulated (see `reset_peak_memory_stats`)."""


def nested_stats() -> dict[str, Any]:
    """Returns the figures in the nesting of `torch.accelerator.memory_stats`."""
    allocated = {"current": memory_allocated(), "peak": max_memory_allocated()}
    reserved = {"current": memory_reserved(), "peak": max_memory_reserved()}
    return {"allocated_bytes": {"all": allocated}, "reserved_bytes": {"all": reserved}}


def memory_stats(device: Device = None) -> "OrderedDict[str, int]":
    """Returns figures by torch's names: `allocated_bytes.all.current`, `.peak`,
    `reserved_bytes.all.current`, ..."""
    return OrderedDict(
        (f"{name}.all.{figure}", value)
        for name, pools in nested_stats().items()
        for figure, value in pools["all"].items()
    )


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Returns the bytes (free, in all) of the devices; of the machine's memory where they are
    simulated on it."""
    stats = _stats()
    if stats is None:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
        has_available = "SC_AVPHYS_PAGES" in os.sysconf_names
        return (
            page * os.sysconf("SC_AVPHYS_PAGES")
            if has_available
            else max(total - memory_allocated(), 0)
        ), total
    total = sum(device.get("bytes_limit", 0) for device in stats)
    return max(total - sum(device["bytes_in_use"] for device in stats), 0), total


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """Returns the figures as text."""
    free, total = mem_get_info()
    lines = [f"{name}: {value:,} B" for name, value in memory_stats().items()]
    return "\n".join([*lines, f"free: {free:,} B of {total:,} B"])


def empty_cache() -> None:
    """Does nothing: a buffer is freed with its last tensor, and the runtime's allocator may keep
    its memory."""


def ipc_collect() -> None:
    """Does nothing: no device memory is shared between processes."""
