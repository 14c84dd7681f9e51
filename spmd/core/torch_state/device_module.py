"""`torch.xla` and `torch.accelerator`: the functions that programs written for torch.cuda, and
torch itself, call.

There is one logical device, which stands for all physical ones; figures are totals.
"""

import contextlib
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..base import forking
from ..base import seed as seeds
from ..base.dtypes import TORCH_TO_NUMPY
from ..record.calls.naming import check_index, skipped_by_dynamo
from ..run import syncs
from ..run.pjrt.devices import devices
from . import device_memory as memory
from .streams import Event, Stream, StreamContext

# -- Devices ---------------------------------------------------------------------------------------


def is_available() -> bool:
    """Returns True: xla can be used wherever this library is imported."""
    return True


def is_initialized() -> bool:
    """Returns True in all but forked processes: xla may be used without a call of `init`."""
    return not forking.is_in_bad_fork()


def init() -> None:
    """Starts the physical devices, as the first use does otherwise."""
    devices()


def device_count() -> int:
    """Returns 1, the logical device. `spmd.device_ids()` has the physical ones."""
    return 1


def current_device() -> int:
    """Returns 0."""
    return 0


def set_device(device: torch.types.Device) -> None:
    """Accepts only xla:0."""
    check_index(device, "set_device")


class device(contextlib.nullcontext[None]):
    """A context in which xla:0 is the device, as it is outside."""

    def __init__(self, device: torch.types.Device):
        super().__init__()
        self.idx = check_index(device, "device")


class device_of(device):
    """A context in which the device is that of a tensor."""

    def __init__(self, obj: torch.Tensor):
        super().__init__(obj.device if obj.device.type == "xla" else None)


@dataclass(frozen=True)
class DeviceProperties:
    """The result of `get_device_properties`, for all physical devices together.

    name: of one of them. platform: "cpu", "cuda" or "tpu". total_memory: in bytes. major, minor:
    cuda's compute capability, else 0. multi_processor_count: cores of all devices, where the
    runtime reports them, else their number.
    """

    name: str
    platform: str
    num_devices: int
    total_memory: int
    major: int
    minor: int
    multi_processor_count: int


def get_device_name(device: torch.types.Device = None) -> str:
    """The kind of the physical devices, as PJRT names it ("cpu", "TPU v4", "NVIDIA H100")."""
    check_index(device, "get_device_name")
    return devices()[0].device_kind


def get_device_capability(device: torch.types.Device = None) -> tuple[int, int]:
    """cuda's (major, minor) on NVIDIA devices, (0, 0) on others."""
    check_index(device, "get_device_capability")
    major, _, minor = str(getattr(devices()[0], "compute_capability", "0.0")).partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def get_device_properties(device: torch.types.Device = None) -> DeviceProperties:
    """Name, memory and number of the physical devices."""
    chips, (major, minor) = devices(), get_device_capability(device)
    cores = sum(getattr(chip, "core_count", None) or 1 for chip in chips)
    _, total = memory.mem_get_info()
    return DeviceProperties(
        get_device_name(), chips[0].platform, len(chips), total, major, minor, cores
    )


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Returns True: XLA computes bfloat16 on every device."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that autocast may cast down to."""
    return [torch.bfloat16, torch.float16]


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """The functions that torch's C++ calls."""

    def is_available(self) -> bool:
        return True

    def has_primary_context(self, device_index: int) -> bool:
        return True

    is_built = is_available


# -- Synchronization -------------------------------------------------------------------------------


def synchronize(device: torch.types.Device = None) -> None:
    """Runs the pending ops and returns when the devices are done: `spmd.sync(wait=True)`."""
    check_index(device, "synchronize")
    syncs.sync(wait=True)


@skipped_by_dynamo
def current_stream(device: torch.types.Device = None) -> Stream:
    """Returns the device's one stream."""
    check_index(device, "current_stream")
    return Stream()


def set_stream(stream: torch.Stream) -> None:
    """Accepts any object of the one stream."""
    StreamContext(stream)


def is_current_stream_capturing() -> bool:
    """Returns False: there is no graph capture (see `spmd.sync`)."""
    return False


# -- Random numbers --------------------------------------------------------------------------------


def manual_seed(seed: int) -> None:
    """Seeds the device's stream of random numbers; `torch.manual_seed` does it too."""
    seeds.manual_seed(seed)


def seed() -> None:
    """Seeds the device's stream with a random number."""
    seeds.manual_seed(torch.Generator().seed())


def initial_seed() -> int:
    """The seed of the device's stream."""
    return seeds.get_state()[0] & (1 << 64) - 1


