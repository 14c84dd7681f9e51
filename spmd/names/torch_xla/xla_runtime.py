"""The functions of `torch_xla.runtime` (xr) that are not this library's own: SPMD's one logical
device, its counts, and those of the physical ones."""

import socket
import warnings
from typing import Any

import jax
import torch

from ...core import config, counters, hardware, resolve
from ...tensors.runtime import global_runtime_device_attributes
from . import data_parallel, script_tools
from .xla_model import device_type


def use_spmd(auto: bool = False) -> None:
    """Ends the data parallelism of `torch_xla.launch`: the script shards its batches. There is no
    other mode. Sets XLA_USE_SPMD=1, which scripts read, as theirs does.

    Raises NotImplementedError for `auto` (see `spmd.suggest`).

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.use_spmd()
    """
    if auto:
        raise NotImplementedError(
            "use_spmd: auto=True is not there; spmd.suggest(model, step) compares layouts"
        )
    data_parallel.current.num_replicas = 1
    script_tools.set_variable("XLA_USE_SPMD", "1")


def one() -> int:
    """The number of logical devices, and of replicas: 1. Source: `xr.world_size`,
    `xr.global_device_count`.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.one()
    1
    """
    return 1


def zero() -> int:
    """The index of the logical device: 0. Source: `xr.global_ordinal`, `xr.local_ordinal`.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.zero()
    0
    """
    return 0


def global_runtime_device_count() -> int:
    """The number of physical devices of all processes.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.global_runtime_device_count() == len(spmd.device_ids())
    True
    """
    return len(hardware.devices())


def addressable_runtime_device_count() -> int:
    """The number of physical devices of this process.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.addressable_runtime_device_count() == len(spmd.device_ids())
    True
    """
    return sum(device.process_index == jax.process_index() for device in hardware.devices())


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """The attributes of a physical device, by its name, "TPU:3": those of
    `spmd.torch_xla.DeviceAttributes`.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.runtime_device_attributes("CPU:0")["name"]
    'CPU:0'
    """
    return global_runtime_device_attributes()[int(str(device).rpartition(":")[2])]


def set_device_type(pjrt_device: str) -> None:
    """Compares the hardware with what is there: it is chosen by JAX_PLATFORMS before the first use
    of a device.

    Raises RuntimeError where it is another.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.set_device_type("CPU")
    """
    kind = pjrt_device.partition(":")[0].upper()
    if kind != device_type():
        raise RuntimeError(
            f"set_device_type: the devices here are of type {device_type()}, got {pjrt_device!r}; "
            f"set JAX_PLATFORMS={'cuda' if kind in ('GPU', 'CUDA') else kind.lower()} before the "
            "script starts"
        )


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keeps compiled programs in this folder, as `spmd.config.program_cache_dir` does. readonly:
    warns, as all write.

    >>> import spmd
    >>> kept = spmd.config.program_cache, spmd.config.program_cache_dir
    >>> spmd.torch_xla.xla_runtime.initialize_cache("programs")
    >>> spmd.config.program_cache, spmd.config.program_cache_dir = kept
    """
    if readonly:
        warnings.warn(
            "initialize_cache: readonly has no meaning here; new programs are written", stacklevel=2
        )
    config.program_cache, config.program_cache_dir = True, path


def get_num_cached_compilation_graph() -> int:
    """The number of programs that this process has compiled or loaded.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.get_num_cached_compilation_graph() >= 0
    True
    """
    return counters.counter("programs_compiled") + counters.counter("programs_loaded")


def get_master_ip() -> str:
    """The address of this machine, for one that starts several processes.

    >>> import spmd
    >>> len(spmd.torch_xla.xla_runtime.get_master_ip().split("."))
    4
    """
    return socket.gethostbyname(socket.gethostname())


def set_mat_mul_precision(precision: str) -> None:
    """Sets torch's float32 precision: "highest", "high" or "default" ("medium" of
    `torch.set_float32_matmul_precision`). Source: `torch_xla.backends.set_mat_mul_precision`.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.set_mat_mul_precision("highest")
    >>> spmd.torch_xla.xla_runtime.get_mat_mul_precision()
    'highest'
    """
    if precision not in ("default", "high", "highest"):
        raise ValueError(
            f"set_mat_mul_precision: expected 'default', 'high' or 'highest', got {precision!r}"
        )
    torch.set_float32_matmul_precision("medium" if precision == "default" else precision)


def get_mat_mul_precision() -> str:
    """The float32 precision: see `set_mat_mul_precision`.

    >>> import spmd
    >>> spmd.torch_xla.xla_runtime.get_mat_mul_precision()
    'highest'
    """
    precision = resolve.matmul_precision()
    return "default" if precision == "medium" else precision
