"""The optimised program as text: its computations, and how often each of them runs."""

import functools
import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation. shape: of the result, as text; rest: operands and attributes, as text."""

    name: str
    shape: str
    opcode: str
    rest: str

    @property
    def operands(self) -> list[str]:
        """The names of the operands."""
        depth = 1
        for end, letter in enumerate(self.rest):
            depth += (letter == "(") - (letter == ")")
            if not depth:
                return _NAME.findall(self.rest[:end])
        return []

    @property
    def op_name(self) -> str:
        """Where jax traced it: the names of the scopes around it, or ""."""
        found = _OP_NAME.search(self.rest)
        return "" if found is None else found[1]


_NAME = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'"?known_trip_count"?:\s*\{\s*"?n"?:\s*"?(\d+)')
_CALLED = re.compile(r"\b(body|condition|calls|to_apply|branch_computations|true_computation|false_computation)=")
_ARRAY = re.compile(r"\b(pred|[a-z]+\d+[a-z\d]*)\[([\d,<=]*)\]")
_BITS = re.compile(r"\d+")


@dataclass(slots=True)
class Computation:
    """A function of the program. count: how often a run calls it; is_inner: it is inside a fusion or a reduction."""

    name: str
    lines: list[Instruction] = field(default_factory=list)
    count: int = 0
    is_inner: bool = True


class Module:
    """An optimised program, parsed."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        self.entry = ""
        current: Computation | None = None
        for line in text.splitlines():
            if current is None:
                if line.endswith("{") and not line.startswith("HloModule"):
                    head = line.removeprefix("ENTRY ").lstrip("%")
                    current = Computation(re.split(r"[ (]", head, maxsplit=1)[0])
                    self.computations[current.name] = current
                    if line.startswith("ENTRY"):
                        self.entry = current.name
            elif line.startswith("}"):
                current = None
            else:
                instruction = _instruction(line)
                if instruction is not None:
                    current.lines.append(instruction)
        self._count()

    def _count(self) -> None:
        """Follows the calls from the entry; what a loop calls is counted once for each of its turns."""
        todo = [(self.entry, 1, False)]
        while todo:
            name, count, is_inner = todo.pop()
            computation = self.computations[name]
            computation.count += count
            computation.is_inner &= is_inner
            for line in computation.lines:
                if line.opcode.endswith(("-done", "-update")):
                    continue  # of what its start has called
                trips = self.trips(computation, line) if line.opcode == "while" else 1
                inside = is_inner or line.opcode not in _PLAIN_CALLS
                for kind, called in _called(line):
                    turns = count * (trips + 1 if kind == "condition" else trips)
                    todo.append((called, turns, inside))

    def trips(self, computation: Computation, loop: Instruction) -> int:
        """How many turns a loop takes; 1 where the program does not say."""
        said = _TRIPS.search(loop.rest)
        if said is not None:
            return int(said[1])
        condition = next((self.computations[name] for kind, name in _called(loop) if kind == "condition"), None)
        return 1 if condition is None else _trips_of(self, computation, loop, condition)


# What calls a computation as its own lines, not line by line inside an op.
_PLAIN_CALLS = {"while", "conditional", "call", "async-start"}


def _instruction(line: str) -> Instruction | None:
    head, equals, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    if not equals:
        return None
    if rest.startswith("("):
        depth = 0
        for end, letter in enumerate(rest):
            depth += (letter == "(") - (letter == ")")
            if not depth:
                break
        shape, rest = rest[: end + 1], rest[end + 2 :]
    else:
        shape, _, rest = rest.partition(" ")
    opcode, _, rest = rest.partition("(")
    return Instruction(head.lstrip("%"), shape, opcode, rest)


def _called(line: Instruction) -> list[tuple[str, str]]:
    """The computations that an instruction calls, each with the name of the attribute."""
    found = []
    for match in _CALLED.finditer(line.rest):
        rest = line.rest[match.end() :]
        names = rest[: rest.index("}")] if rest.startswith("{") else re.split(r"[,\s]", rest, maxsplit=1)[0]
        found += [(match[1], name.strip().lstrip("%")) for name in names.strip("{}").split(",") if name.strip()]
    return found


def _trips_of(module: Module, computation: Computation, loop: Instruction, condition: Computation) -> int:
    """The turns of a loop whose condition compares a counter with a constant; it starts at a constant, by steps of one.

    1 for any other.
    """
    by_name = {line.name: line for line in condition.lines}
    root = condition.lines[-1]
    if root.opcode == "fusion":
        inner = module.computations[_called(root)[0][1]]
        given = dict(
            zip([line.name for line in inner.lines if line.opcode == "parameter"], root.operands, strict=False)
        )
        by_name |= {line.name: line for line in inner.lines if line.name not in given}
        by_name |= {name: by_name[operand] for name, operand in given.items() if operand in by_name}
        root = inner.lines[-1]
    if root.opcode != "compare" or "direction=LT" not in root.rest:
        return 1
    counter, limit = (by_name.get(name) for name in root.operands)
    if counter is None or limit is None or counter.opcode != "get-tuple-element" or limit.opcode != "constant":
        return 1
    index = re.search(r"index=(\d+)", counter.rest)
    carried = {line.name: line for line in computation.lines}
    start = carried.get(loop.operands[0]) if loop.operands else None
    begin = None
    if index is not None and start is not None and start.opcode == "tuple":
        begin = carried.get(start.operands[int(index[1])])
        while begin is not None and begin.opcode in ("copy", "bitcast"):
            begin = carried.get(begin.operands[0])
    first = _constant(begin) if begin is not None else 0
    last = _constant(limit)
    return 1 if first is None or last is None else max(last - first, 0)


def _constant(line: Instruction) -> int | None:
    text = line.rest.partition(")")[0]
    return int(text) if line.opcode == "constant" and re.fullmatch(r"-?\d+", text) else None


def num_bytes(shape: str) -> int:
    """The bytes of a result, all parts of a tuple together."""
    return sum(size for _, _, size in arrays(shape))


@functools.lru_cache(4096)
def arrays(shape: str) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """Each array of a result: dtype, dims, bytes."""
    found = []
    for dtype, text in _ARRAY.findall(shape):
        dims = tuple(int(dim.lstrip("<=")) for dim in text.split(",") if dim)
        numel = 1
        for dim in dims:
            numel *= dim
        bits = 8 if dtype == "pred" else int(_BITS.search(dtype)[0])  # type: ignore[index]  # every other name has one
        found.append((dtype, dims, -(-numel * bits // 8)))
    return tuple(found)
