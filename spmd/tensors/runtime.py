"""The device xla: its attributes, `sync`, and the text of recorded programs."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import torch

from ..core import XlaTensor, annotations, ends_at_user_line, hardware, storage_of, syncs, topology
from ..core import seed as seeds
from . import closures
from .annotate import on_device


@ends_at_user_line
def device(index: int | None = None) -> torch.device:
    """The logical device, `xla:0`, for all physical devices.

    Raises ValueError for another index than 0.

    >>> import spmd
    >>> spmd.device()
    device(type='xla', index=0)
    """
    if index not in (None, 0):
        raise ValueError(f"device: there is one logical device, xla:0; got index {index}")
    return torch.device("xla:0")


def device_ids() -> list[int]:
    """The ids of all physical devices, for a `Mesh`: 0 to n-1, those of the first process first.

    >>> import spmd
    >>> 0 in spmd.device_ids()
    True
    """
    return list(range(len(hardware.devices())))


@dataclass(frozen=True)
class DeviceAttributes:
    """The attributes of a device.

    Attributes:
        id: its id (`spmd.device_ids`). name: as PyTorch/XLA names it, "CPU:0". kind: the hardware,
            "cpu", "TPU v5p", "NVIDIA H100 80GB HBM3". platform: "cpu", "gpu" or "tpu". process: the
            index of its process.
        coords: its coordinates in the torus of chips, and core: its core on the chip; None where
            there is none.
        slice_index: the slice: devices that fast links join; for simulated devices by
            `config.num_slices`.
        memory: the bytes that programs may use; None where the device does not report them
            (simulated devices share the host's memory).

    >>> import spmd
    >>> spmd.torch_xla.device_attributes(7, target="2xcpu:4").slice_index
    1
    """

    id: int
    name: str
    kind: str
    platform: str
    process: int
    coords: tuple[int, ...] | None
    core: int | None
    slice_index: int
    memory: int | None


@ends_at_user_line
def device_attributes(device_id: int, *, target: str | None = None) -> DeviceAttributes:
    """The attributes of a device: hardware, coordinates in the torus, process, slice, memory.

    Args:
        device_id: its id, as in a `Mesh`. target: of devices that need not be present ("v5e:2x4",
            see `Mesh`).

    Raises ValueError for an unknown id, TypeError for another type than int.
    Source: `torch_xla.runtime.runtime_device_attributes`.

    >>> import spmd
    >>> spmd.torch_xla.device_attributes(0).name
    'CPU:0'
    """
    if not isinstance(device_id, int) or isinstance(device_id, bool):
        raise TypeError(
            f"device_attributes: expected the id of a device, got {device_id!r}; "
            "spmd.device_ids() has all"
        )
    devices = hardware.devices() if target is None else topology.all_devices(target)
    if not 0 <= device_id < len(devices):
        raise ValueError(
            f"device_attributes: there is no device {device_id}; there are {len(devices)}, ids "
            "from 0 on"
        )
    device: Any = devices[device_id]
    coords = getattr(device, "coords", None)
    is_own = target is None and device.process_index == jax.process_index()
    memory = (device.memory_stats() or {}) if is_own else {}
    return DeviceAttributes(
        id=device_id,
        name=f"{device.platform.upper()}:{device_id}",
        kind=device.device_kind,
        platform=device.platform,
        process=device.process_index,
        coords=None if coords is None else tuple(coords),
        core=getattr(device, "core_on_chip", None),
        slice_index=topology.slices(target)[device_id],
        memory=memory.get("bytes_limit"),
    )


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """The attributes of the devices of all processes, in the order of ids, as dicts without keys
    for unknown values.

    Source: `torch_xla.runtime.global_runtime_device_attributes`.

    >>> import spmd
    >>> spmd.tensors.runtime.global_runtime_device_attributes()[0]["name"]
    'CPU:0'
    """
    attributes = (dataclasses.asdict(device_attributes(i)) for i in device_ids())
    return [
        {name: value for name, value in facts.items() if value is not None} for facts in attributes
    ]


@ends_at_user_line
def sync(wait: bool = False) -> None:
    """Runs the ops that this thread has recorded since the last sync, as one program, and returns
    while it runs.

    Args:
        wait: return only when the devices are done.

    The ops of other threads run where this program needs their results, or where the threads have
    ended. Initial values of parameters and buffers run first, in a program of their own; the
    closures of `add_step_closure` last. An error of XLA names the op and the user's line that made
    it. Source: `torch_xla.sync`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    """
    if not isinstance(wait, bool):
        raise TypeError(
            f"sync: expected wait to be True or False, got {type(wait).__name__}; write "
            "spmd.sync(): it runs all"
        )
    syncs.sync(wait=wait)
    if closures.waiting or closures.running:
        closures.end_step()


@ends_at_user_line
def mark_step(wait: bool = False) -> None:
    """`sync` under the name that older PyTorch/XLA scripts use.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla") + 1
    >>> spmd.torch_xla.mark_step()
    >>> spmd.residence(x)
    'devices'
    """
    sync(wait=wait)


@ends_at_user_line
def manual_seed(seed: int) -> None:
    """Seeds the device's random stream only; `torch.manual_seed` seeds it together with the CPU's.

    >>> import torch, spmd
    >>> spmd.manual_seed(0)
    >>> first = torch.rand(2, device="xla")
    >>> spmd.manual_seed(0)
    >>> torch.equal(first, torch.rand(2, device="xla"))
    True
    """
    seeds.manual_seed(seed)


@ends_at_user_line
def get_stablehlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The StableHLO of recorded values, with its sharding attributes, before XLA's passes; nothing
    runs.

    Args:
        tensors: the values wanted, views and data too (for data it is a program that returns its
            argument); None: all pending values.

    Returns "" where nothing is pending. Raises TypeError for a tensor that is not on xla,
    ValueError for values on different devices, which one program cannot have. Source:
    `torch_xla.core.xla_model.get_stablehlo`.

    >>> import torch, spmd
    >>> "stablehlo.add" in spmd.get_stablehlo([torch.ones(2, device="xla") + 1])
    True
    """
    return syncs.stablehlo(_on_device(tensors, "get_stablehlo"))


@ends_at_user_line
def get_hlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The HLO of recorded values as XLA has partitioned and optimised it: one device's program.
    Compiled, and not run.

    The executable is neither kept nor in the compile log; the sync compiles again.

    Args, result and errors: as of `get_stablehlo`. Source: `jax.stages.Compiled.as_text`.

    >>> import torch, spmd
    >>> spmd.get_hlo([torch.ones(2, device="xla") + 1]).startswith("HloModule")
    True
    """
    return syncs.hlo(_on_device(tensors, "get_hlo"))


def _on_device(tensors: Iterable[torch.Tensor] | None, caller: str) -> list[XlaTensor] | None:
    if isinstance(tensors, torch.Tensor):
        raise TypeError(f"{caller}: expected a list of tensors, got one; write {caller}([tensor])")
    return None if tensors is None else [on_device(tensor, caller) for tensor in tensors]


@ends_at_user_line
def residence(tensor: torch.Tensor) -> str:
    """The location of a tensor's data, without a read of it; for a view that of its base.

    Returns:
        "host": on the CPU, to be uploaded at its first use. "pending": recorded, to be computed at
        the next sync. "devices": in the devices' memory, or to be put there by a running program
        (see `get_sharding` for the memory). "abstract": no data, in a plan. "lost": its program
        failed, and the next read raises an error with the reason.

    Raises TypeError for a tensor that is not on xla.

    >>> import torch, spmd
    >>> x = torch.ones(2).to("xla")
    >>> y = x + 1
    >>> spmd.residence(x), spmd.residence(y)
    ('host', 'pending')
    >>> spmd.sync()
    >>> spmd.residence(x), spmd.residence(y)
    ('devices', 'devices')
    """
    return annotations.residence(storage_of(on_device(tensor, "residence")).value)
