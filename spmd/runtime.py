"""The device and its barrier, as a script sees them."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax
import torch

from .annotate import on_device
from .closures import end_step
from .core import seed as seeds
from .core.engine import barrier
from .core.lazy import annotate
from .core.lazy.tensor import XlaTensor
from .core.pjrt.devices import devices
from .core.pjrt.devices import simulate as simulate
from .core.sharding.topology import all_devices, slices


def device(index: int | None = None) -> torch.device:
    """The one logical device, `xla:0`, behind which all physical devices stand.

    Raises ValueError for another index than 0.

    >>> import spmd
    >>> spmd.device()
    device(type='xla', index=0)
    """
    if index not in (None, 0):
        raise ValueError(f"device: there is one logical device, xla:0; got index {index}")
    return torch.device("xla:0")


def device_ids() -> list[int]:
    """The ids of all physical devices: 0 to n-1, those of the first process first; what a `Mesh` is made of.

    >>> import spmd
    >>> 0 in spmd.device_ids()
    True
    """
    return list(range(len(devices())))


@dataclass(frozen=True)
class DeviceAttributes:
    """What a device is.

    Attributes:
        id: its id (`spmd.device_ids`). name: as PyTorch/XLA names it, "CPU:0". kind: the hardware, "cpu", "TPU v5p",
            "NVIDIA H100 80GB HBM3". platform: "cpu", "gpu" or "tpu". process: whose it is.
        coords: its place in the torus of chips, and core: which core of its chip; None where there is none.
        slice_index: of which slice it is: devices that fast links join, simulated ones by `config.num_slices`.
        memory: its bytes, of which programs may take that much; None where the device does not tell (simulated ones
            share the host's).
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


def device_attributes(device_id: int, *, target: str | None = None) -> DeviceAttributes:
    """What a device is: hardware, place in the torus, process, slice, memory.

    Args:
        device_id: its id, as in a `Mesh`. target: of devices that need not be here ("v5e:2x4", see `Mesh`).

    Raises ValueError for an id that there is not, TypeError for what is none.
    Source: `torch_xla.runtime.runtime_device_attributes`.

    >>> import spmd
    >>> spmd.device_attributes(0).name
    'CPU:0'
    """
    if not isinstance(device_id, int) or isinstance(device_id, bool):
        raise TypeError(f"device_attributes: expected the id of a device, got {device_id!r}; spmd.device_ids() has all")
    here = devices() if target is None else all_devices(target)
    if not 0 <= device_id < len(here):
        raise ValueError(f"device_attributes: there is no device {device_id}; there are {len(here)}, ids from 0 on")
    device: Any = here[device_id]
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
        slice_index=slices(target)[device_id],
        memory=memory.get("bytes_limit"),
    )


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What every device of all processes is, in the order of their ids, as dicts: of what is not known there is no key.

    Source: `torch_xla.runtime.global_runtime_device_attributes`.

    >>> import spmd
    >>> spmd.runtime.global_runtime_device_attributes()[0]["name"]
    'CPU:0'
    """
    found = (dataclasses.asdict(device_attributes(i)) for i in device_ids())
    return [{name: value for name, value in one.items() if value is not None} for one in found]


def sync(wait: bool = False) -> None:
    """The barrier: runs what this thread has recorded since the last one, as one program, and returns while it runs.

    Args:
        wait: return only when the devices are done.

    What other threads have recorded runs where that needs it, or where they have ended. Initial values of parameters
    and buffers run first, in a program of their own; last the closures of
    `add_step_closure`. An error of XLA names the op and the
    user's line that made it. Source: `torch_xla.sync`.

    >>> import torch, spmd
    >>> x = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    """
    barrier.sync(wait=wait)
    end_step()


def mark_step(wait: bool = False) -> None:
    """`sync` under the name that older PyTorch/XLA scripts use."""
    sync(wait=wait)


def manual_seed(seed: int) -> None:
    """Seeds the device's random stream only; `torch.manual_seed` seeds it together with the CPU's."""
    seeds.manual_seed(seed)


def get_stablehlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The StableHLO of what is recorded, with its sharding attributes, before XLA has seen it; nothing runs.

    Args:
        tensors: the values wanted, views and data too (of data it is a program that returns its argument); all that is
            pending when None.

    Returns "" where nothing is pending. Raises TypeError for a tensor that is not on xla, ValueError for values on
    different devices, which no one program has. Source: `torch_xla.core.xla_model.get_stablehlo`.

    >>> import torch, spmd
    >>> "stablehlo.add" in spmd.get_stablehlo([torch.ones(2, device="xla") + 1])
    True
    """
    return barrier.stablehlo(_on_device(tensors, "get_stablehlo"))


def get_hlo(tensors: Iterable[torch.Tensor] | None = None) -> str:
    """The HLO of the same as XLA has partitioned and optimised it: one device's program. Compiled, and not run.

    What is compiled for it is neither kept nor in the ledger; the barrier compiles anew.

    Args, result and errors: as of `get_stablehlo`. Source: `jax.stages.Compiled.as_text`.

    >>> import torch, spmd
    >>> spmd.get_hlo([torch.ones(2, device="xla") + 1]).startswith("HloModule")
    True
    """
    return barrier.hlo(_on_device(tensors, "get_hlo"))


def _on_device(tensors: Iterable[torch.Tensor] | None, caller: str) -> list[XlaTensor] | None:
    if isinstance(tensors, torch.Tensor):
        raise TypeError(f"{caller}: expected a list of tensors, got one; write {caller}([tensor])")
    found = None if tensors is None else list(tensors)
    for tensor in found or ():
        if not isinstance(tensor, XlaTensor):
            raise TypeError(f"{caller}: expected tensors on xla, got one on {getattr(tensor, 'device', type(tensor))}")
    return found  # type: ignore[return-value]


def residence(tensor: torch.Tensor) -> str:
    """Where a tensor's data is, without touching it; of a view where its base's is.

    Returns:
        "host": on the CPU, to be uploaded at its first use. "pending": recorded, to be computed at the next barrier.
        "devices": in the devices' memory, or where a program that runs will put it (`get_sharding` says which memory).
        "abstract": nowhere, it is only planned with. "lost": its program failed, and the next read says why.

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
    return annotate.residence(on_device(tensor, "residence")._cell.value)
