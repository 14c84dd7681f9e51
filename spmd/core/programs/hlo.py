"""The optimised program as text: its computations, and the number of times that each of them runs.

XLA states the trip count of a loop where it knows it. Otherwise the counter is simulated from the
scalars behind the loop's condition (TPUs split a counter of 64 bits into two of 32).
"""

import dataclasses
import functools
import math
import operator
import re
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..base.jax_private import text_with_constants


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. shape: of the result, as text; tail: operands and attributes, as
    text."""

    name: str
    shape: str
    opcode: str
    tail: str

    @functools.cached_property
    def arguments(self) -> str:
        """The text between the parentheses."""
        match = _ARGUMENTS.match(self.tail)
        return self.tail if match is None else match[1]

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return _NAME.findall(self.arguments)

    @property
    def scope(self) -> str:
        """The `op_name`: the name scopes in which jax traced the line, or ""."""
        match = _OP_NAME.search(self.tail)
        return "" if match is None else match[1]

    @functools.cached_property
    def values(self) -> np.ndarray | None:
        """The integers of a constant, in its dims; None if the text elides them, and for other
        opcodes."""
        if self.opcode != "constant" or "..." in self.arguments:
            return None
        return np.array(_INTEGER.findall(self.arguments), int).reshape(arrays(self.shape)[0][1])

    @functools.cached_property
    def called(self) -> list[tuple[str, str]]:
        """The computations that the line calls, each with the name of the attribute."""
        return [
            (kind, name)
            for kind, names in _CALLED.findall(self.tail)
            for name in _CALLED_NAME.findall(names)
        ]


_NAME = re.compile(r"%([\w.\-]+)")
_INTEGER = re.compile(r"-?\d+")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'"?known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)')
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|[^,\s]+)"
)
_CALLED_NAME = re.compile(r"[\w.\-]+")
# Arguments, too, have parentheses: those of layouts, which no attribute follows.
_ARGUMENTS = re.compile(r"(.*?)\)(?=, [\w\-]+=|\s*$)")
_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%?(\S+) = (.*?) ([\w\-]+)\((.*)")
_HEAD = re.compile(r"(ENTRY )?%?(?!HloModule)([^ (]+)[ (].*\{")
# The last line of a computation; it names the thread of one that runs on a TPU's other cores.
_CLOSED = re.compile(r"\}(?:, execution_thread=\"\w+\")?\s*")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z\d]*)\[([\d,<=]*)\]")
_BITS = re.compile(r"\d+")

# Opcodes that call a computation as lines of its own, not once for each element or inside a fusion.
_PLAIN_CALLS = {"while", "conditional", "call", "async-start"}


@dataclass
class Computation:
    """A function of the program. count: the number of calls in a run; is_inner: it is the body of
    an instruction, as of a fusion; caller: the first computation that calls it, with the line."""

    name: str
    lines: list[Instruction] = field(default_factory=list)
    count: int = 0
    is_inner: bool = True
    caller: "tuple[Computation, Instruction] | None" = None

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        return {line.name: line for line in self.lines}

    @functools.cached_property
    def readers(self) -> dict[str, list[Instruction]]:
        """The lines that read a line, by its name."""
        readers: dict[str, list[Instruction]] = {}
        for line in self.lines:
            for operand in line.operands:
                readers.setdefault(operand, []).append(line)
        return readers


_EXPECTED = re.compile(r"\biterations=(\d+)/while[^/]*$")
# The share of a conditional's runs that take its branch of true, where its caller states it.
_RUNS = re.compile(r"\bruns=(\d+)of(\d+)/cond[^/]*$")


class Executable(Protocol):
    """A compiled program, as far as it is read here: a `jax.stages.Compiled`."""

    def as_text(self) -> str | None: ...


def text_of(executable: Executable) -> str:
    """Returns the optimised program as text; that of a program with kernels has all constants (an
    attention mask is one)."""
    text = executable.as_text() or ""
    has_masks = 'custom_call_target="tpu_custom_call"' in text and "constant({...})" in text
    return text_with_constants(executable) if has_masks else text


_LAST: "weakref.WeakKeyDictionary[Executable, Module]" = weakref.WeakKeyDictionary()


class Module:
    """An optimised program, parsed from its text.

    Attributes:
        computations: by name; the entry computation is under `entry`.
        unknown: the loops whose trip count neither the compiler nor their own counter gives.
    """

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        self.unknown: list[str] = []
        current: Computation | None = None
        for line in text.splitlines():
            if current is None:
                if (head := _HEAD.fullmatch(line)) is not None:
                    current = self.computations[head[2]] = Computation(head[2])
                    self.entry = head[2] if head[1] else self.entry
            elif _CLOSED.fullmatch(line):
                # a full match, as lines of a kernel's configuration begin so
                current = None
            elif (instruction := _INSTRUCTION.fullmatch(line)) is not None:
                current.lines.append(Instruction(*instruction.groups()))
            elif current.lines:  # the attributes of a kernel hold line ends
                last_instruction = current.lines[-1]
                current.lines[-1] = dataclasses.replace(
                    last_instruction, tail=last_instruction.tail + line
                )
        self._count()

    @classmethod
    def of(cls, executable: Executable) -> "Module":
        """Returns the program of an executable; the latest is cached, as several checks read it."""
        if executable not in _LAST:
            _LAST.clear()
            _LAST[executable] = cls(text_of(executable))
        return _LAST[executable]

    def lines(self, *, inner: bool = True) -> Iterator[tuple[Computation, Instruction]]:
        """Yields the lines that run, with their computations. inner: those inside of fusions,
        too."""
        for computation in self.computations.values():
            if computation.count and (inner or not computation.is_inner):
                yield from ((computation, line) for line in computation.lines)

    def _count(self) -> None:
        """Follows the calls from the entry computation; the body of a loop is counted once for each
        iteration."""
        self.computations[self.entry].count = 1
        self.computations[self.entry].is_inner = False
        # Callers come first, so that a computation's own count is complete: the text of a program
        # has each computation behind those that it calls.
        for computation in reversed(self.computations.values()):
            for line in computation.lines:
                if not line.called or line.opcode.endswith(("-done", "-update")):
                    continue  # counted with their start
                iterations = self.iterations(computation, line) if line.opcode == "while" else 1
                runs, of_runs = stated_runs(line) or (1, 1)
                for place, (kind, name) in enumerate(line.called):
                    called = self.computations[name]
                    # Of a conditional's branches that of false is the first.
                    taken = runs if place or runs == of_runs else of_runs - runs
                    count = computation.count * (iterations + (kind == "condition"))
                    called.count += count * taken // of_runs
                    called.caller = called.caller or (computation, line)
                    called.is_inner &= computation.is_inner or line.opcode not in _PLAIN_CALLS

    def iterations(self, computation: Computation, loop: Instruction) -> int:
        """Returns the trip count of a loop; of an unknown one (see `unknown`) that of its scope, or
        1."""
        stated = _TRIPS.search(loop.tail)
        if stated is not None:
            return int(stated[1])
        simulated = _simulated_trip_count(self, computation, loop)
        if simulated is None and loop.name not in self.unknown:
            self.unknown.append(loop.name)
        expected = _EXPECTED.search(loop.scope)
        fallback = 1 if expected is None else int(expected[1])
        return fallback if simulated is None else simulated


def stated_runs(line: Instruction) -> tuple[int, int] | None:
    """Returns how many runs of a conditional, of how many, take its branch of true; None where its
    scope does not state it."""
    stated = _RUNS.search(line.scope) if line.opcode == "conditional" else None
    return None if stated is None else (int(stated[1]), int(stated[2]))


@functools.lru_cache(4096)
def arrays(shape: str) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Returns dtype, dims and bytes of each array of a result."""
    result = []
    for dtype, text in _ARRAY.findall(shape):
        dims = tuple(int(dim.lstrip("<=")) for dim in text.split(",") if dim)
        width = _BITS.search(dtype)
        result.append(
            (dtype, dims, -(-math.prod(dims) * (8 if width is None else int(width[0])) // 8))
        )
    return tuple(result)


def num_bytes(shape: str) -> int:
    """Returns the bytes of a result, all parts of a tuple together."""
    return sum(size for _, _, size in arrays(shape))


# --- trip counts ----------------------------------------------------------------------------------

MOST_ITERATIONS = 1 << 17  # longer loops are not simulated


class UnknownError(Exception):
    """A value that cannot be computed: it depends on data, or on an op that `_Reader` does not
    know."""


Scalar = np.ndarray  # of no dims
_SCALAR = re.compile(r"^(pred|[su]\d+)\[\]")
_DTYPES = {"pred": np.dtype(bool)}
_DTYPES |= {f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)}
_DTYPES |= {f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)}
_OPS = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "minimum": np.minimum, "maximum": np.maximum,
    "shift-left": np.left_shift, "shift-right-logical": np.right_shift, "not": np.invert,
    "negate": np.negative,
}  # fmt: skip
_SAME = {"copy", "bitcast", "reshape", "copy-start", "copy-done", "optimization-barrier"}


