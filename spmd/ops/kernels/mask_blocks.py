"""The table of a mask's blocks: those that leave no position, some, or all of them.

A mask that a program computes of its rows and columns (`computed`) is read as `MaskEquations`:
hashable, and evaluated without the program (`mask_reader`). Interval arithmetic over them bounds
the mask on each block. A block that is not proved to be of one kind counts as a part.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np

# The kinds of a block. Of the intersection of two masks a block is of the lower kind, unless both
# are parts.
NONE, PART, ALL = 0, 1, 2

# The positions that are evaluated together: of a row or column one by one, and of blocks.
_POSITIONS, _CELLS = 1 << 14, 1 << 13
# The blocks of one side of a coarse block: a coarse block of one kind needs no finer look.
_COARSE = 16
# The masks of a batch and its heads that are looked at one by one.
_MOST_MASKS = 64


class Line(NamedTuple):
    """One equation: a primitive of earlier lines; "position" along an axis; a "constant"; or
    "data", of which nothing is known.

    axes: those of the mask that the value changes along. parameter: the axis of a position; the
    bytes of a constant and its shape, which broadcasts over the mask.
    """

    name: str
    dtype: str
    axes: frozenset[int]
    operands: tuple[int, ...] = ()
    parameter: Any = None


class Interval(NamedTuple):
    """Lower and upper bounds of a value, one of each block."""

    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, slots=True)
class MaskEquations:
    """A mask of this shape, the last line of its equations.

    Booleans: True is visible. Floats are added to scores: -inf is invisible.
    """

    lines: tuple[Line, ...]
    shape: tuple[int, ...]

    @property
    def is_known(self) -> bool:
        """True if no data is among the lines."""
        return all(line.name != "data" for line in self.lines)

    @property
    def is_nothing(self) -> bool:
        """True if all is visible, and nothing is added."""
        line = self.lines[-1]
        is_number = line.name == "constant" and not line.axes
        return is_number and bool(constant_at(line, {}) == (line.dtype == "bool"))

    def hiding_lowest(self) -> "MaskEquations":
        """The mask with -inf in place of the lowest number of its dtype, where a known condition
        chooses one of the two, and leaves something else to each row.

        A weight beside such a position is exp(-3e38) = 0, in all but a row of such positions.
        """
        *lines, line = self.lines
        if line.name != "select_n" or line.dtype == "bool" or len(line.operands) != 3:
            return self
        which, hidden, seen = line.operands
        number = lines[hidden]
        if number.name != "constant" or number.axes or np.dtype(line.dtype).kind in "iu":
            return self
        condition = MaskEquations(tuple(reached(lines, which)), self.shape)
        if constant_at(number, {}) != jax.numpy.finfo(line.dtype).min:
            return self
        if not condition.leaves_no_row_out(*self.shape[-2:]):
            return self
        infinity = np.array(-np.inf, line.dtype).tobytes(), number.parameter[1]
        hiding = line._replace(operands=(which, len(lines), seen))
        return MaskEquations((*lines, number._replace(parameter=infinity), hiding), self.shape)

    def of_condition(self) -> "MaskEquations":
        """The mask as Booleans, where it is a condition that chooses between 0 and -inf."""
        lines, last = self.lines, len(self.lines) - 1
        while lines[last].name == "convert_element_type" and lines[last].dtype != "bool":
            (last,) = lines[last].operands
        line = lines[last]
        if line.name != "select_n" or len(line.operands) != 3 or line.dtype == "bool":
            return self
        which, *cases = line.operands
        if any(lines[i].name != "constant" or lines[i].axes for i in cases):
            return self
        numbers = [float(constant_at(lines[i], {})) for i in cases]
        if sorted(numbers) != [-np.inf, 0] or lines[which].dtype != "bool":
            return self
        visible = reached(lines, which)
        if numbers[0] == 0:
            visible.append(Line("not", "bool", lines[which].axes, (len(visible) - 1,)))
        return MaskEquations(tuple(visible), self.shape)

    @property
    def is_shared(self) -> bool:
        """True if batch and heads share the mask."""
        rank = len(self.shape)
        return self.lines[-1].axes <= {rank - 2, rank - 1}

    def of_matrix(self) -> "MaskEquations":
        """The mask that batch and heads share, of two dims."""
        first = len(self.shape) - 2
        lines = (
            line._replace(
                axes=frozenset(axis - first for axis in line.axes),
                parameter=line.parameter - first
                if line.name == "position"
                else line.parameter and (line.parameter[0], line.parameter[1][first:]),
            )
            for line in self.lines
        )
        return MaskEquations(tuple(lines), self.shape[first:])

    def __call__(self, rows: Any, columns: Any, numpy: ModuleType = np) -> Any:
        """The mask at rows and columns, integers that broadcast; of known equations of a shared
        mask."""
        rank = len(self.shape)
        return evaluated(self.lines, {rank - 2: rows, rank - 1: columns}, numpy)[-1]

    @property
    def is_band(self) -> bool:
        """True if equal differences of row and column are known to be equally visible."""
        moves: list[bool | None] = []  # with the position; None: in another way
        for line in self.lines:
            of_operands = [moves[i] for i in line.operands]
            if line.name == "position":
                moves.append(True)
            elif line.axes and not line.operands:
                moves.append(None)
            elif all(move is False for move in of_operands):
                moves.append(False)
            elif of_operands == [True, True]:
                moves.append(False if line.name == "sub" or line.name in _COMPARISONS else None)
            elif line.name in ("add", "sub") and of_operands in ([True, False], [False, True]):
                is_reversed = line.name == "sub" and of_operands == [False, True]
                moves.append(None if is_reversed else True)
            else:
                moves.append(None)
        return moves[-1] is False

    def leaves_no_row_out(self, rows: int, columns: int, *, or_first: bool = True) -> bool:
        """True if each of these rows is known to see the column of its own number, or, with
        `or_first`, the first."""
        if not self.is_known or not self.is_shared:
            return False
        starts = range(0, rows, _POSITIONS)
        chunks = [np.arange(start, min(start + _POSITIONS, rows)) for start in starts]
        return any(
            all(
                np.all(_is_visible(self(chunk, seen)))
                for chunk, seen in zip(chunks, of, strict=True)
            )
            for of in ([chunks] if rows <= columns else [])
            + ([[np.zeros(1, np.int64)] * len(chunks)] if or_first else [])
        )

    def documents(self) -> "tuple[MaskEquations, MaskEquations] | None":
        """Equations of rows and of columns whose equality is a condition of the mask; None
        without."""
        index = self._documents()
        if index is None:
            return None
        rows = len(self.shape) - 2
        sides = sorted(self.lines[index].operands, key=lambda i: rows not in self.lines[i].axes)
        first, second = (MaskEquations(tuple(reached(self.lines, i)), self.shape) for i in sides)
        return first, second

    def without_documents(self) -> "MaskEquations | None":
        """The mask without the condition of `documents`; None: no other is left."""
        index = self._documents()
        if index is None:
            return self
        if index == len(self.lines) - 1:
            return None
        yes = Line("constant", "bool", frozenset(), (), (b"\x01", (1,) * len(self.shape)))
        lines = (*self.lines[:index], yes, *self.lines[index + 1 :])
        return MaskEquations(tuple(reached(lines, len(lines) - 1)), self.shape)

    def _documents(self) -> int | None:
        """The condition that an integer of rows equals one of columns."""
        sides = {frozenset((axis,)) for axis in (len(self.shape) - 2, len(self.shape) - 1)}
        for index in conditions_of(self.lines):
            line = self.lines[index]
            operands = [self.lines[i] for i in line.operands]
            is_of_both = line.name == "eq" and {x.axes for x in operands} == sides
            if is_of_both and all(np.dtype(x.dtype).kind in "iu" for x in operands):
                return index
        return None


def _is_visible(mask: np.ndarray) -> np.ndarray:
    return mask if mask.dtype == np.bool_ else mask > -np.inf


@dataclass(frozen=True, slots=True)
class Span:
    """Positions of a dim in blocks: the first one, their number, and the positions of a block."""

    start: int
    length: int
    block: int

    @property
    def num_blocks(self) -> int:
        return -(-self.length // self.block)


def causal(rows: int, columns: int) -> MaskEquations:
    """The mask of causality."""
    lines = (
        Line("position", "int64", frozenset((0,)), parameter=0),
        Line("position", "int64", frozenset((1,)), parameter=1),
        Line("ge", "bool", frozenset((0, 1)), (0, 1)),
    )
    return MaskEquations(lines, (rows, columns))


def within_documents(rows: int, columns: int, length: int) -> MaskEquations:
    """The mask of documents of one length."""
    row, column, _ = causal(rows, columns).lines
    number = np.int64(length).tobytes(), (1, 1)
    lines = (
        row,
        column,
        Line("constant", "int64", frozenset(), parameter=number),
        Line("div", "int64", row.axes, (0, 2)),
        Line("div", "int64", column.axes, (1, 2)),
        Line("eq", "bool", frozenset((0, 1)), (3, 4)),
    )
    return MaskEquations(lines, (rows, columns))


def in_causal_order(mask: MaskEquations) -> MaskEquations:
    """A mask and causality."""
    rank, count = len(mask.shape), len(mask.lines)
    axes = frozenset((rank - 2, rank - 1))
    row, column, order = causal(*mask.shape[-2:]).lines
    lines = [
        row._replace(axes=frozenset((rank - 2,)), parameter=rank - 2),
        column._replace(axes=frozenset((rank - 1,)), parameter=rank - 1),
        order._replace(axes=axes, operands=(count, count + 1)),
    ]
    last = mask.lines[-1]
    if last.dtype == "bool":
        lines.append(Line("and", "bool", last.axes | axes, (count - 1, count + 2)))
    else:
        parameter = np.array(-np.inf, last.dtype).tobytes(), (1,) * rank
        lines.append(Line("constant", last.dtype, frozenset(), parameter=parameter))
        operands = count + 2, count + 3, count - 1
        lines.append(Line("select_n", last.dtype, last.axes | axes, operands))
    return MaskEquations((*mask.lines, *lines), mask.shape)


@lru_cache(maxsize=64)
def fits(mask: MaskEquations) -> bool:
    """True for known equations of a shared mask that no number of more than 32 bits is in, also
    behind the last row and column."""
    if not mask.is_known or not mask.is_shared:
        return False
    rank, spans = len(mask.shape), [Span(0, 2 * size, 2 * size) for size in mask.shape[-2:]]
    bounds: list[Interval | None] = []
    for line in mask.lines:
        if line.name == "position":
            last = spans[line.parameter - rank + 2].length
            bounds.append(Interval(np.zeros(1, np.int64), np.full(1, last)))
        elif line.name == "constant":
            if line.axes:
                return False
            number = constant_at(line, {}).reshape(1)
            bounds.append(Interval(number, number))
        else:
            bounds.append(_interval_of(line, [bounds[i] for i in line.operands]))
        dtype, of_line = np.dtype(line.dtype), bounds[-1]
        if dtype.kind in "iu" and (
            of_line is None or of_line.low.min() < -(2**31) or of_line.high.max() >= 2**31
        ):
            return False
        if dtype.kind not in "biu" and dtype != np.float32:
            return False
    return True


@lru_cache(maxsize=64)
def band_of(mask: MaskEquations) -> tuple[int, int] | None:
    """The lowest and the highest difference of row and column between which all is visible, and
    nothing else; None for a mask that is no such band."""
    if not fits(mask) or not mask.is_band or mask.lines[-1].dtype != "bool":
        return None
    rows, columns = mask.shape[-2:]
    differences = np.arange(1 - columns, rows)
    visible = mask(np.maximum(differences, 0), np.maximum(-differences, 0))
    seen = differences[np.broadcast_to(visible, differences.shape)]
    is_band = seen.size > 0 and seen.size == seen[-1] - seen[0] + 1
    return (int(seen[0]), int(seen[-1])) if is_band else None


def table(masks: Iterable[MaskEquations], rows: Span, columns: Span) -> np.ndarray:
    """The kind of each block of the masks' intersection, [row blocks, column blocks] of int8."""
    kinds = np.full((rows.num_blocks, columns.num_blocks), ALL, np.int8)
    for mask in masks:
        np.minimum(kinds, _kinds(mask, rows, columns), out=kinds)
    return kinds


