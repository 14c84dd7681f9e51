"""Results of ops outside of a loop that are rows of the stacks of the loop's results (`Loop.peeled`).

The backward pass of the first layer has no gradient of its input to make, so that it is no iteration of the loop; but
its weights' gradients are rows of the stacks that the loop writes, and their reader, an optimizer, is one op.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from ..ir.graph import Node, Value, origin
from ..ir.loops import Loop, Result
from ..ops import split
from .loop_counter import with_row
from .stack_rows import Made, Row, made_of, plain, replace


def num_before(loop: Loop, where: Result) -> int:
    """Counts the rows of a stack before those of the iterations."""
    return -min(0, *loop.peeled.get(where, {0: None}))


def num_rows(loop: Loop, where: Result) -> int:
    """Counts the rows of the stack of a result."""
    return loop.iterations + len(loop.peeled.get(where, {}))


def filled(stack: jax.Array, loop: Loop, where: Result, values: Mapping[Value, Sequence[Made]]) -> jax.Array:
    """Returns a stack with the rows set that are computed before the loop begins."""
    for row, value in loop.peeled.get(where, {}).items():
        if origin(value) in values:
            stack = with_row(stack, plain(made_of(value, values)), row + num_before(loop, where))
    return stack


def note(loop: Loop, where: Result, stack: jax.Array, values: dict[Value, Sequence[Made]]) -> None:
    """Makes the peeled values of a result refer to their rows of its stack."""
    for row, value in loop.peeled.get(where, {}).items():
        if origin(value) in values:
            there = Row(stack, row + num_before(loop, where), plain(made_of(value, values)))
            replace(value, there, values)


def find(loops: Sequence[Loop]) -> dict[Node, list[tuple[Loop, Result, int]]]:
    """Returns, by the op that computes it, the loop, result and row of each peeled value."""
    found: dict[Any, list[tuple[Loop, Result, int]]] = {}
    for loop in loops:
        for where, others in loop.peeled.items():
            for row, value in others.items():
                found.setdefault(origin(value), []).append((loop, where, row))
    return found


def join(loop: Loop, where: Result, row: int, values: dict[Value, Sequence[Made]]) -> None:
    """Writes a peeled value into its row of the stack, if the loop was lowered before and has a row for it."""
    there = _stack(loop, where, values)
    if there is None:
        return
    stack = with_row(there, plain(made_of(loop.peeled[where][row], values)), row + num_before(loop, where))
    split.note(stack, split.sharding_of(there))
    _set(loop, where, stack, values)


def _stack(loop: Loop, where: Result, values: Mapping[Value, Sequence[Made]]) -> jax.Array | None:
    """Returns the stack of a result if its loop is lowered and has rows for the peeled values; else None."""
    place, index = where
    first = values.get(loop.node(0, place), ())
    if not first or not isinstance(one := first[index], Row) or one.stack.shape[0] != num_rows(loop, where):
        return None
    return one.stack


def _set(loop: Loop, where: Result, stack: jax.Array, values: dict[Value, Sequence[Made]]) -> None:
    """Makes all rows of a result refer to this stack."""
    place, index = where
    for iteration in range(loop.iterations):
        node, there = loop.node(iteration, place), Row(stack, loop.row(iteration) + num_before(loop, where))
        values[node] = [there if i == index else old for i, old in enumerate(values[node])]
    note(loop, where, stack, values)
