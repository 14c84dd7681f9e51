"""Uploads and downloads of buffers."""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import torch

from ...base import forking, samples, spans
from ...base.dtypes import to_numpy_dtype, to_torch_dtype
from ...base.jax_private import device_order, local_to_global_shape
from ...graph.errors import AbstractError
from ...graph.source import user_line
from ...sharding.partitioner import compiler_context
from ...sharding.value import Sharding
from . import agreement, moves, processes
from .moves import copied as copied
from .moves import respelled as respelled


def _is_narrow(dtype: np.dtype) -> bool:
    """True for the floats that numpy lacks and torch and ml_dtypes share."""
    return dtype.type.__module__ == ml_dtypes.bfloat16.__module__


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a CPU tensor as a numpy array of the same dtype, sharing memory where the layout allows it."""
    dtype = to_numpy_dtype(tensor.dtype)
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if _is_narrow(dtype):
        carrier = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        return tensor.view(carrier).numpy().view(dtype)
    return tensor.numpy()


def host_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a numpy array as a CPU tensor that owns its memory."""
    dtype = to_torch_dtype(array.dtype)
    if not array.size:
        return torch.empty(array.shape, dtype=dtype, device="cpu")  # numpy's strides of an empty array are not torch's
    array = np.array(array, order="C", copy=True)
    if _is_narrow(array.dtype):
        carrier = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.view(carrier)).view(dtype)
    return torch.from_numpy(array)


def _check_here(sharding: Sharding) -> None:
    if sharding.target is not None:
        raise AbstractError(f"no data can be placed as {sharding!r} (at {user_line()}): its devices are not here")


def _uploaded(num_bytes: int) -> samples.Transfer:
    return samples.Transfer("TransferToDeviceTime", "OutboundData", num_bytes)


def upload(array: np.ndarray, sharding: Sharding) -> jax.Array:
    """Uploads host data shard by shard: no device receives more than its own shard. Uneven dims are zero-padded."""
    forking.check()
    _check_here(sharding)
    padded = sharding.padded_shape(array.shape)
    with _Room(padded, array.dtype, sharding), compiler_context(), spans.span("upload"), _uploaded(array.nbytes):
        if padded != array.shape:
            array = np.pad(array, [(0, wide - narrow) for wide, narrow in zip(padded, array.shape, strict=True)])
        if processes.several():  # jax's device_put would compare the data of all processes in a program of its own
            return jax.make_array_from_callback(padded, sharding.jax, lambda index: array[index])
        return jax.device_put(array, sharding.jax)


def global_shape(part: tuple[int, ...], sharding: Sharding) -> tuple[int, ...]:
    """Returns the shape of an array of which each process has a part of this shape.

    Raises ValueError where the part does not divide over the process's devices.
    """
    if not processes.several():
        return part
    shape = tuple(dim or 0 for dim in local_to_global_shape(sharding.jax, part))
    if 0 in shape or sharding.padded_shape(shape) != shape:
        raise ValueError(
            f"a part of shape {list(part)} cannot be split over the devices of a process as {sharding!r}; each dim "
            "must be a multiple of the number of its shards there"
        )
    return shape


