"""Values of a program that are rows of one array, and arrays made of such rows."""

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...ops.shape import ElementRun
from ..graph.graph import Value
from ..graph.op import Layouts, Lowering
from ..sharding.constrain import constrain, in_memory, near, on_device, space_of
from ..sharding.value import Sharding

# The lowerings whose operands may be rows of one array; the results of such a list op are rows, too.
TAKE_ROWS: set[type[Lowering]] = set()
# Those that take operands in the host's memory as they are, and not only on the device.
ANY_MEMORY: set[type[Lowering]] = set()


class StackRow:
    """A value that is one row of an array in the program; an op that reads it takes the slice.

    plain: the value as an array of its own, if it was made.
    """

    __slots__ = ("index", "plain", "stack")

    def __init__(self, stack: jax.Array, index: int, plain: jax.Array | None = None):
        self.stack = stack
        self.index = index
        self.plain = plain

    def array(self) -> jax.Array:
        if self.plain is None:
            self.plain = jax.lax.index_in_dim(self.stack, self.index, keepdims=False)
        return self.plain


Made = jax.Array | StackRow


def plain(made: Made) -> jax.Array:
    """Returns a value as an array of its own."""
    return made.array() if isinstance(made, StackRow) else made


class StackRows(NamedTuple):
    """Rows of an array: `array[first]`, `array[first + step]`, and so on; step is 1 or -1."""

    array: jax.Array
    first: int
    step: int


def stretch(values: Sequence[Made], layout: Sharding | None) -> StackRows:
    """Returns values as rows of one array: of their own, or of a new one, sharded as all of them are known to be."""
    stack_rows = find_stretch(values)
    if stack_rows is not None:
        return stack_rows
    stack = joined(values)
    return StackRows(stack if layout is None else constrain(stack, layout.behind_rows()), 0, 1)


def find_stretch(values: Sequence[Made]) -> StackRows | None:
    """Returns the array whose neighbouring rows these values are; None if there is none."""
    first, last = values[0], values[-1]
    if not isinstance(first, StackRow) or not isinstance(last, StackRow):
        return None
    step = 1 if last.index >= first.index else -1
    for i, value in enumerate(values):
        if not isinstance(value, StackRow) or value.stack is not first.stack or value.index != first.index + i * step:
            return None
    return StackRows(first.stack, first.index, step)


def taken(array: jax.Array, run: ElementRun, positions: Sequence[int]) -> list[Made]:
    """Returns the adjacent runs of an array that start at these positions, as rows of one array."""
    count, axis, first = len(positions), run.axis, min(positions)
    part = jax.lax.slice_in_dim(array, first, first + count * run.count, axis=axis)
    size = () if run.is_select else (run.count,)
    stack = jnp.moveaxis(part.reshape(*part.shape[:axis], count, *size, *part.shape[axis + 1 :]), axis, 0)
    return [StackRow(stack, (position - first) // run.count) for position in positions]


def joined(values: Sequence[Made]) -> jax.Array:
    """Returns these values, which have one shape and dtype, as one array with a row for each; stretches are sliced."""
    parts: list[jax.Array] = []
    start = 0
    while start < len(values):
        stop = start + 1
        while stop < len(values) and _goes_on(values[stop - 1], values[stop]):
            stop += 1
        value = values[start]
        if isinstance(value, StackRow) and stop - start > 1:
            parts.append(rows(StackRows(value.stack, value.index, 1), stop - start))
        else:
            stop = start + 1
            parts.append(plain(value)[None])
        start = stop
    if len(set(map(space_of, parts))) > 1:
        parts = list(map(on_device, parts))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def as_stack(values: Sequence[Made]) -> jax.Array:
    """Returns these values as one array: the one in which most of them are in their places, updated with the others."""
    stacks = Counter(
        id(value.stack)
        for i, value in enumerate(values)
        if isinstance(value, StackRow) and value.index == i and value.stack.shape[0] == len(values)
    )
    if not stacks:
        return joined(values)
    ((name, _),) = stacks.most_common(1)
    stack = home = next(value.stack for value in values if isinstance(value, StackRow) and id(value.stack) == name)
    at_home = [isinstance(one, StackRow) and one.stack is home and one.index == i for i, one in enumerate(values)]
    for is_there, group in itertools.groupby(range(len(values)), key=at_home.__getitem__):
        if not is_there:
            places = list(group)
            update = in_memory(joined([values[i] for i in places]), space_of(stack))
            stack = jax.lax.dynamic_update_slice_in_dim(stack, update, places[0], 0)
    return stack


def _goes_on(row: Made, other: Made) -> bool:
    if not isinstance(row, StackRow) or not isinstance(other, StackRow):
        return False
    return row.stack is other.stack and other.index == row.index + 1


def rows(found: StackRows, count: int) -> jax.Array:
    """Returns the first `count` rows of a stretch, in its order."""
    array, first, step = found
    if step < 0:
        return jnp.flip(rows(StackRows(array, first - count + 1, 1), count), 0)
    return array if count == array.shape[0] else jax.lax.slice_in_dim(array, first, first + count)


def move_rows(
    before: jax.Array, after: jax.Array, written: Collection[int], values: dict[Value, Sequence[Made]]
) -> None:
    """Makes the unwritten rows of a stack refer to the new stack: a reader of the old one would need a copy."""

    def moved(results: Made) -> Made:  # or None: an unread result
        if isinstance(results, StackRow) and results.stack is before and results.index not in written:
            return StackRow(after, results.index)
        return results

    for value, results in values.items():
        values[value] = [moved(one) for one in results]


def rows_on_device(values: Sequence[Made], layouts: Layouts) -> list[Made]:
    """Returns the values in device memory, the rows of one stack again as rows of one.

    layouts: the known sharding of each. The fetched values are annotated with it again: XLA would otherwise reshard a
    value before it is on the device, by collectives between the hosts.
    """
    moved: dict[int, jax.Array] = {}
    near_values: list[Made] = []
    for value, sharding in zip(values, layouts, strict=True):
        array = value.stack if isinstance(value, StackRow) else value
        target = moved.get(id(array))
        if target is None:
            target = on_device(array)
            if target is not array and sharding is not None:
                target = constrain(target, near(sharding.behind_rows() if isinstance(value, StackRow) else sharding))
            moved[id(array)] = target
        if target is array:
            near_values.append(value)
        else:
            near_values.append(StackRow(target, value.index) if isinstance(value, StackRow) else target)
    return near_values


def fetched(values: Sequence[Made], places: Sequence[int], layouts: Layouts) -> list[Made]:
    """Returns the values, those at these places on the device: see `rows_on_device`."""
    fetched_values = list(values)
    near_values = rows_on_device([values[index] for index in places], [layouts[index] for index in places])
    for index, near_value in zip(places, near_values, strict=True):
        fetched_values[index] = near_value
    return fetched_values


def scalars(values: Sequence[Made]) -> jax.Array:
    """Returns these numbers as a vector."""
    stack_rows = find_stretch(values)
    if stack_rows is not None:
        return rows(stack_rows, len(values))
    parts: dict[int, tuple[jax.Array, int]] = {}
    places, size = [], 0
    for value in values:
        array, index = (value.stack, value.index) if isinstance(value, StackRow) else (value[None], 0)
        if id(array) not in parts:
            parts[id(array)] = (array, size)
            size += array.shape[0]
        places.append(parts[id(array)][1] + index)
    return jnp.concatenate([array for array, _ in parts.values()])[np.array(places)]