def get_rng_state(device: torch.types.Device = None) -> torch.Tensor:
    """Seed and number of draws so far, as an int64 CPU tensor; runs nothing."""
    check_index(device, "get_rng_state")
    return torch.tensor(seeds.get_state(), dtype=torch.int64, device="cpu")


def set_rng_state(new_state: torch.Tensor, device: torch.types.Device = None) -> None:
    """Restores the state that `get_rng_state` returned."""
    check_index(device, "set_rng_state")
    seeds.set_state(tuple(int(part) for part in new_state.tolist()))


def get_rng_state_all() -> list[torch.Tensor]:
    """Returns the state of each logical device, that is, of one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Restores the state that `get_rng_state_all` returned."""
    for state in new_states:
        set_rng_state(state)


# -- The modules -----------------------------------------------------------------------------------

# By name, functions and classes of this file with their aliases, and those of `device_memory` that
# keep their name.
_OWN = (
    is_available, is_initialized, init, device_count, current_device, set_device, device, device_of,
    get_device_name, get_device_capability, get_device_properties, is_bf16_supported,
    get_amp_supported_dtype, synchronize, Stream, Event, StreamContext, current_stream, set_stream,
    is_current_stream_capturing, manual_seed, seed, initial_seed, get_rng_state, set_rng_state,
    get_rng_state_all, set_rng_state_all, memory.memory_allocated, memory.max_memory_allocated,
    memory.memory_reserved, memory.max_memory_reserved, memory.memory_stats, memory.memory_summary,
    memory.mem_get_info, memory.reset_peak_memory_stats, memory.reset_accumulated_memory_stats,
    memory.empty_cache, memory.ipc_collect,
)  # fmt: skip
_OFFERED: dict[str, object] = {function.__name__: function for function in _OWN} | {
    "stream": StreamContext,
    "default_stream": current_stream,
    "manual_seed_all": manual_seed,
    "seed_all": seed,
    "_is_in_bad_fork": forking.is_in_bad_fork,
    "_initialized": True,  # torch.utils.checkpoint reads it before it saves the random state
    "_exchange_device": lambda index: 0,
    "_maybe_exchange_device": lambda index: 0,
}


def make_module() -> types.ModuleType:
    """Returns the module `torch.xla`."""
    module = types.ModuleType("torch.xla", __doc__)
    module.__dict__.update(_OFFERED)
    amp = types.ModuleType("torch.xla.amp", "`torch.amp` for this device.")
    amp.__dict__.update(
        autocast=partial(torch.autocast, "xla"), GradScaler=partial(torch.amp.GradScaler, "xla")
    )
    module.__dict__["amp"] = amp
    return module


def _capability(index: int) -> dict[str, object]:
    check_index(index, "get_device_capability")
    return {"supported_dtypes": set(TORCH_TO_NUMPY)}


# The functions of `torch.accelerator`, in place of C++ that needs a C++ backend, by the name that
# torch calls.
_ACCELERATOR: dict[str, Callable[..., object]] = {
    "setDeviceIndex": set_device,
    "exchangeDevice": partial(check_index, call="device_index"),
    "maybeExchangeDevice": partial(check_index, call="device_index"),
    "getDeviceCapability": _capability,
    "getStream": current_stream,
    "setStream": set_stream,
    "synchronizeDevice": synchronize,
    "isAllocatorInitialized": lambda: True,
    "emptyCache": memory.empty_cache,
    "emptyHostCache": memory.empty_cache,
    "getDeviceStats": lambda index: memory.nested_stats(),
    "resetAccumulatedStats": memory.reset_accumulated_memory_stats,
    "resetPeakStats": memory.reset_peak_memory_stats,
    "getMemoryInfo": memory.mem_get_info,
}


def join_accelerator() -> None:
    """Has `torch.accelerator` be this device; torch takes a custom device before any other
    accelerator."""
    for name, function in _ACCELERATOR.items():
        if hasattr(torch._C, f"_accelerator_{name}"):  # the oldest torch lacks some of them
            setattr(torch._C, f"_accelerator_{name}", function)


# -- Methods of tensors and modules ----------------------------------------------------------------


def _to_xla(
    self: Any, device: torch.types.Device = None, non_blocking: bool = False, **kwargs: object
) -> object:
    """The same as `.to("xla")`."""
    return self.to(
        torch.device("xla", check_index(device, "xla")), non_blocking=non_blocking, **kwargs
    )


def join_methods(ours: type) -> None:
    """Adds `tensor.xla()`, `module.xla()`, and `is_xla` of tensors of the device."""
    for owner in (torch.Tensor, torch.nn.Module, torch.nn.utils.rnn.PackedSequence):
        owner.xla = _to_xla  # type: ignore[union-attr]
    ours.is_xla = property(lambda self: True)  # type: ignore[attr-defined]
