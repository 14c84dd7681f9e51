"""Documents whose ids are data: the ids of a mask's rows and columns, and the blocks that they
leave, by the lowest and the highest id of each block, on the device. Positions in documents, of
which the ids are made, are read as rows and columns.

Not here: ids that are known, which are equations of a mask (`mask_blocks`).
"""

from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .computed import SAME, Value, full_of, name_of, producer, shape_of
from .mask_blocks import (
    Line,
    MaskEquations,
    conditions_of,
    constant_at,
    fits,
    in_order,
    intersection,
    order_of,
    reached,
)
from .mask_reader import Axes, Values, bare, dtype_of, equations_and_values

# Ids of rows and of columns that are hidden altogether.
_NO_COLUMN, _NO_ROW = -(2**31 - 1), -(2**31 - 2)


class Side(NamedTuple):
    """The ids of rows or of columns; False for one that is hidden altogether."""

    ids: jax.Array
    is_in: jax.Array


@dataclass(frozen=True, slots=True)
class Documents:
    """The conditions of a mask of data: a row and a column have an id each, which must be equal.

    ids: a pair of lines, or None. of_rows, of_columns: conditions of one of them alone, as of
    padding. rest: known. values: of the lines, with the axes of the mask along their dims.
    """

    shape: tuple[int, ...]
    ids: tuple[int, int] | None
    of_rows: tuple[int, ...]
    of_columns: tuple[int, ...]
    rest: MaskEquations | None
    values: Values

    @staticmethod
    def of(mask: Value) -> "Documents | None":
        """The documents of a mask of Booleans; None where other data is in it."""
        equations, values = equations_by_rows(mask)
        lines, rank = equations.lines, len(equations.shape)
        if rank > 4 or lines[-1].dtype != "bool":
            return None
        is_known: list[bool] = []
        for line in lines:
            is_known.append(line.name != "data" and all(is_known[i] for i in line.operands))
        batch = {0} if rank == 4 else set()
        sides = {"row": {rank - 2, *batch}, "column": {rank - 1, *batch}}
        conditions: dict[str, list[int]] = {"row": [], "column": [], "rest": []}
        ids: list[tuple[int, int]] = []
        for index in conditions_of(lines):
            line = lines[index]
            if is_known[index]:
                conditions["rest"].append(index)
                continue
            names = [name for name, axes in sides.items() if line.axes <= axes]
            if names and index in values:
                conditions[names[0]].append(index)
                continue
            pair = _pair(lines, index, sides["row"], sides["column"])
            if pair is None or ids or not all(i in values for i in pair):
                return None
            ids.append(pair)
        rest = None
        if conditions["rest"]:
            extended = list(lines)
            last = intersection(extended, conditions["rest"])
            rest = MaskEquations(tuple(reached(extended, last)), equations.shape)
            if not fits(rest):
                return None
            rest = rest.of_matrix()
        how = tuple(conditions["row"]), tuple(conditions["column"]), rest, values
        return Documents(equations.shape, ids[0] if ids else None, *how)

    def arrays(self) -> tuple[Side, Side]:
        """The sides of rows, [batch or 1, 1, rows], and of columns, [batch or 1, 1, 1, columns]."""
        sides = []
        for side, conditions in enumerate((self.of_rows, self.of_columns)):
            length = self.shape[side - 2]
            ids = jnp.zeros((1, 1), jnp.int32) if self.ids is None else self._array(self.ids[side])
            is_in = reduce(jnp.logical_and, map(self._array, conditions), jnp.ones((1, 1), bool))
            shape = max(len(ids), len(is_in)), length
            sides.append(Side(*(jnp.broadcast_to(x, shape)[:, None] for x in (ids, is_in))))
        rows, columns = sides
        return rows, Side(*(x[:, None] for x in columns))

    def _array(self, index: int) -> jax.Array:
        """A line as [batch or 1, positions or 1]."""
        value, axes = self.values[index]
        array = full_of(value)
        dims = [dim for dim, axis in enumerate(axes) if axis is not None]
        order = sorted(dims, key=lambda dim: axes[dim])  # type: ignore[arg-type,return-value]
        sizes = {axes[dim]: array.shape[dim] for dim in dims}
        array = jnp.squeeze(array, [dim for dim in range(array.ndim) if dim not in dims])
        array = array.transpose([dims.index(dim) for dim in order])
        rank = len(self.shape)
        of_batch = sizes.get(0, 1) if rank == 4 else 1
        return array.reshape(of_batch, array.size // of_batch)


def equations_by_rows(mask: Value) -> tuple[MaskEquations, Values]:
    """The equations of a mask and the values of their lines, with rows and columns in place of
    positions in documents, in conditions of the differences of these.

    Of a packed batch a document begins where positions do not rise by one. So inside of a document
    the difference of two positions is that of their rows.
    """
    equations, values = equations_and_values(mask)
    lines, conditions = equations.lines, list(conditions_of(equations.lines))
    pairs = [lines[i].operands for i in conditions if lines[i].name == "eq"]
    for sides in ([values[i] for i in pair if i in values] for pair in pairs):
        is_pair = len(sides) == 2 and name_of(sides[0][0]) == name_of(sides[1][0])
        if is_pair and (source := _positions_of(sides[0][0])) is not None:
            break
    else:
        return equations, values
    rank = len(equations.shape)
    matrix = {rank - 2, rank - 1}
    row_or_column = {
        index: Line("position", "int64", lines[index].axes & matrix, parameter=axes[-1])
        for index, (value, axes) in values.items()
        if any(_is_along(axes, of_ids) for _, of_ids in sides)
        and _behind_first(value) == (source, 0)
    }
    # Behind all lines those again, with rows and columns.
    count, both = len(lines), [*lines]
    for index, line in enumerate(lines):
        operands = tuple(i + count for i in line.operands)
        axes = frozenset[int]().union(*(both[i].axes for i in operands)) if operands else line.axes
        both.append(row_or_column.get(index, line._replace(operands=operands, axes=axes)))
    chosen = [
        i + count * MaskEquations(tuple(reached(both, i + count)), equations.shape).is_band
        for i in conditions
    ]
    order = order_of(both, intersection(both, chosen))
    by_rows = MaskEquations(tuple(in_order(both, order)), equations.shape)
    return by_rows, {order[i]: value for i, value in values.items() if i in order}


def _is_along(axes: Axes, of_ids: Axes) -> bool:
    """True if positions lie along the axes of ids; those of one sequence are of all."""
    pairs = zip(axes[::-1], of_ids[::-1], strict=False)
    return axes[-1:] == of_ids[-1:] and all(mine in (None, of_id) for mine, of_id in pairs)


def _positions_of(ids: Value) -> object | None:
    """The name of the positions of which ids of documents are made: these are a running sum of a
    condition, which is false only where a position is one more than that before it."""
    produced = producer(ids)
    if produced is None or produced[0].name != "cumsum" or produced[1]["reverse"]:
        return None
    started, values = equations_and_values(bare(produced[2][0]))
    lines, is_along = started.lines, produced[1]["axis"] == len(shape_of(ids)) - 1
    if lines[-1].dtype != "bool" or not is_along or np.dtype(dtype_of(ids)).itemsize < 4:
        return None
    for line in (lines[i] for i in conditions_of(lines, "or")):
        if line.name != "ne" or lines[line.operands[0]].name != "sub":
            continue
        step, terms = lines[line.operands[1]], lines[line.operands[0]].operands
        if step.name == "constant" and not step.axes and constant_at(step, {}) == 1:
            shifted = [_behind_first(values[i][0]) for i in terms if i in values]
            offsets, names = [offset for _, offset in shifted], {name for name, _ in shifted}
            if offsets == [0, -1] and len(names) == 1:
                return names.pop()
    return None


def _behind_first(vectors: Value) -> tuple[object, int]:
    """The name of the array of which these vectors, behind the first element, are elements, and
    their offset in it."""
    offset, length = 0, shape_of(vectors)[-1]
    while (produced := producer(vectors)) is not None:
        (primitive, params, operands), shape = produced, shape_of(vectors)
        source = operands[0] if operands else vectors
        sizes = shape_of(source)
        if primitive.name == "slice" and params["strides"] in (None, (1,) * len(shape)):
            if sizes[:-1] != shape[:-1]:
                break
            offset += params["start_indices"][-1]
        elif primitive.name == "concatenate" and params["dimension"] == len(shape) - 1:
            ends = np.cumsum([shape_of(x)[-1] for x in operands])
            part = int(np.searchsorted(ends, offset + 1, "right"))
            source = operands[part]
            offset += shape_of(source)[-1] - int(ends[part])
            if offset + length > shape_of(source)[-1]:
                break
        elif primitive.name == "broadcast_in_dim":
            if params["broadcast_dimensions"][-1:] != (len(shape) - 1,) or sizes[-1:] != shape[-1:]:
                break
        elif primitive.name not in SAME:
            break
        vectors = source
    return name_of(vectors), offset


def _pair(
    lines: tuple[Line, ...], index: int, of_rows: set[int], of_columns: set[int]
) -> tuple[int, int] | None:
    """The ids of rows and of columns that a line compares."""
    line = lines[index]
    if line.name != "eq":
        return None
    for row, column in (line.operands, line.operands[::-1]):
        is_side = lines[row].axes <= of_rows and lines[column].axes <= of_columns
        if is_side and all(np.dtype(lines[i].dtype).kind in "iu" for i in (row, column)):
            return row, column
    return None


def of_32_bits(rows: Side, columns: Side) -> tuple[jax.Array, jax.Array]:
    """Ids of rows and columns of a device, [batch or 1, positions], of 32 bits."""
    row_ids, column_ids = _of_32_bits(rows.ids[:, 0], columns.ids[:, 0, 0])
    return (
        jnp.where(rows.is_in[:, 0], row_ids, _NO_ROW),
        jnp.where(columns.is_in[:, 0, 0], column_ids, _NO_COLUMN),
    )


def _of_32_bits(rows: jax.Array, columns: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ids that are equal where these are: themselves, where all of them fit.

    Else each is the first row with its id, one row after the other: the TPU's compiler takes half a
    minute for a sort, and a second for a comparison of all with all.
    """
    shape = np.broadcast_shapes(rows.shape[:1], columns.shape[:1])
    # Sides and 32-bit halves apart: the compiler takes half as long as for one array of all.
    sides = [jnp.broadcast_to(x, (*shape, x.shape[1])).astype(jnp.int64) for x in (rows, columns)]
    halves = [(x.astype(jnp.int32), (x >> 32).astype(jnp.int32)) for x in sides]
    fits = reduce(
        jnp.logical_and, (jnp.all((high == low >> 31) & (low > _NO_ROW)) for low, high in halves)
    )

    def look(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        row = state[0] - 1
        of_low, of_high = (lax.dynamic_slice_in_dim(x, row, 1, 1) for x in halves[0])
        first_rows = (
            jnp.where((low == of_low) & (high == of_high), row, first)
            for (low, high), first in zip(halves, state[1:], strict=True)
        )
        return row, *first_rows

    start = jnp.where(fits, 0, rows.shape[1]).astype(jnp.int32)
    narrow = (jnp.where(fits, low, -_NO_COLUMN) for low, _ in halves)
    _, of_rows, of_columns = lax.while_loop(lambda state: state[0] > 0, look, (start, *narrow))
    return of_rows, of_columns


def visible(row_ids: jax.Array, column_ids: jax.Array, block: tuple[int, int]) -> jax.Array:
    """[row blocks, column blocks]: False where no row may have a column's id."""
    sides = []
    for ids, size, nothing in zip((row_ids, column_ids), block, (_NO_ROW, _NO_COLUMN), strict=True):
        blocks, most = ids.reshape(-1, size), jnp.iinfo(jnp.int32).max
        is_out = blocks == nothing
        lowest = jnp.where(is_out, most, blocks).min(1)
        sides.append((lowest, jnp.where(is_out, -most, blocks).max(1)))
    (row_low, row_high), (column_low, column_high) = sides
    return (row_low[:, None] <= column_high) & (column_low <= row_high[:, None])
