"""The ops of stacks whose number of rows is dynamic: a row read, rows stacked, the ys of a loop joined."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ..core.extend import Arrays, Layouts, Lowering, OpSpec


@dataclass(frozen=True, slots=True)
class TakeRow(Lowering):
    """Reads one row of a loop's ys."""

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jax.lax.dynamic_index_in_dim(operands[0], numbers[0], 0, keepdims=False),)


@dataclass(frozen=True, slots=True)
class Stack(Lowering):
    """Stacks the operands."""

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jnp.stack(operands),)


@dataclass(frozen=True, slots=True)
class Join(Lowering):
    """Joins values and the ys of a loop along a dim: `before` of them, then the rows, whose number is a scalar
    argument, then `after` values."""

    dim: int
    is_stack: bool
    before: int
    after: int

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        *first, rows = operands[: self.before + 1]
        last = operands[self.before + 1 :]
        rows = jnp.moveaxis(rows if self.is_stack else jnp.squeeze(rows, self.dim + 1), 0, self.dim)
        if self.is_stack:
            first, last = ([jnp.expand_dims(array, self.dim) for array in arrays] for arrays in (first, last))
        room = [(0, self.after if dim == self.dim else 0) for dim in range(rows.ndim)]
        result = jnp.pad(jnp.concatenate([*first, rows], self.dim), room)
        if last:
            new = jnp.concatenate(last, self.dim)
            result = jax.lax.dynamic_update_slice_in_dim(result, new, numbers[0] + self.before, self.dim)
        return (result,)
