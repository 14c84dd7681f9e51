"""Arrays resharded by the devices themselves: nothing passes through the host, whatever the two meshes.

jax's `device_put` of an array on several devices assembles it on the host, except for a copy shard by shard.
"""

# Why not `jax.device_put` for all: between two shardings over several devices it assembles the array on the host.
# Arrays may be larger than the host's memory, and on a slice of a pod no host has all of it.

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...base import in_flight
from ...base.jax_private import device_order
from ...graph.encode import encode
from ...programs.persistent.small_programs import SmallProgram
from ...sharding.constrain import cut, pad
from ...sharding.tracing import program_devices
from ...sharding.value import DEVICE, Sharding
from . import processes, runs


def moved(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """Returns a new buffer of an array of this shape, sharded as `target`; the old one stays.

    Where the devices are others, the exchange runs on the larger set of devices. Where neither number of devices
    divides the other, the array is replicated on each device for a moment.
    """
    if source.memory != DEVICE:  # programs compute in device memory
        near = source.with_spec(source.spec)
        return moved(copied(buffer, near), shape, near, target)
    if target.memory != DEVICE:
        near = target.with_spec(target.spec)
        return copied(moved(buffer, shape, source, near), target)
    num_old, num_new = len(source.device_ids), len(target.device_ids)
    if num_old == 1 and target.is_replicated():
        return _handed_over(buffer, shape, source, target)
    if num_old == 1:
        if source.padded_shape(shape) != target.padded_shape(shape):
            buffer = _padding(shape, source.device_ids[0], target)(buffer)
        return _dealt(buffer, target)
    if source.devices == target.devices:
        is_same = source.is_as(target, len(shape))
        return copied(buffer, target) if is_same else _exchanged(buffer, shape, source, target)
    if num_old % num_new == 0:
        there = _repeated(target, source.device_ids)
        return _handed_over(_exchanged(buffer, shape, source, there), shape, there, target)
    if num_new % num_old == 0:
        there = _repeated(source, target.device_ids)
        return _exchanged(_handed_over(buffer, shape, source, there), shape, there, target)
    replicated = source.replicated()
    there = target.replicated()
    gathered = _exchanged(buffer, shape, source, replicated)
    return _exchanged(_handed_over(gathered, shape, replicated, there), shape, there, target)


def copied(buffer: jax.Array, target: Sharding) -> jax.Array:
    """Returns the same shards on the same devices in new buffers, perhaps in another memory; compiles nothing."""
    return jax.device_put(buffer, target.jax, may_alias=False)


def _repeated(sharding: Sharding, device_ids: tuple[int, ...]) -> Sharding:
    """Returns the sharding over more devices, with each shard replicated on equally many neighbours."""
    times = len(device_ids) // len(sharding.device_ids)
    axis = "copies"
    while axis in sharding.axis_names:
        axis += "_"
    return Sharding.of(device_ids, (*sharding.mesh_shape, times), (*sharding.axis_names, axis), sharding.spec)


def _exchanged(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """Returns the array resharded over the same devices by a program; the same array where the sharding is equal."""
    if source.is_as(target, len(shape)):
        return respelled(buffer, target.jax)
    in_flight.make_room(len(source.device_ids))
    result = _program(shape, source.device_ids, target)(buffer)
    runs.note_started(result)
    return respelled(result, target.jax)


@functools.lru_cache(256)
def _program(shape: tuple[int, ...], order: tuple[int, ...], target: Sharding) -> Any:
    """Returns a program over the devices in this order that replaces an array's padding by that of `target`."""

    def reshard(array: jax.Array) -> jax.Array:
        with program_devices(order):
            return pad(cut(array, shape), target, shape)

    return SmallProgram(reshard, shape, order, encode(target), out_shardings=target.over(order))


@functools.lru_cache(256)
def _padding(shape: tuple[int, ...], device_id: int, target: Sharding) -> Any:
    """Returns a program on one device that gives an array the padding of another sharding."""

    def padded(array: jax.Array) -> jax.Array:
        unpadded = cut(array, shape)
        wide = target.padded_shape(shape)
        return jnp.pad(unpadded, [(0, to - dim) for to, dim in zip(wide, shape, strict=True)])

    return SmallProgram(padded, shape, device_id, encode(target), out_shardings=Sharding.single(device_id).jax)


def _dealt(buffer: jax.Array, target: Sharding) -> jax.Array:
    """Returns an array of one device over several, each of which is sent its shard alone.

    jax's `device_put` would cut it by a program that it compiles at each start.
    """
    if processes.several():
        return jax.device_put(buffer, target.jax, may_alias=False)
    parts: dict[tuple[int, ...], jax.Array] = {}
    arrays, size = [], target.jax.shard_shape(buffer.shape)
    found = target.jax.addressable_devices_indices_map(buffer.shape)
    for device in device_order(target.jax):
        starts = tuple(part.indices(wide)[0] for part, wide in zip(found[device] or (), buffer.shape, strict=True))
        if starts not in parts:
            parts[starts] = _cutting(size)(buffer, np.array(starts, np.int64))
        there = jax.sharding.SingleDeviceSharding(device, memory_kind=target.jax.memory_kind)
        arrays.append(jax.device_put(parts[starts], there, may_alias=False))
    return jax.make_array_from_single_device_arrays(buffer.shape, target.jax, arrays)


@functools.lru_cache(256)
def _cutting(size: tuple[int, ...]) -> Any:
    """Returns a program on one device that cuts a block of this size out of an array."""

    def block(array: jax.Array, starts: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(array, list(starts), size)

    return SmallProgram(block, size)


def _handed_over(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """Returns the same shards on other devices.

    Between meshes of one size each shard moves to one device; else the copies of a shard on neighbouring devices of the
    larger mesh move to or from one device of the other.
    """
    shards = {shard.device: shard.data for shard in buffer.addressable_shards}
    old, new = list(device_order(source.jax)), list(device_order(target.jax))
    num_old, num_new = len(old), len(new)
    parts = []
    for index, device in enumerate(new):
        first = index * num_old // num_new
        group = old[first : first + max(num_old // num_new, 1)]
        giver = device if device in group else group[0]
        parts.append(jax.device_put(shards[giver], jax.sharding.SingleDeviceSharding(device), may_alias=False))
    return jax.make_array_from_single_device_arrays(target.padded_shape(shape), target.jax, parts)


def respelled(buffer: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """Returns the same shards on the same devices, under an equal sharding of another name or order of devices."""
    shards = {shard.device: shard.data for shard in buffer.addressable_shards}
    order = [device for device in device_order(sharding) if device in shards]
    return jax.make_array_from_single_device_arrays(buffer.shape, sharding, [shards[device] for device in order])
