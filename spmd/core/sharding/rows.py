"""Arrays as rows of one stacked array, device by device: no collectives, whatever the mesh, however many processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from .value import compiler_context


def stacked(rows: Sequence[jax.Array], lies: NamedSharding) -> jax.Array:
    """A new array with these, which all lie alike, as its rows; lies: so, behind an unsplit first dim."""
    return _run("stack", len(rows), rows, (len(rows), *rows[0].shape), lies)


def row(stack: jax.Array, index: int, lies: NamedSharding) -> jax.Array:
    """A copy of one row; lies: as the stack, without the first dim."""
    return _run("row", len(stack.shape), [stack], stack.shape[1:], lies, np.int32(index))


def with_row(stack: jax.Array, index: int, row: jax.Array) -> jax.Array:
    """The stack with another row, in its own memory: what was given is gone."""
    return _run("put", len(stack.shape), [stack, row], stack.shape, stack.sharding, np.int32(index))


def _run(
    what: str, size: int, arrays: Sequence[jax.Array], shape: tuple[int, ...], lies: Any, *numbers: np.int32
) -> jax.Array:
    """Each device of this process makes its piece of the result of its pieces."""
    pieces = [{shard.device: shard.data for shard in array.addressable_shards} for array in arrays]
    devices = tuple(device for device in lies._device_assignment if device in pieces[0])
    ranks = tuple(len(array.shape) for array in arrays)
    with compiler_context():
        side_by_side = [_side_by_side([here[device] for device in devices], devices) for here in pieces]
        made = _program(what, size, ranks, len(shape), devices)(*side_by_side, *numbers)
    found = {shard.device: shard.data for shard in made.addressable_shards}
    return jax.make_array_from_single_device_arrays(shape, lies, [found[device] for device in devices])


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


def _stack(*rows: jax.Array) -> jax.Array:
    return jnp.stack(rows)


def _row(stack: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_index_in_dim(stack, index, keepdims=False)


def _put(stack: jax.Array, row: jax.Array, index: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stack, row, index, 0)


_BODIES: dict[str, Callable[..., jax.Array]] = {"stack": _stack, "row": _row, "put": _put}


@functools.lru_cache(256)
def _program(what: str, size: int, ranks: tuple[int, ...], rank: int, devices: tuple[Any, ...]) -> Any:
    numbers = () if what == "stack" else (PartitionSpec(),)
    body = jax.shard_map(
        _BODIES[what],
        mesh=_mesh(devices),
        in_specs=(*map(_cut, ranks), *numbers),
        out_specs=_cut(rank),
        check_vma=False,
    )
    return jax.jit(body, donate_argnums=(0,) if what == "put" else ())
