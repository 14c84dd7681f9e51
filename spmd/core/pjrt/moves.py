"""Arrays laid out anew by the devices themselves: nothing passes through the host, whatever the two meshes.

jax's `device_put` of an array that lies on several devices assembles it on the host, but for a copy piece by piece.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .. import in_flight
from ..jax_private import device_order
from ..sharding.constrain import cut, pad
from ..sharding.tracing import program_devices
from ..sharding.value import DEVICE, Sharding
from . import runs


def moved(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """A new buffer of an array of this shape, which lies as `target` says; the old one stays.

    Where the devices are others, those with more of them do the exchange. Where neither number divides the other, each
    device holds the whole array for a moment.
    """
    if source.memory != DEVICE:  # programs compute in the devices' own
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
        return jax.device_put(buffer, target.jax, may_alias=False)  # each device is sent its piece alone
    if source.devices == target.devices:
        is_same = source.is_as(target, len(shape))
        return copied(buffer, target) if is_same else _exchanged(buffer, shape, source, target)
    if num_old % num_new == 0:
        there = _repeated(target, source.device_ids)
        return _handed_over(_exchanged(buffer, shape, source, there), shape, there, target)
    if num_new % num_old == 0:
        there = _repeated(source, target.device_ids)
        return _exchanged(_handed_over(buffer, shape, source, there), shape, there, target)
    whole = source.replicated()
    there = target.replicated()
    gathered = _exchanged(buffer, shape, source, whole)
    return _exchanged(_handed_over(gathered, shape, whole, there), shape, there, target)


def copied(buffer: jax.Array, target: Sharding) -> jax.Array:
    """The same shards on the same devices in buffers of their own, perhaps in another memory; nothing is compiled."""
    return jax.device_put(buffer, target.jax, may_alias=False)


def _repeated(lies: Sharding, device_ids: tuple[int, ...]) -> Sharding:
    """The layout with each device's piece on several of others instead: on so many that stand side by side."""
    times = len(device_ids) // len(lies.device_ids)
    axis = "copies"
    while axis in lies.axis_names:
        axis += "_"
    return Sharding.of(device_ids, (*lies.mesh_shape, times), (*lies.axis_names, axis), lies.spec)


def _exchanged(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """The array laid out anew over the same devices, by a program; as it is where it lies so already."""
    if source.is_as(target, len(shape)):
        return respelled(buffer, target.jax)
    in_flight.make_room(len(source.device_ids))
    made = _program(shape, source.device_ids, target)(buffer)
    runs.note_started(made)
    return respelled(made, target.jax)


@functools.lru_cache(256)
def _program(shape: tuple[int, ...], order: tuple[int, ...], target: Sharding) -> Any:
    """A program over the devices in this order that cuts the paddings of an array and puts on those of `target`."""

    def anew(array: jax.Array) -> jax.Array:
        with program_devices(order):
            return pad(cut(array, shape), target, shape)

    return jax.jit(anew, out_shardings=target.over(order))


@functools.lru_cache(256)
def _padding(shape: tuple[int, ...], device_id: int, target: Sharding) -> Any:
    """A program on one device that gives an array the padding that another layout takes."""

    def padded(array: jax.Array) -> jax.Array:
        whole = cut(array, shape)
        wide = target.padded_shape(shape)
        return jnp.pad(whole, [(0, to - dim) for to, dim in zip(wide, shape, strict=True)])

    return jax.jit(padded, out_shardings=Sharding.single(device_id).jax)


def _handed_over(buffer: jax.Array, shape: tuple[int, ...], source: Sharding, target: Sharding) -> jax.Array:
    """The same pieces on other devices: a mesh's one by one, or the copies of a piece that stand side by side in the
    larger mesh to or from one device of the other."""
    pieces = {piece.device: piece.data for piece in buffer.addressable_shards}
    old, new = list(device_order(source.jax)), list(device_order(target.jax))
    num_old, num_new = len(old), len(new)
    parts = []
    for place, device in enumerate(new):
        first = place * num_old // num_new
        group = old[first : first + max(num_old // num_new, 1)]
        giver = device if device in group else group[0]
        parts.append(jax.device_put(pieces[giver], jax.sharding.SingleDeviceSharding(device), may_alias=False))
    return jax.make_array_from_single_device_arrays(target.padded_shape(shape), target.jax, parts)


def respelled(buffer: jax.Array, lies: jax.sharding.Sharding) -> jax.Array:
    """The same pieces on the same devices, under an equal sharding of another name or order of devices."""
    pieces = {piece.device: piece.data for piece in buffer.addressable_shards}
    order = [device for device in device_order(lies) if device in pieces]
    return jax.make_array_from_single_device_arrays(buffer.shape, lies, [pieces[device] for device in order])
