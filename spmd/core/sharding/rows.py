"""Arrays as rows of one stacked array, device by device: no collectives, whatever the mesh, however many processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .. import in_flight
from ..jax_private import device_order
from .partitioner import compiler_context
from .value import DEVICE, Sharding


def stacked(rows: Sequence[jax.Array], sharding: Sharding) -> jax.Array:
    """A new array with these, each of which lies so, as its rows."""
    shape = (len(rows), *rows[0].shape)
    return _run(_stack, rows, [sharding] * len(rows), shape, sharding.behind_rows())


def row(stack: jax.Array, index: int, sharding: Sharding) -> jax.Array:
    """A copy of one row of a stack; sharding: how rows lie."""
    return _run(_row, [stack], [sharding.behind_rows()], stack.shape[1:], sharding, np.int32(index))


def with_row(stack: jax.Array, index: int, row: jax.Array, sharding: Sharding) -> jax.Array:
    """The stack with another row, in its own memory: what was given is gone; sharding: how rows lie."""
    whole = sharding.behind_rows()
    return _run(_put, [stack, row], [whole, sharding], stack.shape, whole, np.int32(index))


def _stack(*rows: jax.Array) -> jax.Array:
    return jnp.stack(rows)


def _row(stack: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stack, index, keepdims=False)


def _put(stack: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, row, index, 0)


Body = Callable[..., jax.Array]


def _run(
    body: Body,
    arrays: Sequence[jax.Array],
    lie: Sequence[Sharding],
    shape: tuple[int, ...],
    lies: Sharding,
    *numbers: np.int32,
) -> jax.Array:
    """The result, of this shape and layout, each device's piece made of its pieces of arrays that lie so."""
    with compiler_context():
        if lies.memory != DEVICE:  # programs compute in the devices' own
            near = [one.with_spec(one.spec) for one in lie]
            moved = [jax.device_put(array, one.jax) for array, one in zip(arrays, near, strict=True)]
            return jax.device_put(_run(body, moved, near, shape, lies.with_spec(lies.spec), *numbers), lies.jax)
        named = lies.jax
        if arrays[0].is_fully_addressable:
            specs = tuple(one.jax.spec for one in lie)
            return _launch(_program(body, named.mesh, specs, named.spec, len(numbers)), *arrays, *numbers)
        # A program over the devices of this process alone, which another process need not run at the same time.
        pieces = [{shard.device: shard.data for shard in array.addressable_shards} for array in arrays]
        devices = tuple(device for device in device_order(named) if device in pieces[0])
        beside = [_side_by_side([here[device] for device in devices], devices) for here in pieces]
        specs = tuple(_cut(len(array.shape)) for array in arrays)
        made = _launch(_program(body, _mesh(devices), specs, _cut(len(shape)), len(numbers)), *beside, *numbers)
        found = {shard.device: shard.data for shard in made.addressable_shards}
        return jax.make_array_from_single_device_arrays(shape, named, [found[device] for device in devices])


def _launch(program: Callable[..., jax.Array], array: jax.Array, *others: jax.Array | np.int32) -> jax.Array:
    in_flight.make_room(len(array.sharding.device_set))
    made = program(array, *others)
    in_flight.note(made)
    return made


def _side_by_side(pieces: list[jax.Array], devices: tuple[Any, ...]) -> jax.Array:
    """The pieces of the devices as one array without copying: along the first dim, where there is one."""
    shape = pieces[0].shape
    whole = (len(pieces) * shape[0], *shape[1:]) if shape else ()
    return jax.make_array_from_single_device_arrays(whole, NamedSharding(_mesh(devices), _cut(len(shape))), pieces)


@functools.lru_cache(64)
def _mesh(devices: tuple[Any, ...]) -> jax.sharding.Mesh:
    return jax.sharding.Mesh(np.array(devices), ("device",))


def _cut(rank: int) -> PartitionSpec:
    return PartitionSpec("device") if rank else PartitionSpec()


@functools.lru_cache(256)
def _program(
    body: Body, mesh: jax.sharding.Mesh, specs: tuple[PartitionSpec, ...], spec: PartitionSpec, num_numbers: int
) -> Any:
    numbers = (PartitionSpec(),) * num_numbers
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(*specs, *numbers), out_specs=spec, check_vma=False)
    return jax.jit(mapped, donate_argnums=(0,) if body is _put else ())
