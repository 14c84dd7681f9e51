"""Values of a program that are rows of one array (`Stacked`), and arrays made of such rows."""

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ...ops.shape import ElementRun
from ..graph.graph import Value
from ..graph.op import Layouts, Lowering
from ..graph.stacked import Made as Made
from ..graph.stacked import Stacked as Stacked
from ..graph.stacked import StackRow as StackRow
from ..graph.stacked import plain as plain
from ..sharding.constrain import constrain, in_memory, near, on_device, space_of
from ..sharding.value import HOST, Sharding

# The lowerings whose operands may be rows of one array; the results of such a list op are rows,
# too.
TAKE_ROWS: set[type[Lowering]] = set()
# Lowerings of ops that take operands in the host's memory.
ANY_MEMORY: set[type[Lowering]] = set()


def as_rows(values: Sequence[Made], layout: Sharding | None) -> Stacked:
    """Returns values as rows of their common array, or of a new one. layout: their common sharding,
    if known."""
    # On the host rows are read in any order: a new array would be a copy there.
    is_on_host = isinstance(values[0], StackRow) and space_of(values[0].stack) == HOST
    stacked = Stacked.of(values, in_any_order=is_on_host)
    if stacked is not None:
        return stacked
    stack = joined(values)
    return Stacked(
        stack if layout is None else constrain(stack, layout.behind_rows()), range(len(values))
    )


def adjacent_runs(array: jax.Array, run: ElementRun, positions: Sequence[int]) -> list[Made]:
    """Returns the adjacent runs of an array that start at these positions, as rows of one array."""
    count, axis, lowest_start = len(positions), run.axis, min(positions)
    covered = jax.lax.slice_in_dim(array, lowest_start, lowest_start + count * run.count, axis=axis)
    size = () if run.is_select else (run.count,)
    stack = jnp.moveaxis(
        covered.reshape(*covered.shape[:axis], count, *size, *covered.shape[axis + 1 :]), axis, 0
    )
    return [StackRow(stack, (position - lowest_start) // run.count) for position in positions]


def joined(values: Sequence[Made]) -> jax.Array:
    """Returns values of one shape and dtype as one array with a row for each; neighbouring rows are
    one slice."""

    def run_key(numbered: tuple[int, Made]) -> tuple[int, int]:
        # Equal for neighbours: their rows in one stack are at one distance from their numbers.
        number, value = numbered
        return (
            (id(value.stack), value.index - number) if isinstance(value, StackRow) else (0, number)
        )

    parts: list[jax.Array] = []
    for _, group in itertools.groupby(enumerate(values), run_key):
        run = [value for _, value in group]
        stacked = Stacked.of(run) if len(run) > 1 else None
        parts.append(plain(run[0])[None] if stacked is None else stacked.alone())
    if len(set(map(space_of, parts))) > 1:
        parts = list(map(on_device, parts))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts)


def as_stack(values: Sequence[Made]) -> jax.Array:
    """Returns the values as a stack. If some are rows of an array at their own index, the stack is
    that array, updated with the others."""

    def home_of(row: int) -> jax.Array | None:
        value = values[row]
        if (
            isinstance(value, StackRow)
            and value.index == row
            and value.stack.shape[0] == len(values)
        ):
            return value.stack
        return None

    # By row, the array in which the value is in its place.
    homes = list(map(home_of, range(len(values))))
    ids = [id(home) for home in homes if home is not None]
    if not ids:
        return joined(values)
    stack = home = next(home for home in homes if id(home) == max(ids, key=ids.count))
    assert stack is not None
    for is_home, group in itertools.groupby(range(len(values)), key=lambda row: homes[row] is home):
        if not is_home:
            rows = list(group)
            update = in_memory(joined([values[row] for row in rows]), space_of(stack))
            stack = jax.lax.dynamic_update_slice_in_dim(stack, update, rows[0], 0)
    return stack


def move_rows(
    stack: jax.Array,
    new_stack: jax.Array,
    written: Collection[int],
    values: dict[Value, Sequence[Made]],
) -> None:
    """Makes the unwritten rows of a stack refer to the new stack: a reader of the old one would
    need a copy."""

    def moved(value: Made) -> Made:
        if isinstance(value, StackRow) and value.stack is stack and value.index not in written:
            return StackRow(new_stack, value.index)
        return value

    for value, results in values.items():
        values[value] = list(map(moved, results))


def rows_on_device(values: Sequence[Made], layouts: Layouts) -> list[Made]:
    """Returns the values in device memory; rows of one stack stay rows of one array.

    layouts: the known sharding of each. The fetched values are annotated with it again: XLA would
    otherwise reshard a value before it is on the device, by collectives between the hosts.
    """
    fetched_arrays: dict[int, jax.Array] = {}
    result: list[Made] = []
    for value, sharding in zip(values, layouts, strict=True):
        array = value.stack if isinstance(value, StackRow) else value
        # Each array once, for all of its rows.
        device_array = fetched_arrays.get(id(array))
        if device_array is None:
            device_array = on_device(array)
            if device_array is not array and sharding is not None:
                device_array = constrain(
                    device_array,
                    near(sharding.behind_rows() if isinstance(value, StackRow) else sharding),
                )
            fetched_arrays[id(array)] = device_array
        if device_array is not array:
            value = (
                StackRow(device_array, value.index) if isinstance(value, StackRow) else device_array
            )
        result.append(value)
    return result


def fetched(values: Sequence[Made], indices: Sequence[int], layouts: Layouts) -> list[Made]:
    """Returns the values, with those at these indices in device memory (see `rows_on_device`)."""
    near_values = rows_on_device(
        [values[index] for index in indices], [layouts[index] for index in indices]
    )
    near_value = dict(zip(indices, near_values, strict=True))
    return [near_value.get(index, value) for index, value in enumerate(values)]


def scalars(values: Sequence[Made]) -> jax.Array:
    """Returns these numbers as a vector."""
    stacked = Stacked.of(values)
    if stacked is not None:
        return stacked.alone()
    # Concatenates the arrays of the numbers, each once; then picks each number by its position.
    starts: dict[int, int] = {}
    parts: list[jax.Array] = []
    positions, size = [], 0
    for value in values:
        array, index = (
            (value.stack, value.index) if isinstance(value, StackRow) else (value[None], 0)
        )
        if id(array) not in starts:
            starts[id(array)] = size
            parts.append(array)
            size += array.shape[0]
        positions.append(starts[id(array)] + index)
    return jnp.concatenate(parts)[np.array(positions)]


# --- scalar arguments: constants of an export stay so inside of a composite ---------------------


def part(vector: jax.Array | np.ndarray, start: int, count: int) -> Any:
    """Returns the numbers of a region."""
    if isinstance(vector, np.ndarray):
        return vector[start : start + count]
    return jax.lax.slice(vector, (start,), (start + count,))


def element(vector: jax.Array | np.ndarray, index: int) -> jax.Array:
    """Returns one number; a constant as a scalar of its own."""
    if isinstance(vector, np.ndarray):
        return jnp.asarray(vector[index])
    return jax.lax.index_in_dim(vector, index, keepdims=False)