def upload_part(array: np.ndarray, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
    """Uploads this process's part of an array of this shape."""
    if not processes.several():
        return upload(array, sharding)
    forking.check()
    with _Room(shape, array.dtype, sharding), compiler_context(), spans.span("upload"), _uploaded(array.nbytes):
        return jax.make_array_from_process_local_data(sharding.jax, array, shape)


class ShardSlice(NamedTuple):
    """A distinct shard of an array on devices of this process: its indices, without padding, and its devices."""

    indices: tuple[slice, ...]
    devices: tuple[jax.Device, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(index.stop - index.start for index in self.indices)


def shards_here(shape: tuple[int, ...], sharding: Sharding) -> list[ShardSlice]:
    """Returns the distinct shards of an array of this shape on this process's devices."""
    _check_here(sharding)
    padded = sharding.padded_shape(shape)
    return _distinct(sharding.jax.addressable_devices_indices_map(padded), shape, padded)


def shards_of(shape: tuple[int, ...], sharding: Sharding, process: int) -> list[ShardSlice]:
    """Returns the distinct shards of an array of this shape on a process's devices."""
    padded = sharding.padded_shape(shape)
    places: Mapping[Any, Any] = sharding.jax.devices_indices_map(padded)
    return _distinct({one: index for one, index in places.items() if one.process_index == process}, shape, padded)


def _distinct(
    places: Mapping[jax.Device, tuple[slice, ...] | None], shape: tuple[int, ...], padded: tuple[int, ...]
) -> list[ShardSlice]:
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}  # a slice is no key before Python 3.12
    for device, index in places.items():
        bounds = [part.indices(wide)[:2] for part, wide in zip(index or (), padded, strict=True)]
        within = tuple((min(a, dim), min(b, dim)) for (a, b), dim in zip(bounds, shape, strict=True))
        holders.setdefault(within, []).append(device)
    return [ShardSlice(tuple(slice(*bound) for bound in within), tuple(found)) for within, found in holders.items()]


def upload_shard(array: np.ndarray, shard: ShardSlice, shape: tuple[int, ...], sharding: Sharding) -> list[jax.Array]:
    """Uploads one shard of an array of this shape to each of its devices, padded as it is stored."""
    forking.check()
    wide = sharding.shard_shape(shape)
    size = array.nbytes * len(shard.devices)
    with _Room(shape, array.dtype, sharding), compiler_context(), spans.span("upload"), _uploaded(size):
        if array.shape != wide:
            array = np.pad(array, [(0, to - dim) for to, dim in zip(wide, array.shape, strict=True)])
        shardings = [
            jax.sharding.SingleDeviceSharding(one, memory_kind=sharding.jax.memory_kind) for one in shard.devices
        ]
        return [jax.device_put(array, there) for there in shardings]


def joined(parts: Sequence[jax.Array], shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
    """Returns the array of this shape whose shards this process's devices hold already."""
    here = {next(iter(part.devices())): part for part in parts}
    order = [device for device in device_order(sharding.jax) if device in here]
    return jax.make_array_from_single_device_arrays(
        sharding.padded_shape(shape), sharding.jax, [here[device] for device in order]
    )


_SAMPLE = 1 << 18  # elements


def sample(array: np.ndarray) -> bytes:
    """Returns a checksum of the first elements, at a bounded cost: it differs for nearly all different host data."""
    return zlib.crc32(np.ascontiguousarray(array.reshape(-1)[:_SAMPLE]).data.cast("B")).to_bytes(4, "little")


@dataclass(frozen=True)
class _Room:
    """A context that raises torch's OutOfMemoryError where there is no memory for data of this shape.

    No generator: raised through one, the errors' frames hold each other in Python 3.13, and the tensors of the call
    would live until the next collection.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Sharding

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        is_refused = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(error)
        if is_refused or isinstance(error, MemoryError):
            size = math.prod(self.sharding.shard_shape(self.shape)) * self.dtype.itemsize / 2**30
            raise torch.OutOfMemoryError(
                f"out of memory: there is no room for a shard of {size:,.2f} GiB on each device, of a {self.dtype} "
                f"array of shape {list(self.shape)} sharded as {self.sharding!r}; split it over more devices with "
                "mark_sharding"
            ) from error


def filled(shape: tuple[int, ...], dtype: np.dtype, value: float, sharding: Sharding) -> jax.Array:
    """Returns a constant on devices, made without compiling anything and without an unsharded copy on the host."""
    _check_here(sharding)
    if processes.several():
        what = f"a filling of {dtype}{list(shape)} as {sharding!r} with {value!r}"
        agreement.note(what, what.encode(), user_line())
    physical = sharding.padded_shape(shape)
    content: Any = value
    if _is_narrow(dtype) and dtype.itemsize == 1:  # numpy does not round to these as torch does
        content = host_array(torch.tensor(value, device="cpu").to(to_torch_dtype(dtype)))
    with _Room(physical, dtype, sharding), compiler_context():
        shard = np.full(sharding.shard_shape(shape), content, dtype)
        return jax.make_array_from_callback(physical, sharding.jax, lambda index: shard, dtype=dtype)


def move(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """Returns a buffer resharded, between any two meshes, always in new memory: one of the two may be donated."""
    _check_here(target)
    if processes.several():
        what = f"a move of {buffer.dtype}{list(shape)} from {source!r} to {target!r}"
        agreement.note(what, what.encode(), user_line())
    with compiler_context(), _Room(shape, buffer.dtype, target):
        return moves.moved(buffer, shape, source, target)


def is_readable_here(buffer: jax.Array) -> bool:
    """True if this process can read all of the buffer by itself."""
    return buffer.is_fully_addressable or buffer.is_fully_replicated


def download(buffer: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the unsharded array on the host, without the padding of uneven dims."""
    with samples.Transfer("TransferFromDeviceTime", "InboundData", buffer.nbytes):
        array = np.asarray(buffer)
    return array[tuple(slice(0, dim) for dim in shape)]
