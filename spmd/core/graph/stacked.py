"""Stacked: rows of one array [rows, ...], how one is read and how one is written, wherever the
array lies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Index = jax.Array | np.int32 | int  # of a row, not negative


def read_row(stack: jax.Array, index: Index) -> jax.Array:
    """Returns a row of a stack."""
    return jax.lax.dynamic_index_in_dim(
        stack, index, 0, keepdims=False, allow_negative_indices=False
    )


def write_row(stack: jax.Array, row: jax.Array, index: Index) -> jax.Array:
    """Returns the stack with `row` at this index."""
    return jax.lax.dynamic_update_index_in_dim(stack, row, index, 0, allow_negative_indices=False)


@dataclass(slots=True, eq=False)
class StackRow:
    """A value of a program that is one row of an array; an op that reads it takes the slice.

    plain: the value as an array of its own, once there is one.
    """

    stack: jax.Array
    index: int
    plain: jax.Array | None = None

    def array(self) -> jax.Array:
        if self.plain is None:
            self.plain = jax.lax.index_in_dim(self.stack, self.index, keepdims=False)
        return self.plain


Made = jax.Array | StackRow  # a value of a program


def plain(value: Made) -> jax.Array:
    """Returns a value as an array of its own."""
    return value.array() if isinstance(value, StackRow) else value


class Stacked(NamedTuple):
    """Rows of an array, by their indices."""

    array: jax.Array
    rows: Sequence[int]

    @staticmethod
    def of(values: Sequence[Made], *, in_any_order: bool = False) -> "Stacked | None":
        """Returns values as rows of one array, or None if they are not. They must be neighbours in
        order, forwards or backwards, unless `in_any_order`."""
        first = values[0]
        if not isinstance(first, StackRow):
            return None
        rows = [
            value.index
            for value in values
            if isinstance(value, StackRow) and value.stack is first.stack
        ]
        step = 1 if rows[-1] >= rows[0] else -1
        stretch = range(rows[0], rows[0] + step * len(rows), step)
        if len(rows) < len(values) or not (in_any_order or rows == list(stretch)):
            return None
        return Stacked(first.stack, stretch if rows == list(stretch) else rows)

    def index_of(self, number: Index) -> Index:
        """Returns `rows[number]`, an index in the array; the number may be a traced value."""
        if not isinstance(self.rows, range):
            return jnp.asarray(np.array(self.rows, np.int32))[number]
        if self.rows.step == 1:
            return number if self.rows.start == 0 else self.rows.start + number
        return self.rows.start + self.rows.step * number

    def read(self, number: Index) -> jax.Array:
        return read_row(self.array, self.index_of(number))

    def write(self, row: jax.Array, number: Index) -> jax.Array:
        """Returns the array with `row` written at `rows[number]`."""
        return write_row(self.array, row, self.index_of(number))

    def alone(self) -> jax.Array:
        """Returns an array of these rows alone, in their order."""
        if not isinstance(self.rows, range):
            return jnp.stack([StackRow(self.array, index).array() for index in self.rows])
        if self.rows.step < 0:
            return jnp.flip(Stacked(self.array, self.rows[::-1]).alone(), 0)
        if len(self.rows) == self.array.shape[0]:
            return self.array
        return jax.lax.slice_in_dim(self.array, self.rows.start, self.rows.stop)
