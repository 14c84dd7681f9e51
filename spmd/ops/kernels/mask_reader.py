"""The equations of a mask, read of the values of a program as it is traced; and other patterns in
such values.

Not here: what equations say of blocks (`mask_blocks`).
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .computed import SAME, InnerLoop, Value, lowered, name_of, producer, shape_of
from .mask_blocks import (
    VALUES,
    Line,
    MaskEquations,
    along_axis,
    constant_at,
    evaluated,
    in_order,
    order_of,
    reached,
)

# Elements of a constant that equations may hold.
_MOST_CONSTANT = 1 << 16


# By line the smallest value of it, with the axes of its dims.
Axes = tuple[int | None, ...]
Values = dict[int, tuple[Value, Axes]]


def equations_and_values(mask: Value) -> tuple[MaskEquations, Values]:
    """The equations, and the values of their lines."""
    shape = shape_of(mask)
    reader = _Reader(len(shape))
    last = reader.read(mask, tuple(range(len(shape))))
    # The last line is the mask's, also where it is that of another value.
    lines, order = list(reader.lines), order_of(list(reader.lines), last)
    values: Values = {}
    for (_, axes), (index, value) in reader.read_values.items():
        smallest = values.get(order.get(index, -1))
        is_smaller = smallest is None or math.prod(shape_of(value)) < math.prod(
            shape_of(smallest[0])
        )
        if index in order and is_smaller:
            values[order[index]] = value, axes
    return MaskEquations(tuple(in_order(lines, order)), shape), values


_MIRRORED = {"lt": "gt", "le": "ge"}
# Numbers that change nothing: of a difference the second.
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "and": True, "or": False}


class _Reader:
    """The lines of a mask while its values are read."""

    def __init__(self, rank: int):
        self.rank = rank
        self.lines: dict[Line, int] = {}
        # With the values, as they are named by their ids.
        self.read_values: dict[tuple[object, Axes], tuple[int, Value]] = {}
        self.num_data = 0

    def read(self, value: Value, axes: Axes) -> int:
        """The line of a value; axes: of the mask, along which its dims are."""
        shape = shape_of(value)
        axes = tuple(axis if size > 1 else None for axis, size in zip(axes, shape, strict=True))
        value = lowered(value)
        if not isinstance(value, (InnerLoop, jax.core.Tracer)):
            return self._constant(np.asarray(value), axes)
        name = name_of(value)
        if (name, axes) not in self.read_values:
            self.read_values[name, axes] = self._read(value, axes, shape), value
        return self.read_values[name, axes][0]

    def _read(self, value: Value, axes: Axes, shape: tuple[int, ...]) -> int:
        produced, dtype = producer(value), str(np.dtype(dtype_of(value)))
        along = frozenset(axis for axis in axes if axis is not None)
        if produced is None:
            return self._data(dtype, along)
        (primitive, params, operands), rank = produced, len(shape)
        first = operands[0] if operands else value
        match primitive.name:
            case name if name in VALUES and all(len(shape_of(x)) in (0, rank) for x in operands):
                if name == "select_n" and len(operands) > 3:
                    return self._data(dtype, along)
                lines = [self.read(x, axes if shape_of(x) else ()) for x in operands]
                return self._line(name, dtype, lines)
            case name if name in SAME:
                return self.read(first, axes)
            case "iota":
                axis = axes[params["dimension"]]
                if axis is None:
                    return self._constant(np.zeros((), dtype), ())
                return self._add(Line("position", "int64", frozenset((axis,)), parameter=axis))
            case "broadcast_in_dim":
                return self.read(first, tuple(axes[dim] for dim in params["broadcast_dimensions"]))
            case "transpose":
                order = params["permutation"]
                return self.read(first, tuple(axes[order.index(dim)] for dim in range(rank)))
            case "gather" if places := self._places(params, operands, axes):
                return self.read(first, places)
            case "reshape" | "squeeze" | "expand_dims":
                source = shape_of(first)
                if [size for size in source if size > 1] == [size for size in shape if size > 1]:
                    queue = (axis for axis, size in zip(axes, shape, strict=True) if size > 1)
                    return self.read(first, tuple(next(queue) if n > 1 else None for n in source))
        known = _known(value)
        return self._data(dtype, along) if known is None else self._constant(known, axes)

    def _places(self, params: dict[str, Any], operands: list[Value], axes: Axes) -> Axes | None:
        """The axes of the array in which positions are looked up, all of them in their order; None
        for another lookup."""
        sizes, numbers = shape_of(operands[0]), params["dimension_numbers"]
        dims = tuple(range(len(sizes)))
        if numbers.collapsed_slice_dims != dims or numbers.start_index_map != dims:
            return None
        joined = producer(operands[1])
        is_joined = joined is not None and joined[0].name == "concatenate" and len(sizes) > 1
        indices = joined[2] if joined is not None and is_joined else operands[1:]
        if any(shape_of(index)[-1] != 1 for index in indices) or len(indices) != len(sizes):
            return None
        found: list[int | None] = []
        for index, size in zip(indices, sizes, strict=True):
            last = self.read(index, (*axes, None))
            along = list(self.lines)[last].axes
            lines = reached(list(self.lines), last)
            if len(along) != (size > 1) or any(line.name == "data" for line in lines):
                return None
            places = {axis: along_axis(axis, np.arange(size), self.rank) for axis in along}
            if not np.array_equal(evaluated(lines, places)[-1].ravel(), np.arange(size)):
                return None
            found.append(next(iter(along), None))
        of_result = [axis for axis in axes if axis is not None]
        return tuple(found) if [axis for axis in found if axis is not None] == of_result else None

    def _add(self, line: Line) -> int:
        return self.lines.setdefault(line, len(self.lines))

    def _data(self, dtype: str, axes: frozenset[int]) -> int:
        self.num_data += 1
        return self._add(Line("data", dtype, axes, parameter=self.num_data))

    def _constant(self, array: np.ndarray, axes: Axes) -> int:
        if array.size > 1 and (array == array.flat[0]).all():
            array, axes = array.flat[:1].reshape(()), ()
        along = [axis for axis in axes if axis is not None]
        if array.size > _MOST_CONSTANT or len(set(along)) < len(along):
            return self._data(str(array.dtype), frozenset(along))
        sizes = [size for size in array.shape if size > 1]
        shape = [1] * self.rank
        for axis, size in zip(along, sizes, strict=True):
            shape[axis] = size
        order = sorted(range(len(along)), key=along.__getitem__)
        full = array.reshape(sizes).transpose(order).reshape(shape)
        parameter = full.tobytes(), tuple(shape)
        return self._add(Line("constant", str(array.dtype), frozenset(along), parameter=parameter))

    def _line(self, name: str, dtype: str, operands: Sequence[int]) -> int:
        """The line of a primitive: of constants alone a constant; of a number that changes nothing
        the other operand."""
        lines = list(self.lines)
        sources = [lines[index] for index in operands]
        if all(line.name == "constant" and not line.axes for line in sources):
            numbers = [constant_at(line, {}) for line in sources]
            value = np.asarray(VALUES[name](np, *numbers), dtype)
            return self._constant(value.reshape(()), ())
        neutral = _NEUTRAL.get(name) if name not in ("and", "or") or dtype == "bool" else None
        if neutral is not None:
            for index, other in ((0, 1), (1, 0)):
                line = sources[index]
                is_number = line.name == "constant" and not line.axes and (index or name != "sub")
                if is_number and constant_at(line, {}) == neutral and sources[other].dtype == dtype:
                    return operands[other]
        is_position = sources[0].name == "position" and dtype in ("int32", "int64")
        if name == "convert_element_type" and (is_position or sources[0].dtype == dtype):
            return operands[0]
        if name in _MIRRORED:
            name, operands = _MIRRORED[name], operands[::-1]
        axes = frozenset().union(*(line.axes for line in sources))
        return self._add(Line(name, dtype, axes, tuple(operands)))


def dtype_of(value: Value) -> Any:
    aval: Any = value.var.aval if isinstance(value, InnerLoop) else value
    return aval.dtype


def _known(value: Value) -> np.ndarray | None:
    """The elements of a value that a program computes without its arguments; None for another, and
    for a large one."""
    value = lowered(value)
    if not isinstance(value, (InnerLoop, jax.core.Tracer)):
        return np.asarray(value)
    produced = producer(value)
    if produced is None or math.prod(shape_of(value)) > _MOST_CONSTANT:
        return None
    primitive, params, operands = produced
    arrays = [array for array in map(_known, operands) if array is not None]
    is_of_device = not operands and primitive.name != "iota"  # its number among others, say
    if is_of_device or len(arrays) < len(operands):
        return None
    if primitive.name == "slice" and params["strides"] in (None, (1,) * len(shape_of(value))):
        ends = zip(params["start_indices"], params["limit_indices"], strict=True)
        return arrays[0][tuple(slice(*end) for end in ends)]
    if primitive.name in ("squeeze", "reshape", "expand_dims"):
        return arrays[0].reshape(shape_of(value))
    # By numpy where it can: XLA would compile each of the others.
    shape, dtype = shape_of(value), dtype_of(value)
    if primitive.name in VALUES:
        return np.broadcast_to(np.asarray(VALUES[primitive.name](np, *arrays), dtype), shape)
    if primitive.name == "iota":
        along = np.arange(shape[params["dimension"]], dtype=dtype)
        return np.broadcast_to(along_axis(params["dimension"], along, len(shape)), shape)
    if primitive.name == "broadcast_in_dim":
        sizes = np.ones(len(shape), int)
        sizes[list(params["broadcast_dimensions"])] = arrays[0].shape
        return np.broadcast_to(arrays[0].reshape(sizes), shape)
    with jax.ensure_compile_time_eval():
        return np.asarray(primitive.bind(*arrays, **params))


def soft_cap_of(value: Value, score: Value) -> float | None:
    """c, of a value that is c * tanh(score / c)."""
    outer = _scaled(value)
    if outer is None or (produced := producer(outer[0])) is None or produced[0].name != "tanh":
        return None
    inner = _scaled(produced[2][0])
    if inner is None or bare(inner[0]) is not bare(score):
        return None
    return outer[1] if math.isclose(outer[1] * inner[1], 1, rel_tol=1e-6) else None


def bare(value: Value) -> Value:
    """A value before it is converted to other floats."""
    produced = producer(value)
    is_cast = produced is not None and produced[0].name in ("convert_element_type", *SAME)
    return bare(produced[2][0]) if produced is not None and is_cast else value


def _scaled(value: Value) -> tuple[Value, float] | None:
    """The factors of a product, or quotient, with a known number."""
    produced = producer(bare(value))
    if produced is None or produced[0].name not in ("mul", "div"):
        return None
    for index in (1, 0) if produced[0].name == "mul" else (1,):
        number = _known(produced[2][index])
        if number is not None and number.size == 1 and number.item() != 0:
            factor = float(number.item())
            return bare(produced[2][1 - index]), factor if produced[0].name == "mul" else 1 / factor
    return None
