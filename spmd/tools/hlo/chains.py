"""Chains: collectives of one op that follow each other in an optimised program, with the shapes around them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...core.extend import Computation, Instruction, Module, hlo_text
from .hlo_collectives import Placed

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Collectives in a row. befores: the shapes that a shard has on its way to the first one, the nearest first;
    afters: behind the last one; is_cut: that is each device's own slice, and nothing reads what is not in it."""

    links: list[Placed]
    befores: list[Shape]
    afters: list[Shape]
    is_cut: bool


# Opcodes whose result has the elements of their operands and no others.
_MOVING = {
    "copy", "convert", "bitcast", "get-tuple-element", "tuple", "transpose", "reshape", "concatenate", "slice",
    "all-gather-done", "collective-permute-done", "all-reduce-done", "parameter",
}  # fmt: skip
_MOST = 64  # lines that are followed


def chain_of(module: Module, first: Placed, by_line: Mapping[tuple[str, str], Placed]) -> Chain:
    """Returns the chain that begins with a collective. by_line: all of them by computation and line."""
    links = [first]
    for line, _ in _readers(module, first.computation, first.line, by_line):
        found = by_line.get((first.computation.name, line.name))
        if found is not None and _is_next(first, found) and found not in links:
            links.append(found)
    last = links[-1]
    count = _num_elements(last)
    shapes = [shape for _, found in _readers(module, last.computation, last.line, {}) for shape in found]
    wholes = [shape for shape in [_shape(last.line), *shapes] if math.prod(shape) == count]
    cut = _own_slice(module, last)
    return Chain(links, _befores(module, first), wholes if cut is None else [cut], cut is not None)


def _is_next(first: Placed, found: Placed) -> bool:
    """True for collectives of one op, or of one value, whose scope XLA gives to what moves it (jaxlib 0.12)."""
    return found.node == first.node or (found.node is not None and "" != found.line.scope == first.line.scope)


def _num_elements(link: Placed) -> int:
    """The elements of a shard after a collective."""
    known = link.computation.by_name
    count = sum(math.prod(_shape(known[name])) for name in link.line.operands if name in known)
    return math.prod(_shape(link.line)) if link.row.kind == "all-gather" else count


def _readers(
    module: Module, computation: Computation, line: Instruction, by_line: Mapping[tuple[str, str], Placed]
) -> Iterator[tuple[Instruction, list[Shape]]]:
    """Yields the lines that a line's elements reach by being moved alone, each with the shapes that they have there;
    through collectives as well, those of `by_line`."""
    todo, seen = [line], {line.name}
    while todo and len(seen) < _MOST:
        one = todo.pop(0)
        for reader in computation.readers.get(one.name, []):
            if reader.name in seen:
                continue
            seen.add(reader.name)
            is_link = (computation.name, reader.name) in by_line
            shapes, goes_on = [_shape(reader)], reader.opcode in _MOVING or is_link
            if reader.opcode == "fusion":
                inside, goes_on = _through(module.computations[reader.called[0][1]], reader, one)
                shapes = [*inside, *shapes] if goes_on else inside
            elif not goes_on:
                shapes = []
            if _takes_own_slice(module, computation, reader):
                goes_on = bool(by_line)  # not for the shapes behind the last collective: they are of the slice
            if goes_on:
                todo.append(reader)
            yield reader, shapes


def _through(inner: Computation, fusion: Instruction, operand: Instruction) -> tuple[list[Shape], bool]:
    """The shapes that an operand's elements have inside a fusion, and whether the fusion moves them and no more."""
    places = {str(index) for index, name in enumerate(fusion.operands) if name == operand.name}
    todo = [one for one in inner.lines if one.opcode == "parameter" and one.arguments in places]
    shapes: list[Shape] = []
    seen: set[str] = set()
    while todo:
        one = todo.pop(0)
        shapes.append(_shape(one))
        for reader in inner.readers.get(one.name, []):
            if reader.opcode in (*_MOVING, "dynamic-slice") and reader.name not in seen:
                seen.add(reader.name)
                todo.append(reader)
    return shapes, inner.lines[-1].name in seen


