"""The sharding of a value inside a program: the constraint, and the padding of dims that a mesh
does not divide."""

from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ...ops import sharded
from ..base.state import PerThread
from .value import DEVICE, HOST, Sharding


def constrain(array: jax.Array, sharding: Sharding) -> jax.Array:
    """Constrains the sharding of an intermediate value; an uneven dim is padded for it and sliced
    again."""
    padded = pad(array, sharding, array.shape)
    target = near(sharding).in_program()
    result = in_memory(
        cut(jax.lax.with_sharding_constraint(padded, target), array.shape), sharding.memory
    )
    return sharded.note(result, sharded.dims_in(target, array.shape))


def near(sharding: Sharding) -> Sharding:
    """Returns the same sharding in the memory in which programs compute."""
    return sharding if sharding.memory == DEVICE else sharding.with_spec(sharding.spec)


def in_memory(array: jax.Array, memory: str) -> jax.Array:
    """Returns the value in that memory."""
    space = HOST if memory == HOST else DEVICE
    if space_of(array) == space:
        return array
    return jax.device_put(
        array, jax.memory.Space.Host if space == HOST else jax.memory.Space.Device
    )


def space_of(array: jax.Array) -> str:
    """The memory kind of a traced array: `HOST` or `DEVICE`."""
    return HOST if jax.typeof(array).memory_space == jax.memory.Space.Host else DEVICE


_is_body = PerThread(False)  # whether the thread traces the body of a loop


def body() -> AbstractContextManager[None]:
    """Marks the ops traced inside as the body of a loop or a branch."""
    return _is_body.held(True)


def wait_for_all(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Returns the arrays, none available before all are (an optimization barrier); in the body of a
    loop unchanged.

    Inside of a loop XLA merges nothing with other loops; and its CPU compiler aborts the process at
    an optimization barrier in a small loop (jaxlib 0.10.2).
    """
    return arrays if _is_body.value else jax.lax.optimization_barrier(arrays)


def on_device(array: jax.Array) -> jax.Array:
    """Returns the value in the memory in which programs compute."""
    return in_memory(array, DEVICE)


def cut(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Returns the logical array of a padded one."""
    return (
        array
        if array.shape == shape
        else sharded.same(jax.lax.slice(array, (0,) * len(shape), shape), array)
    )


def pad(array: jax.Array, sharding: Sharding | None, shape: tuple[int, ...]) -> jax.Array:
    """Returns the array padded for this sharding: at the end of the dims that a mesh does not
    divide."""
    physical = shape if sharding is None else sharding.padded_shape(shape)
    if physical != shape:
        return jnp.pad(
            array, [(0, wide - narrow) for wide, narrow in zip(physical, shape, strict=True)]
        )
    return array if sharding is None else _apart(array, sharding)


def _apart(array: jax.Array, sharding: Sharding) -> jax.Array:
    """Returns the array; a slice is taken of a copy of its source instead (XLA removes the copy
    after partitioning).

    A slice may have shards of the same size as its source. XLA then takes both for one array and
    caches its resharding, so that the second of the two to be resharded gets the shape of the first
    (jaxlib 0.10.2, both partitioners).
    """
    if not is_slice(array):
        return array
    made_by = _made_by(array)
    (source,) = made_by.in_tracers
    is_open = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * array.ndim)
    copy = jax.lax.with_sharding_constraint(
        source, NamedSharding(sharding.in_program().mesh, is_open)
    )
    return made_by.primitive.bind(copy, **made_by.params)


def is_slice(array: jax.Array) -> bool:
    """True for a value of a program that is a slice of another one."""
    made_by = _made_by(array)
    return made_by is not None and made_by.primitive.name == "slice"


def _made_by(array: jax.Array) -> Any:
    return getattr(array, "parent", None)  # inputs and constants have none
