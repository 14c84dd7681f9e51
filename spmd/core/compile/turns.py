"""Loops of a program that count their turns, and read and write a row of a stack in each."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def count_up(turns: int, turn: Callable[[Any], Any], state: Any) -> Any:
    """The state after so many turns; its first part is `first_turn()`, which each turn makes one more.

    XLA's TPU compiler leaves out what a buffer begins with that such a loop fills, where it counts in 32 bits:
    `jax.lax.scan` counts in 64 where arrays may have 64.
    """
    return jax.lax.while_loop(lambda state: state[0] < np.int32(turns), turn, state)


def first_turn() -> jax.Array:
    """The number of the first turn, in 32 bits."""
    return jax.numpy.zeros((), np.int32)


def row_at(stack: jax.Array, at: jax.Array | int) -> jax.Array:
    """The row of a stack [rows, ...] at a place, which is not negative."""
    return jax.lax.dynamic_index_in_dim(stack, at, 0, keepdims=False, allow_negative_indices=False)


def with_row(stack: jax.Array, row: jax.Array, at: jax.Array | int) -> jax.Array:
    """The stack with another row there."""
    return jax.lax.dynamic_update_index_in_dim(stack, row, at, 0, allow_negative_indices=False)