def _befores(module: Module, first: Placed) -> list[Shape]:
    """The shapes of a shard before the first collective, and before each device takes its slice for it."""
    computation, line = first.computation, first.line
    found: list[Shape] = []
    while len(found) < _MOST:
        operands = [computation.by_name[name] for name in line.operands if name in computation.by_name]
        if not operands:
            break
        line = max(operands, key=lambda one: math.prod(_shape(one)))
        found.append(_shape(line))
        if line.opcode == "fusion":
            inner = module.computations[line.called[0][1]]
            found += [_shape(one) for one in reversed(inner.lines) if one.opcode in _MOVING]
            if any(one.opcode not in (*_MOVING, *_NUMBERS) for one in inner.lines):
                break
        elif line.opcode not in _MOVING and not _takes_own_slice(module, computation, line):
            break
    return found


# What computes the place of a slice.
_NUMBERS = {"dynamic-slice", "constant", "subtract", "add", "multiply", "partition-id"}


def _shape(line: Instruction) -> Shape:
    """The dims of a result; of several arrays those of the largest."""
    return max(((size, dims) for _, dims, size in hlo_text.arrays(line.shape)), default=(0, ()))[1]


# --- slices by the number of the device -------------------------------------------------------------------------------


def _own_slice(module: Module, last: Placed) -> Shape | None:
    """The shape of the slice that each device keeps of a collective's result; None if the whole is read."""
    computation, line = last.computation, last.line
    while True:
        readers = [one for one in computation.readers.get(line.name, []) if one.opcode != "tuple"]
        cuts = [_own_slice_of(module, computation, line, one) for one in readers]
        if cuts and None not in cuts:
            return cuts[0]
        if len(readers) != 1 or readers[0].opcode not in _MOVING:
            return None
        line = readers[0]


def _own_slice_of(module: Module, computation: Computation, line: Instruction, reader: Instruction) -> Shape | None:
    """The shape of the slice that a reader takes of a line for its device; None if it reads more of it."""
    if not _takes_own_slice(module, computation, reader):
        return None
    if reader.opcode == "dynamic-slice":
        return _shape(reader)
    inner = module.computations[reader.called[0][1]]
    places = {str(index) for index, name in enumerate(reader.operands) if name == line.name}
    todo = [one for one in inner.lines if one.opcode == "parameter" and one.arguments in places]
    cuts: list[Shape] = []
    for one in todo:  # which becomes longer
        for inside in inner.readers.get(one.name, []):
            if inside.opcode == "dynamic-slice":
                cuts.append(_shape(inside))
            elif inside.opcode not in (*_MOVING, *_UPDATES):
                return None
            elif inside not in todo:
                todo.append(inside)
    return max(cuts, key=math.prod, default=None)


_UPDATES = {"dynamic-update-slice", "pad", "select"}  # an update of a slice of a split dim: gathered, updated, cut


def _takes_own_slice(module: Module, computation: Computation, line: Instruction) -> bool:
    """True if a line takes a slice of an operand that starts at a place of its device's own."""
    if line.opcode == "dynamic-slice":
        return _is_numbered(computation, line)
    if line.opcode != "fusion":
        return False
    inner = module.computations[line.called[0][1]]
    return any(one.opcode == "dynamic-slice" for one in inner.lines) and _is_numbered(computation, line)


def _is_numbered(computation: Computation, line: Instruction) -> bool:
    """True if a scalar that a line reads comes from the number of the device."""
    todo, seen = [line], 0
    while todo and seen < _MOST:
        one = todo.pop()
        seen += 1
        if one.opcode == "partition-id":
            return True
        operands = (computation.by_name[name] for name in one.operands if name in computation.by_name)
        todo += [operand for operand in operands if math.prod(_shape(operand)) == 1 and operand.opcode != "parameter"]
    return False
