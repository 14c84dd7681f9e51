"""Loops of a program that count their iterations: rows of stacks that each reads and writes, its
scalar arguments."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

# a tuple whose first part is the number of iterations so far
State = TypeVar("State", bound="tuple[Any, ...]")


def count_up(iterations: int, iteration: Callable[[State], State], state: State) -> State:
    """Returns the state after `iterations` iterations; its first part is 0 in 32 bits, and each
    iteration adds one.

    XLA's TPU compiler omits the initial value of a buffer that such a loop fills, if the loop
    counts in 32 bits: `jax.lax.scan` counts in 64 where arrays may have 64.
    """
    return jax.lax.while_loop(lambda state: state[0] < np.int32(iterations), iteration, state)


# --- scalar arguments -----------------------------------------------------------------------------

# The increment of a scalar argument of the body per iteration (0: none); EACH: the op has one for
# each iteration. Or, as no scalar argument of the op: the integers of all iterations, by row.
EACH = None
Step = int | tuple[int, ...] | None


def by_iteration(vector: jax.Array, steps: Sequence[Step], iterations: int) -> jax.Array:
    """Returns the scalar arguments of the body, [iterations, number of them] by row, from those of
    the op."""
    indices = np.zeros((iterations, len(steps)), np.int64)
    constants, is_known = (
        np.zeros_like(indices),
        np.array([isinstance(step, tuple) for step in steps], bool),
    )
    # A tuple's integers are constants here; EACH takes a scalar argument per iteration, others one.
    start = 0
    for column, step in enumerate(steps):
        if isinstance(step, tuple):
            constants[:, column] = step
        else:
            indices[:, column] = start + (np.arange(iterations) if step is EACH else 0)
            start += iterations if step is EACH else 1
    if not start:
        return jnp.asarray(constants.astype(vector.dtype))
    result = vector[indices]
    if is_known.any():
        result = jnp.where(is_known, constants.astype(vector.dtype), result)
    increments = np.array([step if isinstance(step, int) else 0 for step in steps], vector.dtype)
    # An int is an increment per iteration.
    by_row = np.arange(iterations).astype(vector.dtype)[:, None]
    return result + increments * by_row if increments.any() else result
