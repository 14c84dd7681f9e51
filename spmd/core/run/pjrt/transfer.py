"""Buffers uploaded, downloaded, and resharded by the devices themselves."""

# Why not `jax.device_put` for all moves: between two shardings over several devices it assembles
# the array on the host. Arrays may be larger than the host's memory, and on a slice of a pod no
# host has all of it.

import functools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
import torch

from ...base import counters, forking, in_flight, trace_rows
from ...base.dtypes import to_numpy_dtype, to_torch_dtype
from ...base.jax_private import device_order, local_to_global_shape
from ...files.small_programs import SmallProgram
from ...graph.errors import AbstractError
from ...graph.op import encode
from ...graph.source import user_line
from ...graph.store import from_shards, shards_by_device
from ...sharding.constrain import cut, pad
from ...sharding.partitioner import compiler_context
from ...sharding.topology import program_devices
from ...sharding.value import DEVICE, Sharding
from . import processes


def _is_narrow(dtype: np.dtype) -> bool:
    """True for the floats that numpy lacks and torch and ml_dtypes share."""
    return dtype.type.__module__ == ml_dtypes.bfloat16.__module__


def host_array(tensor: torch.Tensor) -> np.ndarray:
    """Returns a CPU tensor as a numpy array of the same dtype, sharing memory where the layout
    allows it."""
    dtype = to_numpy_dtype(tensor.dtype)
    # A lazy conjugate or negative has other bytes than its values.
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if _is_narrow(dtype):
        # numpy has no dtype for these that torch accepts: the bytes travel as integers of the
        # width.
        carrier = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        return tensor.view(carrier).numpy().view(dtype)
    return tensor.numpy()


def host_tensor(array: np.ndarray) -> torch.Tensor:
    """Returns a numpy array as a CPU tensor that owns its memory."""
    dtype = to_torch_dtype(array.dtype)
    if not array.size:
        # numpy's strides of an empty array are not torch's
        return torch.empty(array.shape, dtype=dtype, device="cpu")
    # A buffer that numpy shares with PJRT may be donated by the next program.
    array = np.array(array, order="C", copy=True)
    if _is_narrow(array.dtype):
        carrier = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        return torch.from_numpy(array.view(carrier)).view(dtype)
    return torch.from_numpy(array)


def _check_here(sharding: Sharding) -> None:
    if sharding.target is not None:
        raise AbstractError(
            f"no data can be placed as {sharding!r} (at {user_line()}): its devices are not here"
        )


def _uploaded(num_bytes: int) -> counters.Transfer:
    return counters.Transfer("TransferToDeviceTime", "OutboundData", num_bytes)


def upload(array: np.ndarray, sharding: Sharding) -> jax.Array:
    """Uploads host data shard by shard: no device receives more than its own shard.

    Uneven dims are zero-padded.
    """
    forking.check()
    _check_here(sharding)
    padded = sharding.padded_shape(array.shape)
    with (
        _MemoryErrors(padded, array.dtype, sharding),
        compiler_context(),
        trace_rows.span("upload"),
        _uploaded(array.nbytes),
    ):
        # jax refuses shards of different sizes; the padding is cut off inside the program.
        if padded != array.shape:
            array = np.pad(
                array,
                [(0, wide - narrow) for wide, narrow in zip(padded, array.shape, strict=True)],
            )
        # jax's device_put would compare the data of all processes in a program of its own
        if processes.several():
            return jax.make_array_from_callback(padded, sharding.jax, lambda index: array[index])
        return jax.device_put(array, sharding.jax)


def placed(
    vectors: Sequence[np.ndarray], known: list[tuple[bytes, Any]], mesh: Sharding
) -> list[Any]:
    """The scalar arguments of a run: in place of those that the run before had, too, an array on
    the devices.

    known: a program's, empty at first: the bytes of each vector, and its array.
    """
    known += [(b"", None)] * (len(vectors) - len(known))
    result: list[Any] = []
    for index, (vector, (data, array)) in enumerate(zip(vectors, known, strict=True)):
        now = vector.tobytes()
        if now != data or processes.several():
            known[index], array = (now, None), None
        elif array is None:
            array = jax.device_put(vector, mesh.replicated().jax)
            known[index] = now, array
        result.append(vector if array is None else array)
    return result


