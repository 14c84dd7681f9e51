"""What ops outside of a loop make that stands in the stack of what its turns make (`Loop.beside`).

The backward of the first layer has no gradient of its input to make, so that it is no turn of the loop; but its
weights' gradients are rows of the stacks that the loop writes, and what reads all of them, an optimizer, is one op.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ..ir.graph import Node, Value, origin
from ..ir.loops import Loop, Result
from ..ops import split
from .rows import Made, Row, made_of, plain, replace
from .turns import with_row


def num_before(loop: Loop, where: Result) -> int:
    """How many rows of a stack stand before those that the turns make of a result."""
    return -min(0, *loop.beside.get(where, {0: None}))


def num_rows(loop: Loop, where: Result) -> int:
    """How many rows the stack of a result has."""
    return loop.turns + len(loop.beside.get(where, {}))


def filled(stack: jax.Array, loop: Loop, where: Result, values: Mapping[Value, Sequence[Made]]) -> jax.Array:
    """A stack with the rows in it that are made before the loop begins."""
    for row, value in loop.beside.get(where, {}).items():
        if origin(value) in values:
            stack = with_row(stack, plain(made_of(value, values)), row + num_before(loop, where))
    return stack


def note(loop: Loop, where: Result, stack: jax.Array, values: dict[Value, Sequence[Made]]) -> None:
    """Notes that what was made beside a result is in its stack."""
    for row, value in loop.beside.get(where, {}).items():
        if origin(value) in values:
            there = Row(stack, row + num_before(loop, where), plain(made_of(value, values)))
            replace(value, there, values)


def find(loops: Sequence[Loop]) -> dict[Node, list[tuple[Loop, Result, int]]]:
    """By the op that makes it, what stands beside the results of loops, and in which row."""
    found: dict[Any, list[tuple[Loop, Result, int]]] = {}
    for loop in loops:
        for where, others in loop.beside.items():
            for row, value in others.items():
                found.setdefault(origin(value), []).append((loop, where, row))
    return found


def join(loop: Loop, where: Result, row: int, values: dict[Value, Sequence[Made]]) -> None:
    """Puts what was just made into its row of a stack, if its loop was lowered before and has left room for it."""
    there = _stack(loop, where, values)
    if there is None:
        return
    stack = with_row(there, plain(made_of(loop.beside[where][row], values)), row + num_before(loop, where))
    split.note(stack, split.lies(there))
    _set(loop, where, stack, values)


def _stack(loop: Loop, where: Result, values: Mapping[Value, Sequence[Made]]) -> jax.Array | None:
    """The stack of a result, where its loop is lowered and has rows for what stands beside."""
    place, index = where
    first = values.get(loop.node(0, place), ())
    if not first or not isinstance(one := first[index], Row) or one.stack.shape[0] != num_rows(loop, where):
        return None
    return one.stack


def _set(loop: Loop, where: Result, stack: jax.Array, values: dict[Value, Sequence[Made]]) -> None:
    """Has all rows of a stack be those of this one."""
    place, index = where
    for turn in range(loop.turns):
        node, there = loop.node(turn, place), Row(stack, loop.row(turn) + num_before(loop, where))
        values[node] = [there if i == index else old for i, old in enumerate(values[node])]
    note(loop, where, stack, values)
