"""PJRT devices and transfers, through jax. Buffers come and go here; nobody else calls `device_put`."""

import threading
from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch
from jax._src import xla_bridge  # whether a backend is up: jax has no public question for it

from .config import requested_hardware
from .dtypes import to_numpy_dtype, to_torch_dtype
from .sharding import Sharding, compiler_context

_prepare_lock = threading.Lock()
_prepared = False


def simulate(num_devices: int) -> None:
    """Makes this process see `num_devices` CPU devices, so that any mesh can be tried on one machine.

    Must run before the first use of a device. Raises ValueError for a count below 1 and RuntimeError when JAX's backend
    is already up with another number of devices; a repeated call with the same count does nothing.

    >>> import spmd
    >>> spmd.simulate(8)
    """
    global _prepared
    if not isinstance(num_devices, int) or num_devices < 1:
        raise ValueError(f"simulate: expected a number of devices of 1 or more, got {num_devices!r}")
    if xla_bridge.backends_are_initialized():
        present = len(jax.devices())
        if present == num_devices and jax.default_backend() == "cpu":
            return
        raise RuntimeError(
            f"simulate({num_devices}) came too late: JAX is already running with {present} {jax.default_backend()} "
            "device(s). Call spmd.simulate before the first tensor, mesh or jax.devices() of the process."
        )
    _prepared = True
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices)


def prepare() -> None:
    """Applies PJRT_DEVICE and CPU_NUM_DEVICES once, unless `simulate` or a running backend has already decided."""
    global _prepared
    with _prepare_lock:
        if _prepared or xla_bridge.backends_are_initialized():
            _prepared = True
            return
        hardware = requested_hardware()
        if hardware.platform is not None:
            jax.config.update("jax_platforms", hardware.platform)
        if hardware.num_cpu_devices is not None:
            jax.config.update("jax_num_cpu_devices", hardware.num_cpu_devices)
        _prepared = True


def devices() -> list[jax.Device]:
    """Every device of every process, in the order of their ids."""
    prepare()
    return sorted(jax.devices(), key=lambda device: device.id)


def default_sharding() -> Sharding:
    """Where an array lives that no mesh has claimed: the first local device."""
    return Sharding.single(min(device.id for device in jax.local_devices()))


def _is_narrow(dtype: np.dtype) -> bool:
    """Whether it is one of the floats that numpy lacks and torch and ml_dtypes share."""
    return dtype.type.__module__ == ml_dtypes.bfloat16.__module__


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor as a numpy array of the same dtype, sharing memory where the layout allows it."""
    dtype = to_numpy_dtype(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if _is_narrow(dtype):
        carrier = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        return tensor.view(carrier).numpy().view(dtype)
    return tensor.numpy()


def host_tensor(array: np.ndarray) -> torch.Tensor:
    """A numpy array as a CPU tensor that owns its memory."""
    dtype = to_torch_dtype(array.dtype)
    array = np.array(array, order="C", copy=True)
    if _is_narrow(array.dtype):
        carrier = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.view(carrier)).view(dtype)
    return torch.from_numpy(array)


def upload(array: np.ndarray, sharding: Sharding) -> jax.Array:
    """Host data to devices, shard by shard: no device receives more than its own piece. Uneven dims are zero-padded."""
    padded = sharding.padded_shape(array.shape)
    if padded != array.shape:
        array = np.pad(array, [(0, wide - narrow) for wide, narrow in zip(padded, array.shape, strict=True)])
    with compiler_context():
        return jax.device_put(array, sharding.jax)


def filled(shape: tuple[int, ...], dtype: np.dtype, value: float, sharding: Sharding) -> jax.Array:
    """A constant on devices, made without compiling anything and without a whole copy on the host."""
    physical = sharding.padded_shape(shape)
    content: Any = value
    if _is_narrow(dtype) and dtype.itemsize == 1:  # numpy does not round to these as torch does
        content = host_array(torch.tensor(value, device="cpu").to(to_torch_dtype(dtype)))
    piece = np.full(sharding.shard_shape(shape), content, dtype)
    with compiler_context():
        return jax.make_array_from_callback(physical, sharding.jax, lambda index: piece, dtype=dtype)


def move(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """A buffer laid out anew, between any two meshes."""
    with compiler_context():
        if source.padded_shape(shape) != target.padded_shape(shape):
            return upload(download(buffer, shape), target)
        return jax.device_put(buffer, target.jax)


def download(buffer: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """The whole array on the host, without the padding of uneven dims."""
    return np.asarray(buffer)[tuple(slice(0, dim) for dim in shape)]