@lru_cache(maxsize=16)
def _kinds(mask: MaskEquations, rows: Span, columns: Span) -> np.ndarray:
    """The kind of each block of one mask: for all of its batch and heads, or a part."""
    axes = sorted(mask.lines[-1].axes - {len(mask.shape) - 2, len(mask.shape) - 1})
    sizes = [mask.shape[axis] for axis in axes]
    if math.prod(sizes) > _MOST_MASKS:
        return np.full((rows.num_blocks, columns.num_blocks), PART, np.int8)
    result: np.ndarray | None = None
    for places in np.ndindex(*sizes):
        leading = {axis: np.int64(place) for axis, place in zip(axes, places, strict=True)}
        kinds = _kinds_of_one(_Pools(mask, leading, rows, columns), rows, columns)
        result = kinds if result is None else np.where(result == kinds, kinds, PART)
    assert result is not None, "one index at least"
    result.setflags(write=False)
    return result


def _kinds_of_one(pools: "_Pools", rows: Span, columns: Span) -> np.ndarray:
    num_rows, num_columns = rows.num_blocks, columns.num_blocks
    kinds = np.empty((num_rows, num_columns), np.int8)
    coarse = np.indices((-(-num_rows // _COARSE), -(-num_columns // _COARSE))).reshape(2, -1)
    inside = np.indices((_COARSE, _COARSE)).reshape(2, 1, -1)
    for start in range(0, coarse.shape[1], _CELLS):
        cells = coarse[:, start : start + _CELLS]
        of_cells = pools.kinds(*cells, is_coarse=True)
        for (row, column), kind in zip(cells.T * _COARSE, of_cells, strict=True):
            kinds[row : row + _COARSE, column : column + _COARSE] = kind
        parts = cells[:, of_cells == PART]
        for first in range(0, parts.shape[1], _CELLS // _COARSE**2):
            some = parts[:, first : first + _CELLS // _COARSE**2, None]
            fine = (some * _COARSE + inside).reshape(2, -1)
            fine = fine[:, (fine[0] < num_rows) & (fine[1] < num_columns)]
            kinds[fine[0], fine[1]] = pools.kinds(*fine, is_coarse=False)
    return kinds


class _Pools:
    """Bounds of the lines along rows alone and along columns alone, of each block of these."""

    def __init__(self, mask: MaskEquations, leading: Mapping[int, Any], rows: Span, columns: Span):
        self.lines, self.rank, self.leading = mask.lines, len(mask.shape), leading
        matrix = {self.rank - 2, self.rank - 1}
        self.is_matrix = [matrix <= line.axes for line in self.lines]
        read = {len(self.lines) - 1}
        for line, is_matrix in zip(self.lines, self.is_matrix, strict=True):
            read.update(line.operands if is_matrix else ())
        self.fine: dict[int, tuple[int, Interval | None]] = {}
        for side, span in enumerate((rows, columns)):
            axis = self.rank - 2 + side
            pooled = [i for i in read if not self.is_matrix[i] and axis in self.lines[i].axes]
            self._pool(pooled, side, span)
        pooled = [index for index in read if self.lines[index].axes.isdisjoint(matrix)]
        self._pool(pooled, 0, Span(0, 1, 1))
        self.coarse = {
            index: (side, None if bounds is None else _coarser(bounds))
            for index, (side, bounds) in self.fine.items()
        }

    def _pool(self, indices: Sequence[int], side: int, span: Span) -> None:
        """Adds the bounds of lines along an axis: their values are computed, some blocks after the
        other."""
        self.fine.update(dict.fromkeys(indices, (side, None)))
        known = [index for index in indices if not self._has_data(index)]
        if not known:
            return
        wanted = set(known)
        for index in range(len(self.lines) - 1, -1, -1):
            wanted.update(self.lines[index].operands if index in wanted else ())
        axis, step = self.rank - 2 + side, max(1, _POSITIONS // span.block) * span.block
        parts: dict[int, list[Interval]] = {index: [] for index in known}
        for start in range(0, span.length, step):
            places = np.arange(start, min(start + step, span.length))
            positions = {**self.leading, axis: along_axis(axis, span.start + places, self.rank)}
            values = evaluated(self.lines, positions, np, wanted)
            for index in known:
                value = np.moveaxis(np.broadcast_to(values[index], np.broadcast_shapes(
                    values[index].shape, positions[axis].shape
                )), axis, -1)  # fmt: skip
                parts[index].append(_bounds(value, np.arange(0, len(places), span.block)))
        for index in known:
            low, high = map(np.concatenate, zip(*parts[index], strict=True))
            if low.dtype.kind != "f" or not (np.isnan(low) | np.isnan(high)).any():
                self.fine[index] = side, Interval(low, high)

    def _has_data(self, index: int) -> bool:
        line = self.lines[index]
        return line.name == "data" or any(map(self._has_data, line.operands))

    def kinds(self, rows: np.ndarray, columns: np.ndarray, *, is_coarse: bool) -> np.ndarray:
        """The kind of each of these blocks."""
        cells, pooled = (rows, columns), self.coarse if is_coarse else self.fine
        values: list[Interval | None] = [None] * len(self.lines)
        for index, line in enumerate(self.lines):
            if index in pooled:
                side, bounds = pooled[index]
                if bounds is not None:
                    at = cells[side] if bounds.low.size > 1 else np.zeros_like(cells[side])
                    values[index] = Interval(bounds.low[at], bounds.high[at])
            elif self.is_matrix[index]:
                values[index] = _interval_of(line, [values[i] for i in line.operands])
        mask = values[-1]
        if mask is None:
            return np.full(rows.shape, PART, np.int8)
        is_bool = mask.low.dtype == np.bool_
        is_none = ~mask.high if is_bool else mask.high == -np.inf
        is_all = mask.low if is_bool else (mask.low == 0) & (mask.high == 0)
        kinds = np.where(is_none, NONE, np.where(is_all, ALL, PART)).astype(np.int8)
        return np.broadcast_to(kinds, rows.shape)  # the bounds of data are one for all blocks


def along_axis(axis: int, places: np.ndarray, rank: int) -> np.ndarray:
    """Positions as an array of the mask's rank."""
    return places.reshape([-1 if dim == axis else 1 for dim in range(rank)])


def _bounds(value: np.ndarray, borders: np.ndarray) -> Interval:
    """The lowest and highest element from each border of the last dim to the next."""
    flat = value.reshape(-1, value.shape[-1])
    return Interval(
        np.minimum.reduceat(flat.min(axis=0), borders),
        np.maximum.reduceat(flat.max(axis=0), borders),
    )


def _coarser(bounds: Interval) -> Interval:
    borders = np.arange(0, bounds.low.size, _COARSE)
    return Interval(_bounds(bounds.low, borders).low, _bounds(bounds.high, borders).high)


def reached(lines: Sequence[Line], last: int) -> list[Line]:
    """The lines that one of them needs, which comes last, in an order that depends on them
    alone."""
    return in_order(lines, order_of(lines, last))


def order_of(lines: Sequence[Line], last: int) -> dict[int, int]:
    order: dict[int, int] = {}
    stack = [last]
    while stack:
        missing = [i for i in lines[stack[-1]].operands if i not in order]
        if missing:
            stack.append(missing[0])
        else:
            order.setdefault(stack.pop(), len(order))
    return order


def in_order(lines: Sequence[Line], order: Mapping[int, int]) -> list[Line]:
    return [
        lines[index]._replace(operands=tuple(order[i] for i in lines[index].operands))
        for index in order
    ]


def conditions_of(lines: Sequence[Line], joined_by: str = "and") -> Iterator[int]:
    """The conditions that a mask is the intersection of, or the union ("or")."""
    todo = [len(lines) - 1]
    while todo:
        index = todo.pop()
        if lines[index].name == joined_by:
            todo.extend(lines[index].operands)
        else:
            yield index


def intersection(lines: list[Line], conditions: Iterable[int]) -> int:
    """The line of the intersection of conditions, one at least; adds to the lines what it needs."""

    def both(first: int, second: int) -> int:
        axes = lines[first].axes | lines[second].axes
        lines.append(Line("and", "bool", axes, (first, second)))
        return len(lines) - 1

    return reduce(both, conditions)


# -- Values: of numpy on the host, of jax inside a kernel.


def _divided(numpy: ModuleType, x: Any, y: Any) -> Any:
    """Division as XLA's: of integers towards zero."""
    if not np.issubdtype(x.dtype, np.integer):
        return x / y
    if numpy is not np:
        return jax.lax.div(*_alike(x, y))
    return (np.sign(x) * np.sign(y) * (np.abs(x) // np.maximum(np.abs(y), 1))).astype(x.dtype)


def _alike(x: Any, y: Any) -> tuple[Any, Any]:
    """Two arrays in one shape."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    return jax.numpy.broadcast_to(x, shape), jax.numpy.broadcast_to(y, shape)


def _remainder(numpy: ModuleType, x: Any, y: Any) -> Any:
    if numpy is not np:
        return jax.lax.rem(*_alike(x, y))
    return np.fmod(x, np.where(y == 0, 1, y) if np.issubdtype(x.dtype, np.integer) else y)


Rule = Callable[..., Any]
VALUES: dict[str, Rule] = {
    "add": lambda numpy, x, y: x + y,
    "sub": lambda numpy, x, y: x - y,
    "mul": lambda numpy, x, y: x * y,
    "div": _divided,
    "rem": _remainder,
    "neg": lambda numpy, x: -x,
    "sign": lambda numpy, x: numpy.sign(x),
    "abs": lambda numpy, x: abs(x),
    "max": lambda numpy, x, y: numpy.maximum(x, y),
    "min": lambda numpy, x, y: numpy.minimum(x, y),
    "floor": lambda numpy, x: numpy.floor(x),
    "and": lambda numpy, x, y: x & y,
    "or": lambda numpy, x, y: x | y,
    "xor": lambda numpy, x, y: x ^ y,
    "not": lambda numpy, x: ~x,
    "eq": lambda numpy, x, y: x == y,
    "ne": lambda numpy, x, y: x != y,
    "lt": lambda numpy, x, y: x < y,
    "le": lambda numpy, x, y: x <= y,
    "gt": lambda numpy, x, y: x > y,
    "ge": lambda numpy, x, y: x >= y,
    "select_n": lambda numpy, which, *cases: numpy.where(which, cases[-1], cases[0]),
    "clamp": lambda numpy, low, x, high: numpy.minimum(numpy.maximum(x, low), high),
    "shift_right_arithmetic": lambda numpy, x, y: x >> y,
    "shift_left": lambda numpy, x, y: x << y,
    "convert_element_type": lambda numpy, x: x,
}


def evaluated(
    lines: Sequence[Line],
    positions: Mapping[int, Any],
    numpy: ModuleType = np,
    wanted: Iterable[int] | None = None,
) -> list[Any]:
    """The value of each wanted line, default all, at these positions of the axes."""
    values: list[Any] = [None] * len(lines)
    for index in range(len(lines)) if wanted is None else sorted(wanted):
        line = lines[index]
        if line.name == "position":
            value = positions[line.parameter]
        elif line.name == "constant":
            value = constant_at(line, positions)
        else:
            value = VALUES[line.name](numpy, *(values[i] for i in line.operands))
        values[index] = numpy.asarray(value, _dtype(line.dtype, numpy))
    return values


def _dtype(name: str, numpy: ModuleType) -> np.dtype:
    """A line's dtype; in a kernel integers and floats have 32 bits."""
    if numpy is np or name == "bool":
        return np.dtype(name)
    return np.dtype(np.int32 if np.dtype(name).kind in "iu" else np.float32)


def constant_at(line: Line, positions: Mapping[int, Any]) -> Any:
    """A constant at positions of its axes."""
    content, shape = line.parameter
    array = np.frombuffer(content, line.dtype).reshape(shape)
    return array[tuple(positions[axis] if size > 1 else 0 for axis, size in enumerate(shape))]


# -- Intervals.


_ANY = Interval(np.zeros(1, np.bool_), np.ones(1, np.bool_))


def _any_float(dtype: np.dtype) -> Interval:
    infinity = np.full(1, np.inf, dtype)
    return Interval(-infinity, infinity)


def _interval_of(line: Line, operands: Sequence[Interval | None]) -> Interval | None:
    """The bounds of a line from those of its operands; None: unknown."""
    dtype = np.dtype(line.dtype)
    if line.name in _COMPARISONS:
        x, y = operands
        return _ANY if x is None or y is None else Interval(*_COMPARISONS[line.name](x, y))
    if dtype == np.bool_:
        operands = [_ANY if x is None else x for x in operands]
    elif dtype.kind not in "iu" and line.name in ("add", "select_n"):
        first = line.name == "select_n"
        operands = [
            _any_float(dtype) if x is None and (i or not first) else x
            for i, x in enumerate(operands)
        ]
    if line.name == "select_n":
        return _selected(*operands)
    rule = (_LOGIC if dtype == np.bool_ else {}).get(line.name) or _INTERVALS.get(line.name)
    if rule is None or any(x is None for x in operands):
        return None
    with np.errstate(all="ignore"):
        bounds = rule(dtype, *operands)
    return None if bounds is None else _in_range(dtype, *bounds)


def _in_range(dtype: np.dtype, low: np.ndarray, high: np.ndarray) -> Interval | None:
    """The bounds in a line's dtype; None where they may not be numbers of it."""
    if dtype.kind in "iu":
        # The sum of two such numbers has no overflow in int64.
        limits = np.iinfo(dtype)
        if (low < max(limits.min, -(2**61))).any() or (high > min(limits.max, 2**61)).any():
            return None
    elif dtype.kind not in "iub" and (np.isnan(low) | np.isnan(high)).any():
        return None
    return Interval(low.astype(dtype), high.astype(dtype))


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64) if x.dtype.kind in "iub" else x


def _selected(which: Interval | None, *cases: Interval | None) -> Interval | None:
    if_false, if_true = cases[0], cases[-1]
    if if_false is None or if_true is None:
        is_true = which is not None and bool(which.low.all())
        is_false = which is not None and not which.high.any()
        return if_true if is_true else if_false if is_false else None
    which = _ANY if which is None else which
    either = np.minimum(if_true.low, if_false.low), np.maximum(if_true.high, if_false.high)
    return Interval(*(
        np.where(which.low, yes, np.where(which.high, both, no))
        for yes, both, no in zip(if_true, either, if_false, strict=True)
    ))  # fmt: skip


def _less(x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray]:
    return x.high < y.low, x.low < y.high


def _at_most(x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray]:
    return x.high <= y.low, x.low <= y.high


def _equal(x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray]:
    is_one = (x.low == x.high) & (y.low == y.high) & (x.low == y.low)
    return is_one, (x.low <= y.high) & (y.low <= x.high)


def _unequal(x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray]:
    low, high = _equal(x, y)
    return ~high, ~low


_COMPARISONS: dict[str, Rule] = {
    "lt": _less,
    "le": _at_most,
    "gt": lambda x, y: _less(y, x),
    "ge": lambda x, y: _at_most(y, x),
    "eq": _equal,
    "ne": _unequal,
}
_LOGIC: dict[str, Rule] = {
    "and": lambda dtype, x, y: (x.low & y.low, x.high & y.high),
    "or": lambda dtype, x, y: (x.low | y.low, x.high | y.high),
    "not": lambda dtype, x: (~x.high, ~x.low),
    "xor": lambda dtype, x, y: _unequal(x, y),
}


def _corners(function: Rule) -> Rule:
    """The bounds of a function that is monotone in each operand: those of its values at the ends
    of both."""

    def rule(dtype: np.dtype, x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray] | None:
        ends = [function(_wide(a), _wide(b)) for a in x for b in y]
        shape = np.broadcast_shapes(*(end.shape for end in ends))
        stacked = np.stack([np.broadcast_to(end, shape) for end in ends])
        return stacked.min(0), stacked.max(0)

    return rule


def _sum(dtype: np.dtype, x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray]:
    low, high = _wide(x.low) + _wide(y.low), _wide(x.high) + _wide(y.high)
    if dtype.kind in "iub":
        return low, high
    # What is added to -inf is hidden, whatever is known of it.
    return low, np.where(
        (x.high == -np.inf) | (y.high == -np.inf), x.high.dtype.type(-np.inf), high
    )


def _product(dtype: np.dtype, x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray] | None:
    if dtype.kind in "iu":
        largest = [float(np.abs(_wide(side)).max()) for side in (*x, *y)]
        if max(largest[:2]) * max(largest[2:]) >= 2**62:
            return None
    return _corners(np.multiply)(dtype, x, y)


def _quotient(dtype: np.dtype, x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray] | None:
    if not ((y.low > 0) | (y.high < 0)).all():
        return None
    return _corners(lambda a, b: _divided(np, a, b))(dtype, x, y)


def _rest(dtype: np.dtype, x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray] | None:
    """Of a constant divisor: the sign is that of the dividend."""
    if dtype.kind not in "iu" or (y.low != y.high).any() or (y.low == 0).any():
        return None
    low, high, size = _wide(x.low), _wide(x.high), np.abs(_wide(y.low))
    is_one_run = (low // size == high // size) & (low >= 0)
    is_one_run |= (-low // size == -high // size) & (high <= 0)
    return (
        np.where(is_one_run, np.fmod(low, size), np.maximum(np.minimum(low, 0), 1 - size)),
        np.where(is_one_run, np.fmod(high, size), np.minimum(np.maximum(high, 0), size - 1)),
    )


def _magnitude(dtype: np.dtype, x: Interval) -> tuple[np.ndarray, np.ndarray]:
    low, high = map(_wide, x)
    return np.maximum(np.maximum(low, -high), 0), np.maximum(high, -low)


def _shifted(function: Rule) -> Rule:
    def rule(dtype: np.dtype, x: Interval, y: Interval) -> tuple[np.ndarray, np.ndarray] | None:
        is_one = (y.low == y.high).all() and (y.low >= 0).all() and (y.high < 32).all()
        fits = is_one and float(np.abs(_wide(x.low)).max()) < 2**30
        fits = fits and float(np.abs(_wide(x.high)).max()) < 2**30
        return (function(_wide(x.low), y.low), function(_wide(x.high), y.low)) if fits else None

    return rule


def _converted(dtype: np.dtype, x: Interval) -> tuple[np.ndarray, np.ndarray] | None:
    if dtype == np.bool_:
        zero = Interval(np.zeros(1, x.low.dtype), np.zeros(1, x.low.dtype))
        return _unequal(x, zero)
    if dtype.kind in "iu" and x.low.dtype.kind == "f":
        if not (np.abs(x.low) < 2**31).all() or not (np.abs(x.high) < 2**31).all():
            return None
        return np.trunc(x.low), np.trunc(x.high)
    return x.low, x.high


_INTERVALS: dict[str, Rule] = {
    "add": _sum,
    "sub": lambda dtype, x, y: (_wide(x.low) - _wide(y.high), _wide(x.high) - _wide(y.low)),
    "mul": _product,
    "div": _quotient,
    "rem": _rest,
    "neg": lambda dtype, x: (-_wide(x.high), -_wide(x.low)),
    "sign": lambda dtype, x: (np.sign(x.low), np.sign(x.high)),
    "abs": _magnitude,
    "max": lambda dtype, x, y: (np.maximum(x.low, y.low), np.maximum(x.high, y.high)),
    "min": lambda dtype, x, y: (np.minimum(x.low, y.low), np.minimum(x.high, y.high)),
    "floor": lambda dtype, x: (np.floor(x.low), np.floor(x.high)),
    "clamp": lambda dtype, low, x, high: tuple(
        np.minimum(np.maximum(side, least), most)
        for side, least, most in zip(x, low, high, strict=True)
    ),
    "shift_right_arithmetic": _shifted(np.right_shift),
    "shift_left": _shifted(np.left_shift),
    "convert_element_type": _converted,
}
