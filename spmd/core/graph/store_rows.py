"""Arrays as rows of one stacked array, device by device: no collectives, whatever the mesh, however many processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..base import in_flight
from ..base.jax_private import device_order
from ..programs.persistent.small_programs import SmallProgram
from ..sharding.partitioner import compiler_context
from ..sharding.value import DEVICE, Sharding


def stacked(rows: Sequence[jax.Array], sharding: Sharding) -> jax.Array:
    """Returns a new array with these, each of this sharding, as its rows."""
    shape = (len(rows), *rows[0].shape)
    return _run(_stack, rows, [sharding] * len(rows), shape, sharding.behind_rows())


def file_of_stack(count: int, shape: tuple[int, ...], dtype: np.dtype, sharding: Sharding) -> tuple[str, bytes]:
    """Returns the digest and the content of the file of the program that stacks so many arrays of this shape, padded as
    it is stored, and sharding."""
    with compiler_context():
        named = sharding.jax
        row = jax.ShapeDtypeStruct(shape, dtype, sharding=named)
        program = _program(_stack, named.mesh, (named.spec,) * count, sharding.behind_rows().jax.spec, 0)
        return program.file_for(*[row] * count)


def row(stack: jax.Array, index: int, sharding: Sharding) -> jax.Array:
    """Returns a copy of one row of a stack; sharding: of a row."""
    return _run(_row, [stack], [sharding.behind_rows()], stack.shape[1:], sharding, np.int32(index))


def with_row(stack: jax.Array, index: int, row: jax.Array, sharding: Sharding) -> jax.Array:
    """Returns the stack with another row, in its own memory: the argument is donated; sharding: of a row."""
    of_stack = sharding.behind_rows()
    return _run(_put, [stack, row], [of_stack, sharding], stack.shape, of_stack, np.int32(index))


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
    shardings: Sequence[Sharding],
    shape: tuple[int, ...],
    sharding: Sharding,
    *numbers: np.int32,
) -> jax.Array:
    """Computes a result of this shape and sharding, each device's shard from its shards of the arrays."""
    with compiler_context():
        if sharding.memory != DEVICE:  # programs compute in the devices' own memory
            near = [one.with_spec(one.spec) for one in shardings]
            moved = [jax.device_put(array, one.jax) for array, one in zip(arrays, near, strict=True)]
            return jax.device_put(
                _run(body, moved, near, shape, sharding.with_spec(sharding.spec), *numbers), sharding.jax
            )
        named = sharding.jax
        if arrays[0].is_fully_addressable:
            specs = tuple(one.jax.spec for one in shardings)
            return _launch(_program(body, named.mesh, specs, named.spec, len(numbers)), *arrays, *numbers)
        # A program over the devices of this process alone, which another process need not run at the same time.
        shards = [{shard.device: shard.data for shard in array.addressable_shards} for array in arrays]
        devices = tuple(device for device in device_order(named) if device in shards[0])
        local = [_joined([here[device] for device in devices], devices) for here in shards]
        specs = tuple(_cut(len(array.shape)) for array in arrays)
        result = _launch(_program(body, _mesh(devices), specs, _cut(len(shape)), len(numbers)), *local, *numbers)
        found = {shard.device: shard.data for shard in result.addressable_shards}
        return jax.make_array_from_single_device_arrays(shape, named, [found[device] for device in devices])


def _launch(program: Callable[..., jax.Array], array: jax.Array, *others: jax.Array | np.int32) -> jax.Array:
    in_flight.make_room(len(array.sharding.device_set))
    result = program(array, *others)
    in_flight.note(result)
    return result


def _joined(shards: list[jax.Array], devices: tuple[Any, ...]) -> jax.Array:
    """The shards of the devices as one array without copying: along the first dim, where there is one."""
    shape = shards[0].shape
    global_shape = (len(shards) * shape[0], *shape[1:]) if shape else ()
    sharding = NamedSharding(_mesh(devices), _cut(len(shape)))
    return jax.make_array_from_single_device_arrays(global_shape, sharding, shards)


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
    return SmallProgram(
        mapped, body.__name__, mesh.axis_names, specs, spec, donate_argnums=(0,) if body is _put else ()
    )
