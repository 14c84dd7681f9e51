"""How a value inside a program is laid out: the constraint, and the padding of dims that a mesh does not divide."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from .value import DEVICE, HOST, Sharding


def constrain(array: jax.Array, sharding: Sharding) -> jax.Array:
    """Asks the partitioner to lay an intermediate value out so; an uneven dim is padded for it and cut again."""
    padded = pad(array, sharding, array.shape)
    layout = sharding.with_spec(sharding.spec).in_program()
    return in_memory(cut(jax.lax.with_sharding_constraint(padded, layout), array.shape), sharding.memory)


def in_memory(array: jax.Array, memory: str) -> jax.Array:
    """The value in that memory."""
    space = jax.memory.Space.Host if memory == HOST else jax.memory.Space.Device
    return array if jax.typeof(array).memory_space == space else jax.device_put(array, space)


def on_device(array: jax.Array) -> jax.Array:
    """The value in the memory in which programs compute."""
    return in_memory(array, DEVICE)


def cut(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The logical array of a padded one."""
    return array if array.shape == shape else jax.lax.slice(array, (0,) * len(shape), shape)


def pad(array: jax.Array, sharding: Sharding | None, shape: tuple[int, ...]) -> jax.Array:
    """The array as it can be laid out so: padded at the end of the dims that a mesh does not divide."""
    physical = shape if sharding is None else sharding.padded_shape(shape)
    if physical != shape:
        return jnp.pad(array, [(0, wide - narrow) for wide, narrow in zip(physical, shape, strict=True)])
    return array if sharding is None else _apart(array, sharding)


def _apart(array: jax.Array, sharding: Sharding) -> jax.Array:
    """The array; where it is a slice of another, that slice of a copy (which XLA takes away once it has partitioned).

    The first elements of a split dim may lie on the devices as the whole does, in pieces of the same size. XLA then has
    one array for both, and remembers with it what came of laying it out anew: the second of the two that is laid out
    so has the first one's shape (jaxlib 0.10.2, both partitioners). Only such a slice is made of the copy.
    """
    made_by: Any = getattr(array, "parent", None)  # an input and a constant are made by nothing
    if made_by is None or made_by.primitive.name != "slice":
        return array
    (whole,) = made_by.in_tracers
    is_open = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * array.ndim)
    copy = jax.lax.with_sharding_constraint(whole, NamedSharding(sharding.in_program().mesh, is_open))
    return made_by.primitive.bind(copy, **made_by.params)
