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
    """Returns a value with its sharding constrained, padded for it along uneven dims and sliced
    back."""
    padded = pad(array, sharding, array.shape)
    target = near(sharding).in_program()
    result = in_memory(
        cut(jax.lax.with_sharding_constraint(padded, target), array.shape), sharding.memory
    )
    return sharded.note(result, sharded.dims_in(target, array.shape))


def near(sharding: Sharding) -> Sharding:
    """Returns the same sharding in device memory, in which programs compute."""
    return sharding if sharding.memory == DEVICE else sharding.with_spec(sharding.spec)


def in_memory(array: jax.Array, memory: str) -> jax.Array:
    """Returns the value in this memory, moved if it is in the other."""
    space = HOST if memory == HOST else DEVICE
    if space_of(array) == space:
        return array
    return jax.device_put(
        array, jax.memory.Space.Host if space == HOST else jax.memory.Space.Device
    )


def space_of(array: jax.Array) -> str:
    """Returns the memory kind of a traced array: `HOST` or `DEVICE`."""
    return HOST if jax.typeof(array).memory_space == jax.memory.Space.Host else DEVICE


_is_body = PerThread(False)  # whether the thread traces the body of a loop


def body() -> AbstractContextManager[None]:
    """Returns a context that marks the ops traced in it as the body of a loop or a branch."""
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
    """Returns an array without its padding: its first elements, of this shape."""
    return (
        array
        if array.shape == shape
        else sharded.same(jax.lax.slice(array, (0,) * len(shape), shape), array)
    )


def pad(array: jax.Array, sharding: Sharding, shape: tuple[int, ...]) -> jax.Array:
    """Returns the array padded for this sharding: at the end of the dims that a mesh does not
    divide."""
    physical = sharding.padded_shape(shape)
    if physical != shape:
        return jnp.pad(
            array, [(0, padded - size) for padded, size in zip(physical, shape, strict=True)]
        )
    return _with_copied_source(array, sharding)


def _with_copied_source(array: jax.Array, sharding: Sharding) -> jax.Array:
    """Returns the array, a slice as a slice of a copy of its source (XLA removes the copy after
    partitioning).

    A slice may have shards of the same size as its source. XLA then takes both for one array and
    caches its resharding, so that the second of the two to be resharded gets the shape of the first
    (jaxlib 0.10.2, both partitioners).
    """
    if not is_slice(array):
        return array
    slice_eqn = _eqn_of(array)
    (source,) = slice_eqn.in_tracers
    is_open = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * array.ndim)
    copy = jax.lax.with_sharding_constraint(
        source, NamedSharding(sharding.in_program().mesh, is_open)
    )
    return slice_eqn.primitive.bind(copy, **slice_eqn.params)


def is_slice(array: jax.Array) -> bool:
    """True for a value of a program that is a slice of another one."""
    eqn = _eqn_of(array)
    return eqn is not None and eqn.primitive.name == "slice"


def _eqn_of(array: jax.Array) -> Any:
    """Returns the jaxpr equation that computes a traced array; None for inputs and constants."""
    return getattr(array, "parent", None)
