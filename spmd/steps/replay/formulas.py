"""Numbers that Python computes from others that may change, as formulas: torch carries them into
its ops as `SymFloat`.

A formula is a line of Python over the lines before it. A use that needs the number itself (a
comparison, `float()`, `math.cos`) is a guard: the formulas hold for as long as it has the same
result.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core import observation, user_line

# The operations of torch's symbolic numbers: by the text of a formula, torch's names of it.
_FORMS = {
    "{} + {}": "add",
    "{} - {}": "sub",
    "{} * {}": "mul",
    "{} % {}": "mod",
    "{} ** {}": "pow float_pow",
    "{} / {}": "truediv float_truediv int_truediv",
    "{} // {}": "floordiv int_floordiv",
    "max({}, {})": "sym_max",
    "min({}, {})": "sym_min",
    "{} == {}": "eq",
    "{} != {}": "ne",
    "{} < {}": "lt",
    "{} <= {}": "le",
    "{} > {}": "gt",
    "{} >= {}": "ge",
    "{} and {}": "and_",
    "{} or {}": "or_",
    "-{}": "neg",
    "+{}": "pos",
    "abs({})": "abs",
    "floor({})": "floor",
    "ceil({})": "ceil",
    "trunc({})": "trunc",
    "sqrt({})": "sqrt sym_sqrt",
    "float({})": "sym_float",
    "not {}": "sym_not",
    "float({}).is_integer()": "is_integer",
}
_SCOPE = vars(math)  # of a formula's text: its functions, `inf` and `nan`


class Formulas:
    """The formulas of one recorded call.

    sources: what each source is read from, by its place. values: the numbers of the recorded call,
    by place. guards: by place, (value, where) of the results that must stay.
    """

    def __init__(self) -> None:
        self.sources: list[Any] = []
        self.guards: dict[int, tuple[Any, str]] = {}
        self._texts: list[str] = []
        self._operands: list[tuple[int, ...]] = []
        self.values: list[Any] = []
        self._places: dict[str, int] = {}
        self._read: dict[int, int] = {}  # the source that is read at a place

    def source(self, origin: Any, value: float, plus: float = 0.0) -> torch.SymFloat:
        """A number that is read from `origin` at each call, plus a constant. value: with the
        constant, as it is now."""
        if origin not in self.sources:
            self.sources.append(origin)
        number = self.sources.index(origin)
        index = self._place(f"s[{number}]" + (f" + {plus!r}" if plus else ""), (), value)
        self._read[index] = number
        return torch.SymFloat(SymbolicNumber(self, index))

    def _place(self, text: str, operands: tuple[int, ...], value: Any) -> int:
        index = self._places.get(text)
        if index is None:
            index = self._places[text] = len(self._texts)
            self._texts.append(text)
            self._operands.append(operands)
            self.values.append(value)
        return index

    def constant(self, value: Any) -> "SymbolicNumber":
        return SymbolicNumber(self, self._place(repr(value), (), value))

    def computed(
        self, form: str, function: Callable[..., Any], *numbers: "SymbolicNumber"
    ) -> "SymbolicNumber":
        places = tuple(number.index for number in numbers)
        value = function(*(number.value for number in numbers))
        return SymbolicNumber(
            self, self._place(form.format(*(f"v{index}" for index in places)), places, value)
        )

    def guard(self, index: int, where: str) -> Any:
        """Returns a result that the call has used as it is: it must be the same at the next
        call."""
        value = self.values[index]
        if self._texts[index].startswith("s[") or self._operands[index]:
            self.guards.setdefault(index, (value, where))
        return value

    def compiled(
        self, targets: Sequence[int]
    ) -> tuple[Callable[[Sequence[float]], Sequence[float] | str], set[int]]:
        """A function of the sources' values, and the places of those that it reads.

        It returns the wanted numbers, or where a guard does not hold, the text of its place. Raises
        what the arithmetic raises (ZeroDivisionError, OverflowError).
        """
        needed, todo = set[int](), [*targets, *self.guards]
        while todo:
            index = todo.pop()
            if index not in needed:
                needed.add(index)
                todo.extend(self._operands[index])
        lines = ["def numbers(s):"]
        for index in sorted(needed):
            lines.append(f" v{index} = {self._texts[index]}")
            if index in self.guards:
                value, where = self.guards[index]
                lines.append(f" if v{index} != {value!r}: return {where!r}")
        lines.append(f" return ({''.join(f'v{index}, ' for index in targets)})")
        names = dict(_SCOPE)
        exec("\n".join(lines), names)  # of texts of this file
        return names["numbers"], {self._read[index] for index in needed if index in self._read}


class SymbolicNumber:
    """torch's node of a symbolic number (`torch.SymFloat.node`), which is a formula."""

    __slots__ = ("formulas", "index")

    def __init__(self, formulas: Formulas, index: int):
        self.formulas = formulas
        self.index = index

    @property
    def value(self) -> Any:
        return self.formulas.values[self.index]

    def scalar(self) -> observation.Scalar:
        """The number as a scalar argument."""
        result = observation.Scalar(self.value)
        result.index = self.index
        return result

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return isinstance(self.value, float)

    def is_bool(self) -> bool:
        return type(self.value) is bool

    def is_symbolic(self) -> bool:
        return True

    has_hint = is_symbolic

    def is_constant(self) -> bool:
        return False

    is_nested_int = is_constant

    def maybe_as_int(self) -> None:
        return None

    maybe_as_float = maybe_as_bool = maybe_as_int

    def wrap_float(self, number: float) -> "SymbolicNumber":
        return self.formulas.constant(number)

    wrap_int = wrap_bool = wrap_float

    def guard_float(self, file: str, line: int) -> float:
        return float(self.formulas.guard(self.index, str(user_line())))

    def guard_int(self, file: str = "", line: int = 0) -> int:
        return int(self.formulas.guard(self.index, str(user_line())))

    def guard_bool(self, file: str = "", line: int = 0) -> bool:
        return bool(self.formulas.guard(self.index, str(user_line())))

    int_ = guard_int
    bool_ = expect_true = expect_size = guard_or_false = guard_or_true = guard_size_oblivious = (
        guard_bool
    )

    def str(self) -> str:
        return repr(self.value)

    _graph_repr = __str__ = __repr__ = str


