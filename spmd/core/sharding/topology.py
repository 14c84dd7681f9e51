"""Devices by ordinal: 0 to n-1, of this machine or of a target that need not exist.

The only file that maps an ordinal to a jax device.

jax's own ids jump from one process to the next (2048 and up on CPU); an ordinal is a device's place
among all of them, sorted by process and then by id, and so the same number in every process. A
target is a name: "v5e:2x4" is a TPU slice as libtpu knows it, for which programs compile and do not
run; "h100:8" is a node of eight GPUs, for which CUDA's plugin of jax compiles; "cpu:2048" are so
many CPU devices in addition to those here; "2xv5e:2x4", "2xh100:8" and "2xcpu:8" are two slices,
with fast links inside of each and a network between them.
"""

import functools
import re
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies

from ..base import extras
from ..base.config import config, loading_plugins, prepare_cuda, prepare_libtpu
from ..base.jax_private import num_tpu_chips, xla_client
from ..base.state import PerThread, held

Target = str | None  # None: the devices of this machine, and of all processes with it


# The target whose devices stand for those of this machine, in the thread (see `standing_in`).
stand_in = PerThread[Target](None)


def standing_in(target: Target) -> AbstractContextManager[None]:
    """Makes this thread lower and compile for the devices of a target in place of this machine's,
    ordinal by ordinal. None: for this machine's."""
    return stand_in.held(target)


@functools.cache
def all_devices(target: Target = None) -> tuple[jax.Device, ...]:
    """Returns every device, by ordinal. Starts jax's backend unless a target is named.

    Raises ValueError for an unknown target.
    """
    if target is None or not is_simulated(target):
        # jax loads libtpu wherever it is installed, also on a machine with a GPU.
        prepare_libtpu(has_tpu=num_tpu_chips() > 0)
    with loading_plugins():
        return tuple(sorted(_devices(target), key=lambda device: (device.process_index, device.id)))


# The command that installs a platform's plugin of jax.
PLUGINS = {"cuda": 'pip install "jax[cuda12]"', "tpu": 'pip install "jax[tpu]"'}


def _devices_here() -> Sequence[jax.Device]:
    """Returns the devices of the platform that the environment names; raises RuntimeError, with
    advice, if it is missing."""
    platform = (jax.config.jax_platforms or "").partition(",")[0]  # type: ignore[attr-defined]
    try:
        return jax.devices()
    except (RuntimeError, AssertionError) as error:
        # jax raises AssertionError, without a message, for a plugin that is not installed.
        if platform in ("", "cpu"):
            raise
        reason = f" jax: {error}" if str(error) else ""
    raise RuntimeError(
        f"JAX_PLATFORMS or PJRT_DEVICE names {platform!r}, which is not here: the machine has "
        f"none, or jax has no plugin for it ({PLUGINS.get(platform, 'see its documentation')}). "
        "Leave the variable out, or compute on the CPU: PJRT_DEVICE=CPU, with spmd.simulate(8) "
        f"for eight devices.{reason}"
    )


def _devices(target: Target) -> Sequence[jax.Device]:
    """Returns the devices of a target: those here, simulated ones, described GPUs, or a TPU slice
    described by libtpu."""
    if target is None:
        return _devices_here()
    if is_simulated(target):
        client: Any = xla_client.make_cpu_client(num_devices=num_devices(target))
        return client.devices()
    num_slices, kind, name, num_in_slice = _parsed(target)
    if num_in_slice is not None and kind in GPU_DESCRIPTIONS:
        return _gpus(target, num_slices, num_in_slice)
    try:
        # A chip is one device, as jax has it on real ones: a v4's two cores would else be two.
        options: dict[str, Any] = {"chip_config_name": "megacore"} if kind == "v4" else {}
        if {*name.partition(":")[2].split("x")} == {"1"}:  # libtpu expects a host's usual four
            options["chips_per_host_bounds"] = (1, 1, 1)
        return topologies.get_topology_desc(name, "tpu", num_slices=num_slices, **options).devices
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f'Mesh: target {target!r} is not known: expected a TPU slice such as "v5e:2x4" (with '
            f"the package libtpu installed: {extras.install_command('tpu')}), several such as "
            f'"2xv5e:2x4", GPUs such as "h100:8" ({", ".join(sorted(GPU_DESCRIPTIONS))}; others by '
            f'spmd.describe_gpu), or simulated devices such as "cpu:2048". {error}'
        ) from error


def _gpus(target: str, num_nodes: int, gpus_per_node: int) -> Sequence[jax.Device]:
    """Returns the GPUs of this number of nodes, each a process and a slice."""
    prepare_cuda()
    text = GPU_DESCRIPTIONS[_parsed(target).kind]
    try:
        description = topologies.get_topology_desc(
            platform="cuda", target_config=text, topology=f"{num_nodes}x1x{gpus_per_node}"
        )
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise ValueError(
            f"Mesh: target {target!r} needs CUDA's plugin of jax, which compiles without a GPU or "
            f"a driver: {extras.install_command('gpu-plan')}. If it is installed, jax has given "
            f"it up: set JAX_PLATFORMS=cpu before jax starts, or import spmd before. {error}"
        ) from error
    return description.devices


