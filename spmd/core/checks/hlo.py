"""The optimised program as text: its computations, and the number of times that each of them runs."""

import dataclasses
import functools
import math
import re
import weakref
from dataclasses import dataclass, field
from typing import Any

from . import scalars


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. shape: of the result, as text; rest: operands and attributes, as text."""

    name: str
    shape: str
    opcode: str
    rest: str

    @functools.cached_property
    def arguments(self) -> str:
        """The text between the parentheses."""
        match = _ARGUMENTS.match(self.rest)
        return self.rest if match is None else match[1]

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return _NAME.findall(self.arguments)

    @property
    def scope(self) -> str:
        """The `op_name`: the name scopes in which jax traced the line, or ""."""
        match = _OP_NAME.search(self.rest)
        return "" if match is None else match[1]

    @functools.cached_property
    def called(self) -> list[tuple[str, str]]:
        """The computations that the line calls, each with the name of the attribute."""
        return [(kind, name) for kind, names in _CALLED.findall(self.rest) for name in _CALLED_NAME.findall(names)]


_NAME = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'"?known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)')
_CALLED = re.compile(
    r"\b(body|condition|calls|to_apply|branch_computations|true_computation|false_computation)=(\{[^}]*\}|[^,\s]+)"
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
    """A function of the program. count: the number of calls in a run; is_inner: it is part of one instruction; caller:
    the first computation that calls it, with the line."""

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
_LAST: "weakref.WeakKeyDictionary[Any, Module]" = weakref.WeakKeyDictionary()


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
            elif _CLOSED.fullmatch(line):  # a full match, as lines of a kernel's configuration begin so
                current = None
            elif (instruction := _INSTRUCTION.fullmatch(line)) is not None:
                current.lines.append(Instruction(*instruction.groups()))
            elif current.lines:  # the attributes of a kernel hold line ends
                last = current.lines[-1]
                current.lines[-1] = dataclasses.replace(last, rest=last.rest + line)
        self._count()

    @classmethod
    def of(cls, executable: Any) -> "Module":
        """The program of a `jax.stages.Compiled`. The last one is kept, as several checks read the same."""
        if executable not in _LAST:
            _LAST.clear()
            _LAST[executable] = cls(executable.as_text())
        return _LAST[executable]

    def _count(self) -> None:
        """Follows the calls from the entry computation; the body of a loop is counted once for each iteration."""
        order = self._callers_first()
        self.computations[self.entry].count = 1
        self.computations[self.entry].is_inner = False
        for computation in order:
            for line in computation.lines:
                if not line.called or line.opcode.endswith(("-done", "-update")):
                    continue  # counted with their start
                iterations = self.iterations(computation, line) if line.opcode == "while" else 1
                for kind, name in line.called:
                    called = self.computations[name]
                    called.count += computation.count * (iterations + (kind == "condition"))
                    called.caller = called.caller or (computation, line)
                    called.is_inner &= computation.is_inner or line.opcode not in _PLAIN_CALLS

    def _callers_first(self) -> list[Computation]:
        """Returns every computation that the entry reaches, callers before those that they call."""
        done: dict[str, None] = {}
        stack: list[tuple[str, bool]] = [(self.entry, False)]
        while stack:
            name, is_left = stack.pop()
            if is_left:
                done[name] = None
            elif name not in done:
                stack.append((name, True))
                stack += [(other, False) for line in self.computations[name].lines for _, other in line.called]
        return [self.computations[name] for name in reversed(done)]

    def iterations(self, computation: Computation, loop: Instruction) -> int:
        """The trip count of a loop; for one that is not known, which `unknown` lists, what its scope expects, or 1."""
        stated = _TRIPS.search(loop.rest)
        if stated is not None:
            return int(stated[1])
        counted = scalars.iterations(self, computation, loop)
        if counted is None and loop.name not in self.unknown:
            self.unknown.append(loop.name)
        expected = _EXPECTED.search(loop.scope)
        likely = 1 if expected is None else int(expected[1])
        return likely if counted is None else counted


@functools.lru_cache(4096)
def arrays(shape: str) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Returns dtype, dims and bytes of each array of a result."""
    result = []
    for dtype, text in _ARRAY.findall(shape):
        dims = tuple(int(dim.lstrip("<=")) for dim in text.split(",") if dim)
        width = _BITS.search(dtype)
        result.append((dtype, dims, -(-math.prod(dims) * (8 if width is None else int(width[0])) // 8)))
    return tuple(result)


def num_bytes(shape: str) -> int:
    """The bytes of a result, all parts of a tuple together."""
    return sum(size for _, _, size in arrays(shape))
