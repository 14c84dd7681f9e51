"""Loops of a program that count their iterations, and read and write a row of a stack in each."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def count_up(iterations: int, iteration: Callable[[Any], Any], state: Any) -> Any:
    """Returns the state after `iterations` iterations; its first part is `first_iteration()`, and each iteration adds
    one.

    XLA's TPU compiler omits the initial value of a buffer that such a loop fills, if the loop counts in 32 bits:
    `jax.lax.scan` counts in 64 where arrays may have 64.
    """
    return jax.lax.while_loop(lambda state: state[0] < np.int32(iterations), iteration, state)


def first_iteration() -> jax.Array:
    """Returns the number of the first iteration, in 32 bits."""
    return jax.numpy.zeros((), np.int32)


def row_at(stack: jax.Array, at: jax.Array | int) -> jax.Array:
    """Returns the row of a stack [rows, ...] at an index, which is not negative."""
    return jax.lax.dynamic_index_in_dim(stack, at, 0, keepdims=False, allow_negative_indices=False)


def with_row(stack: jax.Array, row: jax.Array, at: jax.Array | int) -> jax.Array:
    """Returns the stack with the row at an index replaced."""
    return jax.lax.dynamic_update_index_in_dim(stack, row, at, 0, allow_negative_indices=False)
