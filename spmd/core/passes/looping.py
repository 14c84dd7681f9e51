"""The ops that a loop of turns becomes: the loop, its rows taken one by one, stacked or joined."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..ir.op import Arrays, Entry, Layouts, Lowering
from .alike import CARRIED, INNER, ROW, Wire


@dataclass(frozen=True, slots=True)
class Op:
    """An op of a turn: what it reads, and where each of its lifted numbers comes from: one that grows evenly from turn
    to turn ("f" or "i", which, by how much), or a list of one a turn ("v", which, 0)."""

    entry: Entry
    wires: tuple[Wire, ...]
    numbers: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Loop(Lowering):
    """Turns: a loop whose number of turns is the first lifted integer, those behind it where each row begins.

    kept: by op and result, and whether the last turn's alone. steps: how far the next turn's row is. The operands: what
    is the same for all turns, what the first one reads of the carried, rows, lists of numbers.
    """

    body: tuple[Op, ...]
    carried: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int, bool], ...]
    steps: tuple[int, ...]
    num_sames: int
    num_inits: int
    num_rows: int

    @property
    def opaque(self) -> bool:
        return any(op.entry.lowering.opaque for op in self.body)

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        ends = list(itertools.accumulate((self.num_sames, self.num_inits, self.num_rows)))
        sames, inits = operands[: ends[0]], operands[ends[0] : ends[1]]
        rows, vectors = operands[ends[1] : ends[2]], operands[ends[2] :]
        count, starts, evenly = numbers[0], numbers[1 : 1 + self.num_rows], numbers[1 + self.num_rows :]

        def turn(number: jax.Array, state: Any) -> Any:
            carried, kept = state
            values: list[tuple[jax.Array, ...]] = []
            for one in self.body:
                given = [_read(wire, number, values, carried, sames, rows, starts, self.steps) for wire in one.wires]
                lifted = [
                    vectors[which][number] if kind == "v" else evenly[which] + step * number
                    if step else evenly[which]
                    for kind, which, step in one.numbers
                ]  # fmt: skip
                values.append(one.entry.lower(given, lifted, [None] * len(given)))
            made = [values[offset][result] for offset, result, _ in self.kept]
            after = [
                new if is_last else jax.lax.dynamic_update_index_in_dim(old, new, number, 0)
                for old, new, (_, _, is_last) in zip(kept, made, self.kept, strict=True)
            ]
            return tuple(values[offset][result] for offset, result in self.carried), tuple(after)

        empty = tuple(jnp.zeros(meta.shape, meta.struct.dtype) for meta in op.metas)
        return jax.lax.fori_loop(0, count, turn, (tuple(inits), empty))[1]


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
    """One row of what a loop has kept."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jax.lax.dynamic_index_in_dim(operands[0], numbers[0], 0, keepdims=False),)


@dataclass(frozen=True, slots=True)
class Stack(Lowering):
    """The operands as rows."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (jnp.stack(operands),)


@dataclass(frozen=True, slots=True)
class Join(Lowering):
    """Values and the rows of a loop along a dim: `before` of them, the rows, of which only the run knows how many
    count, and `after` behind these."""

    dim: int
    is_stack: bool
    before: int
    after: int

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
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
