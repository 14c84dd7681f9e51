"""The ops that iterations become: the loop, and its ys read by row, stacked or joined."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..ir.op import Arrays, Layouts, Lowering, OpSpec
from .isomorphic import CARRIED, INNER, ROW, Wire


@dataclass(frozen=True, slots=True)
class Op:
    """An op of an iteration: the sources of its operands and of its scalar arguments.

    A scalar argument changes by a constant step from iteration to iteration ("f" or "i", its index, the step), or is an
    element of a vector with one per iteration ("v", the vector's index, 0).
    """

    op: OpSpec
    wires: tuple[Wire, ...]
    numbers: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Loop(Lowering):
    """A loop whose trip count is the first integer scalar argument; the next ones are the first rows of the xs.

    ys: by op and result, and whether only the last iteration's is kept. steps: the distance of an x's row in the next
    iteration. The operands: the consts, the initial carry, xs, vectors of scalar arguments.
    """

    body: tuple[Op, ...]
    carry: tuple[tuple[int, int], ...]
    ys: tuple[tuple[int, int, bool], ...]
    steps: tuple[int, ...]
    num_sames: int
    num_inits: int
    num_rows: int

    @property
    def opaque(self) -> bool:
        return any(op.op.lowering.opaque for op in self.body)

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        ends = list(itertools.accumulate((self.num_sames, self.num_inits, self.num_rows)))
        sames, inits = operands[: ends[0]], operands[ends[0] : ends[1]]
        rows, vectors = operands[ends[1] : ends[2]], operands[ends[2] :]
        count, starts, evenly = numbers[0], numbers[1 : 1 + self.num_rows], numbers[1 + self.num_rows :]

        def iteration(number: jax.Array, state: Any) -> Any:
            carried, kept = state
            values: list[tuple[jax.Array, ...]] = []
            for one in self.body:
                given = [_read(wire, number, values, carried, sames, rows, starts, self.steps) for wire in one.wires]
                scalar_args = [
                    vectors[which][number] if kind == "v" else evenly[which] + step * number
                    if step else evenly[which]
                    for kind, which, step in one.numbers
                ]  # fmt: skip
                values.append(one.op.lower(given, scalar_args, [None] * len(given)))
            made = [values[offset][result] for offset, result, _ in self.ys]
            after = [
                new if is_last else jax.lax.dynamic_update_index_in_dim(old, new, number, 0)
                for old, new, (_, _, is_last) in zip(kept, made, self.ys, strict=True)
            ]
            return tuple(values[offset][result] for offset, result in self.carry), tuple(after)

        empty = tuple(jnp.zeros(meta.shape, meta.struct.dtype) for meta in op.metas)
        return jax.lax.fori_loop(0, count, iteration, (tuple(inits), empty))[1]


def _read(
    wire: Wire, number: jax.Array, values: Any, carried: Any, sames: Arrays, rows: Arrays, starts: Arrays,
    steps: Sequence[int],
) -> jax.Array:  # fmt: skip
    kind, which, result = wire
    if kind == INNER:
        return values[which][result]
    if kind == ROW:
        return jax.lax.dynamic_index_in_dim(rows[which], starts[which] + steps[which] * number, 0, keepdims=False)
    return carried[which] if kind == CARRIED else sames[which]


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
        made = jnp.pad(jnp.concatenate([*first, rows], self.dim), room)
        if last:
            new = jnp.concatenate(last, self.dim)
            made = jax.lax.dynamic_update_slice_in_dim(made, new, numbers[0] + self.before, self.dim)
        return (made,)