# The GPUs of targets by their names, as XLA's compiler takes them (`spmd/mesh/gpus.py`).
GPU_DESCRIPTIONS: dict[str, str] = {}
_SLICES = re.compile(r"([1-9]\d*)x(?=[a-z])")


# The number of dims of the torus of chips, by kind.
_DIMS = {"v2": 2, "v3": 2, "v4": 3, "v5e": 2, "v5p": 3, "v6e": 2, "tpu7x": 3}


class _Parsed(NamedTuple):
    """A target's parts: the number of slices, the kind of their devices, the name of one slice; and
    of "cpu:8" and "h100:8" the number of devices in a slice."""

    slices: int
    kind: str
    name: str
    num_in_slice: int | None


def _parsed(target: str) -> _Parsed:
    """Returns the parts of a target. Raises TypeError, ValueError."""
    if not isinstance(target, str):
        raise TypeError(
            f'target: expected text such as "v5e:2x4" or "cpu:8", or None, got {target!r}'
        )
    match = _SLICES.match(target)
    num_slices, name = (1, target) if match is None else (int(match[1]), target[match.end() :])
    kind, _, chips = name.partition(":")
    if kind == "v5" or (
        kind in _DIMS and "x" in chips and len(chips.split("_")[0].split("x")) != _DIMS[kind]
    ):
        expected = "v5e or v5p" if kind == "v5" else f"{kind}:{'x'.join('2' * _DIMS[kind])}"
        raise ValueError(
            f"target: {target!r} is no TPU slice: expected {expected}, a number of chips for each "
            "dim"
        )
    is_counted = (kind == "cpu" or kind in GPU_DESCRIPTIONS) and chips.isdigit() and int(chips) > 0
    if is_counted and kind == "cpu":
        check_simulated(num_slices * int(chips), f"target: {target!r}")
    return _Parsed(num_slices, kind, name, int(chips) if is_counted else None)


def check_simulated(count: int, subject: str) -> None:
    """Raises ValueError for more CPU devices than one process can number: XLA would assign the rest
    to another process."""
    if count > 2048:
        raise ValueError(
            f"{subject} has {count} devices, and XLA simulates at most 2048 in a process; plan "
            'for a TPU slice of that size, such as "v5p:16x16x16"'
        )


def is_simulated(target: str) -> bool:
    """True if the devices of a target are CPU devices of this process."""
    return _parsed(target).kind == "cpu" and _parsed(target).num_in_slice is not None


def num_devices(target: Target) -> int:
    """Returns the number of devices, without creating simulated ones and GPUs."""
    if target is None or (parsed := _parsed(target)).num_in_slice is None:
        return len(all_devices(target))
    return parsed.slices * parsed.num_in_slice


def slices(target: Target = None) -> tuple[int, ...]:
    """Returns the slice of each device, by ordinal. Devices of a slice are linked fast; a network
    links the slices.

    TPUs report their slices; TPUs without a report are one slice, on however many hosts. Elsewhere
    the devices of one process are a slice. `config.num_slices` sets the number of slices, of equal
    size; ValueError if it does not divide the devices.
    """
    if target is not None and is_simulated(target):
        num_slices = _parsed(target).slices
    else:
        slice_indices = [_slice_of(device, target) for device in all_devices(target)]
        if target is not None or not config.num_slices:
            return tuple(slice_indices)
        num_slices = config.num_slices
    count = num_devices(target)
    if count % num_slices:
        raise ValueError(
            f"config.num_slices: {count} devices make no {num_slices} slices of equal size"
        )
    return tuple(i * num_slices // count for i in range(count))


def _slice_of(device: jax.Device, target: Target) -> int:
    # libtpu describes a single slice by devices without an index: a v5e:2x4 has two hosts and one
    # network of links. Of described GPUs the index is 0 in every node.
    if target is not None and device.platform == "gpu":
        return int(device.process_index)
    return getattr(device, "slice_index", 0 if device.platform == "tpu" else device.process_index)


@functools.cache
def _ordinals(target: Target) -> dict[jax.Device, int]:
    return {device: ordinal for ordinal, device in enumerate(all_devices(target))}


def ordinal(device: jax.Device, target: Target = None) -> int:
    """Returns the ordinal of a jax device."""
    return _ordinals(target)[device]


@functools.lru_cache(256)
def grid(ordinals: tuple[int, ...], shape: tuple[int, ...], target: Target = None) -> np.ndarray:
    """Returns jax devices in a grid, by their ordinals."""
    devices = all_devices(target)
    return np.array([devices[i] for i in ordinals]).reshape(shape)


class _Program(threading.local):
    """The program that this thread traces. order: its devices, where several meshes meet.
    manual_axes: inside a manual computation the axes along which one shard is traced; shardings are
    then over the other axes. shard: facts of that shard (`loops.manual_lowering`)."""

    order: tuple[int, ...] | None = None
    manual_axes: frozenset[str] = frozenset()
    shard: Any = None


program = _Program()


def program_devices(order: tuple[int, ...] | None) -> AbstractContextManager[None]:
    """Sets the device order of a program traced inside, if it has several meshes; None: one
    mesh."""
    return held(program, order=order)
