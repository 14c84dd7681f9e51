"""The trip count of a loop, found by simulating its counter: only the scalars that its condition needs are computed.

XLA states the number where it still knows it; a TPU has made two counters of 32 bits of one of 64 by then.
"""

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

MOST_ITERATIONS = 1 << 17  # longer loops are not simulated


class UnknownError(Exception):
    """A value depends on data, or on an op that is not among those below."""


_SCALAR = re.compile(r"^(pred|[su]\d+)\[\]")
_DTYPES: dict[str, Any] = {
    "pred": np.bool_, "s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
_OPS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor, "minimum": np.minimum, "maximum": np.maximum, "shift-left": np.left_shift,
    "shift-right-logical": np.right_shift, "not": operator.invert, "negate": operator.neg,
}  # fmt: skip
_SAME = {"copy", "bitcast", "reshape", "copy-start", "copy-done", "optimization-barrier"}


def iterations(module: Any, around: Any, loop: Any) -> int | None:
    """Returns the trip count of a `while`; None if its condition depends on more than counters that start at constants,
    or if it is larger than MOST_ITERATIONS."""
    called = dict(loop.called)
    condition, body = module.computations[called["condition"]], module.computations[called["body"]]
    carried: dict[int, Any] = {}

    def first(index: int) -> Any:
        return _Reader(module, around, _unknown).value(loop.operands[0], index)

    def before(_: int, index: int | None) -> Any:
        if index is None:
            raise UnknownError
        if index not in carried:
            carried[index] = first(index)
            needed.add(index)
        return carried[index]

    needed: set[int] = set()
    try:
        for iteration in range(MOST_ITERATIONS):
            while True:  # a counter found late had its first value at the first iteration
                read = set(needed)
                goes_on = bool(_Reader(module, condition, before).root())
                result = {index: _Reader(module, body, before).root(index) for index in sorted(needed)}
                if needed == read:
                    break
                if iteration:
                    raise UnknownError
            if not goes_on:
                return iteration
            carried = result
    except UnknownError:
        pass
    return None


def _unknown(number: int, index: int | None) -> Any:
    raise UnknownError


class _Reader:
    """Computes scalars of one computation. parameter: returns a parameter by its number, or its value at an index."""

    def __init__(self, module: Any, computation: Any, parameter: Callable[[int, int | None], Any]):
        self.module = module
        self.computation = computation
        self.parameter = parameter
        self.known: dict[tuple[str, int | None], Any] = {}

    def root(self, index: int | None = None) -> Any:
        return self.value(self.computation.lines[-1].name, index)

    def value(self, name: str, index: int | None = None) -> Any:
        """Returns a scalar by its name, or the scalar at an index of a tuple."""
        key = name, index
        if key not in self.known:
            self.known[key] = self._compute(self.computation.by_name[name], index)
        return self.known[key]

    def _compute(self, line: Any, index: int | None) -> Any:
        opcode, operands = line.opcode, line.operands
        if opcode == "parameter":
            return self.parameter(int(line.arguments), index)
        if opcode == "tuple" and index is not None:
            return self.value(operands[index])
        if opcode == "get-tuple-element":
            position = re.search(r"index=(\d+)", line.rest)
            if index is not None or position is None:
                raise UnknownError
            return self.value(operands[0], int(position[1]))
        if opcode in ("fusion", "call"):
            return self._inside(line).root(index)
        if opcode in _SAME:
            return self.value(operands[0], index)
        scalar = _SCALAR.match(line.shape)
        if scalar is None or index is not None:
            raise UnknownError
        return self._scalar(line, _DTYPES[scalar[1]])

    def _scalar(self, line: Any, dtype: Any) -> Any:
        opcode, operands = line.opcode, line.operands
        with np.errstate(over="ignore"):
            if opcode == "constant":
                text = line.arguments
                return dtype(text == "true" if text in ("true", "false") else int(text))
            if opcode in _OPS:
                return dtype(_OPS[opcode](*map(self.value, operands)))
            if opcode == "compare":
                direction = re.search(r"direction=(\w+)", line.rest)
                assert direction is not None, "every comparison has one"
                compare = getattr(operator, direction[1].lower())  # EQ, NE, LT, LE, GT, GE
                return np.bool_(compare(*map(self.value, operands)))
            if opcode == "select":
                return self.value(operands[1] if self.value(operands[0]) else operands[2])
            if opcode == "convert":
                return self.value(operands[0]).astype(dtype)
            if opcode == "bitcast-convert":
                return self.value(operands[0]).view(dtype)
        raise UnknownError

    def _inside(self, line: Any) -> "_Reader":
        called = self.module.computations[line.called[0][1]]
        return _Reader(self.module, called, lambda number, index: self.value(line.operands[number], index))