def _simulated_trip_count(module: Module, caller: Computation, loop: Instruction) -> int | None:
    """Returns the trip count of a `while`; None if its condition depends on more than counters that
    start at constants, or if it is larger than MOST_ITERATIONS."""
    called = dict(loop.called)
    condition, body = module.computations[called["condition"]], module.computations[called["body"]]
    carried: dict[int, Scalar] = {}

    def carried_value(_: int, index: int | None) -> Scalar:
        """Returns a value of the carry, the only parameter, before this iteration; raises
        UnknownError if its initial value is no constant."""
        if index is None:
            raise UnknownError
        if index not in carried:
            carried[index] = _Reader(module, caller, _unknown).value(loop.operands[0], index)
            needed.add(index)
        return carried[index]

    needed: set[int] = set()
    try:
        # Runs condition and body on the carried values that the condition needs; the body may need
        # more of them, which only the first iteration can still add.
        for iteration in range(MOST_ITERATIONS):
            while True:  # until condition and body need no further carried value
                needed_before = set(needed)
                continues = bool(_Reader(module, condition, carried_value).root())
                next_carried = {
                    index: _Reader(module, body, carried_value).root(index)
                    for index in sorted(needed)
                }
                if needed == needed_before:
                    break
                if iteration:
                    raise UnknownError
            if not continues:
                return iteration
            carried = next_carried
    except UnknownError:
        pass
    return None