def global_shape(part: tuple[int, ...], sharding: Sharding) -> tuple[int, ...]:
    """Returns the shape of an array of which each process has a part of this shape.

    Raises ValueError where the part does not divide over the process's devices.
    """
    if not processes.several():
        return part
    shape = tuple(dim or 0 for dim in local_to_global_shape(sharding.jax, part))
    if 0 in shape or sharding.padded_shape(shape) != shape:
        raise ValueError(
            f"a part of shape {list(part)} cannot be split over the devices of a process as "
            f"{sharding!r}; each dim must be a multiple of the number of its shards there"
        )
    return shape


def upload_part(array: np.ndarray, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
    """Uploads this process's part of an array of this shape."""
    if not processes.several():
        return upload(array, sharding)
    forking.check()
    with (
        _MemoryErrors(shape, array.dtype, sharding),
        compiler_context(),
        trace_rows.span("upload"),
        _uploaded(array.nbytes),
    ):
        return jax.make_array_from_process_local_data(sharding.jax, array, shape)


class ShardSlice(NamedTuple):
    """A distinct shard of an array on devices of this process: its indices, without padding, and
    its devices."""

    indices: tuple[slice, ...]
    devices: tuple[jax.Device, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(index.stop - index.start for index in self.indices)


def shards_here(shape: tuple[int, ...], sharding: Sharding) -> list[ShardSlice]:
    """Returns the distinct shards of an array of this shape on this process's devices."""
    _check_here(sharding)
    return shards_of(shape, sharding, jax.process_index())


def shards_of(shape: tuple[int, ...], sharding: Sharding, process: int) -> list[ShardSlice]:
    """Returns the distinct shards of an array of this shape on a process's devices."""
    padded = sharding.padded_shape(shape)
    index_of: Mapping[jax.Device, tuple[slice, ...] | None] = sharding.jax.devices_indices_map(
        padded
    )
    # By (start, stop) of each dim: a slice is no key before Python 3.12.
    holders: dict[tuple[tuple[int, int], ...], list[jax.Device]] = {}
    for device, index in index_of.items():
        if device.process_index != process:
            continue
        padded_bounds = [
            part.indices(size)[:2] for part, size in zip(index or (), padded, strict=True)
        ]
        # A device may hold nothing but padding: its slice is empty, and no device is left out.
        bounds = tuple(
            (min(start, dim), min(stop, dim))
            for (start, stop), dim in zip(padded_bounds, shape, strict=True)
        )
        holders.setdefault(bounds, []).append(device)
    return [
        ShardSlice(tuple(slice(*bound) for bound in bounds), tuple(devices))
        for bounds, devices in holders.items()
    ]


def upload_shard(
    array: np.ndarray, shard: ShardSlice, shape: tuple[int, ...], sharding: Sharding
) -> list[jax.Array]:
    """Uploads one shard of an array of this shape to each of its devices, padded as it is
    stored."""
    forking.check()
    padded_shape = sharding.shard_shape(shape)
    size = array.nbytes * len(shard.devices)
    with (
        _MemoryErrors(shape, array.dtype, sharding),
        compiler_context(),
        trace_rows.span("upload"),
        _uploaded(size),
    ):
        # The last shard of an uneven dim is shorter in a file than on its device.
        if array.shape != padded_shape:
            array = np.pad(
                array,
                [(0, size - dim) for size, dim in zip(padded_shape, array.shape, strict=True)],
            )
        shardings = [
            jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.jax.memory_kind)
            for device in shard.devices
        ]
        return [jax.device_put(array, destination) for destination in shardings]


def joined(parts: Sequence[jax.Array], shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
    """Returns the array of this shape that consists of shards on this process's devices."""
    return from_shards(
        {next(iter(part.devices())): part for part in parts},
        sharding.padded_shape(shape),
        sharding.jax,
    )


_SAMPLE = 1 << 18  # elements


def sample_checksum(array: np.ndarray) -> bytes:
    """Returns a checksum of the first elements, at a bounded cost: it differs for nearly all
    different host data."""
    return zlib.crc32(np.ascontiguousarray(array.reshape(-1)[:_SAMPLE]).data.cast("B")).to_bytes(
        4, "little"
    )


@dataclass(frozen=True)
class _MemoryErrors:
    """A context that raises torch's OutOfMemoryError in place of an error of PJRT or numpy for want
    of memory. shape, dtype and sharding of the data are for the message.

    Not a generator: errors raised through one leave a reference cycle of frames in Python 3.13, and
    the tensors of the call would live until the next collection.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Sharding

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: Any
    ) -> None:
        # jaxlib has one error class for all; the status is in its text.
        is_refused = isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" in str(
            error
        )
        if is_refused or isinstance(error, MemoryError):
            size = math.prod(self.sharding.shard_shape(self.shape)) * self.dtype.itemsize / 2**30
            raise torch.OutOfMemoryError(
                f"out of memory: there is no room for a shard of {size:,.2f} GiB on each device, "
                f"of a {self.dtype} array of shape {list(self.shape)} sharded as "
                f"{self.sharding!r}; split it over more devices with mark_sharding"
            ) from error


def filled(shape: tuple[int, ...], dtype: np.dtype, value: float, sharding: Sharding) -> jax.Array:
    """Returns a constant on devices, made without compiling anything and without an unsharded copy
    on the host."""
    _check_here(sharding)
    if processes.several():
        event_text = f"a filling of {dtype}{list(shape)} as {sharding!r} with {value!r}"
        processes.note(event_text, event_text.encode(), user_line())
    padded = sharding.padded_shape(shape)
    content: Any = value
    if _is_narrow(dtype) and dtype.itemsize == 1:  # numpy does not round to these as torch does
        content = host_array(torch.tensor(value, device="cpu").to(to_torch_dtype(dtype)))
    with _MemoryErrors(padded, dtype, sharding), compiler_context():
        # One shard of the host serves all devices: the whole array may not fit.
        shard = np.full(sharding.shard_shape(shape), content, dtype)
        return jax.make_array_from_callback(padded, sharding.jax, lambda index: shard, dtype=dtype)


def move(
    buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding
) -> jax.Array:
    """Returns a buffer resharded, between any two meshes, always in new memory: one of the two may
    be donated."""
    _check_here(target)
    if processes.several():
        event_text = f"a move of {buffer.dtype}{list(shape)} from {source!r} to {target!r}"
        processes.note(event_text, event_text.encode(), user_line())
    with compiler_context(), _MemoryErrors(shape, buffer.dtype, target):
        return moved(buffer, shape, source, target)


def is_readable_here(buffer: jax.Array) -> bool:
    """True if this process can read all of the buffer by itself."""
    return not processes.several() or buffer.is_fully_addressable or buffer.is_fully_replicated


def download(buffer: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the unsharded array on the host, without the padding of uneven dims."""
    with counters.Transfer("TransferFromDeviceTime", "InboundData", buffer.nbytes):
        array = np.asarray(buffer)
    return array[tuple(slice(0, dim) for dim in shape)]


# --- moves between devices ------------------------------------------------------------------------


def moved(
    buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding
) -> jax.Array:
    """Returns a new buffer of an array of this shape, sharded as `target`; the old one stays.

    Where the devices are others, the exchange runs on the larger set of devices. Where neither
    number of devices divides the other, the array is replicated on each device for a moment.
    """
    if source.memory != DEVICE:  # programs compute in device memory
        on_device = source.with_spec(source.spec)
        return moved(copied(buffer, on_device), shape, on_device, target)
    if target.memory != DEVICE:
        on_device = target.with_spec(target.spec)
        return copied(moved(buffer, shape, source, on_device), target)
    num_old, num_new = len(source.device_ids), len(target.device_ids)
    if num_old == 1 and target.is_replicated():
        return _handed_over(buffer, shape, source, target)
    # Only its own shard goes to each device: `device_put` of the whole would send all of it to all.
    if num_old == 1:
        if source.padded_shape(shape) != target.padded_shape(shape):
            buffer = _program(
                shape, source.device_ids, target, Sharding.single(source.device_ids[0]).jax
            )(buffer)
        return _distribute(buffer, target)
    if source.devices == target.devices:
        is_same = source.is_as(target, len(shape))
        return copied(buffer, target) if is_same else _exchanged(buffer, shape, source, target)
    # The exchange is on the larger set of devices: each shard is then handed over once.
    if num_old % num_new == 0:
        destination = _replicated_over(target, source.device_ids)
        return _handed_over(
            _exchanged(buffer, shape, source, destination), shape, destination, target
        )
    if num_new % num_old == 0:
        destination = _replicated_over(source, target.device_ids)
        return _exchanged(
            _handed_over(buffer, shape, source, destination), shape, destination, target
        )
    # 7 devices and 4: no grouping has whole shards on both sides.
    replicated = source.replicated()
    destination = target.replicated()
    gathered = _exchanged(buffer, shape, source, replicated)
    return _exchanged(
        _handed_over(gathered, shape, replicated, destination), shape, destination, target
    )


def copied(buffer: jax.Array, target: Sharding) -> jax.Array:
    """Returns the same shards on the same devices in new buffers, perhaps in another memory;
    compiles nothing."""
    return jax.device_put(buffer, target.jax, may_alias=False)


def _replicated_over(sharding: Sharding, device_ids: tuple[int, ...]) -> Sharding:
    """Returns the sharding over more devices, with each shard replicated on equally many
    neighbours."""
    # The copies are the last axis, so that those of a shard are neighbours in the order of the
    # devices.
    times = len(device_ids) // len(sharding.device_ids)
    axis = "copies"
    while axis in sharding.axis_names:
        axis += "_"
    return Sharding.of(
        device_ids, (*sharding.mesh_shape, times), (*sharding.axis_names, axis), sharding.spec
    )


def _exchanged(
    buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding
) -> jax.Array:
    """Returns the array resharded over the same devices by a program; the same array where the
    sharding is equal."""
    if source.is_as(target, len(shape)):
        return respelled(buffer, target.jax)
    in_flight.make_room(len(source.device_ids))
    result = _program(shape, source.device_ids, target, target.over(source.device_ids))(buffer)
    in_flight.note_started(result)
    return respelled(result, target.jax)


@functools.lru_cache(256)
def _program(
    shape: tuple[int, ...], order: tuple[int, ...], target: Sharding, result: jax.sharding.Sharding
) -> Any:
    """Returns a program over the devices in this order that replaces an array's padding by that of
    `target`. result: the sharding in which it returns the array."""

    def reshard(array: jax.Array) -> jax.Array:
        with program_devices(order):
            return pad(cut(array, shape), target, shape)

    return SmallProgram(reshard, shape, order, encode(target), out_shardings=result)


def _distribute(buffer: jax.Array, target: Sharding) -> jax.Array:
    """Distributes an array from one device over several, each of which is sent only its shard.

    jax's `device_put` would cut it by a program that it compiles at each start.
    """
    if processes.several():
        return jax.device_put(buffer, target.jax, may_alias=False)
    blocks: dict[tuple[int, ...], jax.Array] = {}  # by their first indices
    arrays, block_shape = [], target.jax.shard_shape(buffer.shape)
    for device, index in target.jax.addressable_devices_indices_map(buffer.shape).items():
        starts = tuple(
            part.indices(wide)[0] for part, wide in zip(index or (), buffer.shape, strict=True)
        )
        if starts not in blocks:
            blocks[starts] = _block_program(block_shape)(buffer, np.array(starts, np.int64))
        single = jax.sharding.SingleDeviceSharding(device, memory_kind=target.jax.memory_kind)
        arrays.append(jax.device_put(blocks[starts], single, may_alias=False))
    return jax.make_array_from_single_device_arrays(buffer.shape, target.jax, arrays)


@functools.lru_cache(256)
def _block_program(size: tuple[int, ...]) -> Any:
    """Returns a program on one device that cuts a block of this size out of an array."""

    def block(array: jax.Array, starts: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(array, list(starts), size)

    return SmallProgram(block, size)


def _handed_over(
    buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding
) -> jax.Array:
    """Returns the same shards on other devices.

    Between meshes of one size each shard moves to one device; else the copies of a shard on
    neighbouring devices of the larger mesh move to or from one device of the other.
    """
    shards = shards_by_device(buffer)
    old_devices, new_devices = list(device_order(source.jax)), list(device_order(target.jax))
    num_old, num_new = len(old_devices), len(new_devices)
    parts = []
    for index, device in enumerate(new_devices):
        # The old devices from which this new one may take its shard.
        first = index * num_old // num_new
        group = old_devices[first : first + max(num_old // num_new, 1)]
        # A copy that is there already is not sent.
        giver = device if device in group else group[0]
        # New memory in any case: the caller may donate one of the two.
        parts.append(
            jax.device_put(
                shards[giver], jax.sharding.SingleDeviceSharding(device), may_alias=False
            )
        )
    return jax.make_array_from_single_device_arrays(target.padded_shape(shape), target.jax, parts)


def respelled(buffer: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns the same shards on the same devices, under an equal sharding of another name or order
    of devices."""
    return from_shards(shards_by_device(buffer), buffer.shape, sharding, buffer.dtype)
