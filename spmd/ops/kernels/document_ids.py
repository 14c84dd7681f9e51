"""Documents whose ids are data: the ids of a mask's rows and columns, and the blocks that they
leave, by the lowest and the highest id of each block, on the device. Positions in documents, of
which the ids are made, are read as rows and columns.

Not here: ids that are known, which are equations of a mask (`mask_blocks`).
"""

from dataclasses import dataclass
from functools import partial, reduce
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
    """The ids of rows or of columns; False for one that is hidden altogether.

    ids: None of rows, for those of the columns of their numbers. is_in: None where all are seen.
    """

    ids: jax.Array | None
    is_in: jax.Array | None


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
            ids = jnp.zeros((1, 1), jnp.int32) if self.ids is None else self._array(self.ids[side])
            is_in = reduce(jnp.logical_and, map(self._array, conditions)) if conditions else None
            whole = Side(None if side == 0 and self.is_of_one else ids, is_in)
            shape = max((len(x) for x in jax.tree.leaves(whole)), default=1), self.shape[side - 2]
            dims = tuple(range(1, 2 + side))
            sides.append(
                jax.tree.map(
                    lambda x, shape=shape, dims=dims: lax.expand_dims(
                        jnp.broadcast_to(x, shape), dims
                    ),
                    whole,
                )
            )
        rows, columns = sides
        return rows, columns

    @property
    def is_of_one(self) -> bool:
        """True if each row has the id of the column of its number."""
        rank, sides = len(self.shape), self.shape[-2:]
        if self.ids is None or sides[0] != sides[1]:
            return self.ids is None and sides[0] == sides[1]
        (rows, of_rows), (columns, of_columns) = (self.values[index] for index in self.ids)
        as_columns = tuple(rank - 1 if axis == rank - 2 else axis for axis in of_rows)
        return name_of(rows) == name_of(columns) and as_columns == tuple(of_columns)

    @property
    def leaves_no_row_out(self) -> bool:
        """True if a row is known to see the column of its number, but for what is known."""
        return self.is_of_one and not self.of_rows and not self.of_columns

    def _array(self, index: int) -> jax.Array:
        """A line as [batch or 1, positions or 1]."""
        value, axes = self.values[index]
        array = full_of(value)
        dims = [dim for dim, axis in enumerate(axes) if axis is not None]
        order = sorted(dims, key=lambda dim: axes[dim])  # type: ignore[arg-type,return-value]
        sizes = {axes[dim]: array.shape[dim] for dim in dims}
        array = lax.squeeze(array, [dim for dim in range(array.ndim) if dim not in dims])
        array = lax.transpose(array, [dims.index(dim) for dim in order])
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


def of_32_bits(
    rows: Side, columns: Side, length: int, first: jax.Array | int = 0
) -> tuple[jax.Array, jax.Array]:
    """Ids of rows and columns of a device, [batch or 1, positions], of 32 bits.

    length, first: the rows of the device.
    """
    assert columns.ids is not None, "only rows have the ids of columns"
    of_columns = lax.squeeze(columns.ids, (1, 2))
    if rows.ids is None:
        (column_ids,) = _of_32_bits(of_columns)
        row_ids = column_ids
        if length < column_ids.shape[1]:
            row_ids = lax.dynamic_slice_in_dim(column_ids, first, length, 1)
    else:
        row_ids, column_ids = _of_32_bits(lax.squeeze(rows.ids, (1,)), of_columns)
    if rows.is_in is not None:
        row_ids = jnp.where(rows.is_in[:, 0], row_ids, _NO_ROW)
    if columns.is_in is not None:
        column_ids = jnp.where(columns.is_in[:, 0, 0], column_ids, _NO_COLUMN)
    return row_ids, column_ids


# Traced once for forward and backward.
@jax.jit
def _of_32_bits(*sides: jax.Array) -> list[jax.Array]:
    """Ids that are equal where these are: themselves, where all of them fit.

    Else each is the first of the first side with its id, one after the other: the TPU's compiler
    takes half a minute for a sort, and a second for a comparison of all with all.
    """
    batch = max(len(x) for x in sides)
    # Sides and 32-bit halves apart: the compiler takes half as long as for one array of all.
    whole = [
        lax.convert_element_type(jnp.broadcast_to(x, (batch, x.shape[1])), np.int64) for x in sides
    ]
    halves = [
        (
            lax.convert_element_type(x, np.int32),
            lax.convert_element_type(lax.shift_right_arithmetic(x, np.int64(32)), np.int32),
        )
        for x in whole
    ]
    fits = reduce(lax.bitwise_and, (_fits(low, high) for low, high in halves))

    def look(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        place = lax.sub(state[0], np.int32(1))
        of_low, of_high = (
            lax.dynamic_slice_in_dim(x, place, 1, 1, allow_negative_indices=False)
            for x in halves[0]
        )
        first_places = (
            lax.select(
                lax.bitwise_and(lax.eq(low, of_low), lax.eq(high, of_high)),
                lax.full_like(first, place),
                first,
            )
            for (low, high), first in zip(halves, state[1:], strict=True)
        )
        return place, *first_places

    start = lax.select(fits, np.int32(0), np.int32(sides[0].shape[1]))
    narrow = (lax.select(fits, low, lax.full_like(low, -_NO_COLUMN)) for low, _ in halves)
    _, *ids = lax.while_loop(lambda state: lax.gt(state[0], np.int32(0)), look, (start, *narrow))
    return ids


def _fits(low: jax.Array, high: jax.Array) -> jax.Array:
    """True if all ids of these halves are numbers of 32 bits, none of which hides."""
    is_sign = lax.eq(high, lax.shift_right_arithmetic(low, np.int32(31)))
    return lax.reduce_and(lax.bitwise_and(is_sign, lax.gt(low, np.int32(_NO_ROW))), (0, 1))


# Traced once for forward and backward.
@partial(jax.jit, static_argnames="block")
def visible(row_ids: jax.Array, column_ids: jax.Array, block: tuple[int, ...]) -> jax.Array:
    """[batch, row blocks, column blocks], of ids [batch, positions]: False where no row may have a
    column's id."""
    sides = []
    for ids, size in zip((row_ids, column_ids), block, strict=True):
        blocks = lax.reshape(ids, (len(ids), ids.shape[1] // size, size))
        # What is hidden altogether has the lowest ids.
        is_shown = lax.gt(blocks, np.int32(_NO_ROW))
        shown = lax.select(is_shown, blocks, lax.full_like(blocks, np.iinfo(np.int32).max))
        sides.append((lax.reduce_min(shown, (2,)), lax.reduce_max(blocks, (2,))))
    rows, columns = (
        [lax.expand_dims(x, (axis,)) for x in side]
        for side, axis in zip(sides, (2, 1), strict=True)
    )
    return lax.bitwise_and(lax.le(rows[0], columns[1]), lax.le(columns[0], rows[1]))