def _unknown(number: int, index: int | None) -> Scalar:
    """Raises UnknownError for every parameter: those of a loop's caller depend on data."""
    raise UnknownError


@dataclass(eq=False)
class _Reader:
    """Computes scalars of one computation. parameter: returns a parameter by its number, or its
    value at an index."""

    module: Module
    computation: Computation
    parameter: Callable[[int, int | None], Scalar]
    known: dict[tuple[str, int | None], Scalar] = field(default_factory=dict)

    def root(self, index: int | None = None) -> Scalar:
        return self.value(self.computation.lines[-1].name, index)

    def value(self, name: str, index: int | None = None) -> Scalar:
        """Returns a scalar by its name, or the scalar at an index of a tuple."""
        key = name, index
        if key not in self.known:
            self.known[key] = self._compute(self.computation.by_name[name], index)
        return self.known[key]

    def _compute(self, line: Instruction, index: int | None) -> Scalar:
        """Computes an instruction that passes on operands' values; others by `_scalar`."""
        opcode, operands = line.opcode, line.operands
        if opcode == "parameter":
            return self.parameter(int(line.arguments), index)
        if opcode == "tuple" and index is not None:
            return self.value(operands[index])
        if opcode == "get-tuple-element":
            position = re.search(r"index=(\d+)", line.tail)
            if index is not None or position is None:
                raise UnknownError
            return self.value(operands[0], int(position[1]))
        if opcode in ("fusion", "call"):
            called = self.module.computations[line.called[0][1]]
            return _Reader(
                self.module, called, lambda number, element: self.value(operands[number], element)
            ).root(index)
        if opcode in _SAME:
            return self.value(operands[0], index)
        scalar = _SCALAR.match(line.shape)
        if scalar is None or index is not None:
            raise UnknownError
        with np.errstate(over="ignore"):
            return self._scalar(line, _DTYPES[scalar[1]])

    def _scalar(self, line: Instruction, dtype: np.dtype) -> Scalar:
        """Computes a scalar instruction from its operands' values."""
        opcode, text = line.opcode, line.arguments
        if opcode == "constant":
            return np.array(text == "true" if text in ("true", "false") else int(text)).astype(
                dtype
            )
        if opcode == "select":
            condition, on_true, on_false = line.operands
            return self.value(on_true if self.value(condition) else on_false)
        if opcode == "bitcast-convert":
            return self.value(line.operands[0]).view(dtype)
        if opcode == "convert":
            return self.value(line.operands[0]).astype(dtype)
        # EQ, NE, LT, LE, GT, GE
        direction = re.search(r"direction=(\w+)", line.tail) if opcode == "compare" else None
        compute = _OPS.get(opcode) if direction is None else getattr(operator, direction[1].lower())
        if compute is None:
            raise UnknownError
        return np.asarray(compute(*map(self.value, line.operands))).astype(dtype)