def _method(form: str) -> Callable[..., SymbolicNumber]:
    function = eval(f"lambda a, b=None: {form.format('a', 'b')}", dict(_SCOPE))
    return lambda self, *operands: self.formulas.computed(form, function, self, *operands)


for _form, _names in _FORMS.items():
    for _name in _names.split():
        setattr(SymbolicNumber, _name, _method(_form))


class FormulaObservation(observation.Observation):
    """The notes on a call, and its formulas as scalar arguments of ops."""

    def plain(self, value: Any) -> Any:
        """A symbolic number as the number that it is now, without a guard; anything else as it
        is."""
        return (
            value.node.value
            if type(value) is torch.SymFloat and isinstance(value.node, SymbolicNumber)
            else value
        )

    def scalar(self, value: Any) -> Any:
        """A symbolic number as `Scalar`; anything else as it is."""
        if type(value) is not torch.SymFloat:
            return value
        return value.node.scalar() if isinstance(value.node, SymbolicNumber) else float(value)

    def scalars(self, values: Sequence[Any]) -> list[Any]:
        """A list of scalar arguments with formulas as `Scalar`. One number many times stays one:
        their equality is a guard where they are not one formula."""
        result = [self.scalar(value) for value in values]
        formulas = [value for value in result if type(value) is observation.Scalar]
        if not formulas or any(
            value != result[0] or not isinstance(value, float) for value in result
        ):
            return result
        if len({value.index for value in formulas}) > 1 or len(formulas) < len(result):
            return [float(value) for value in values]
        return [formulas[0]] * len(result)
