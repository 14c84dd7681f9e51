"""The instructions of an optimised program, by name: the recorded ops that each came from, and its bytes."""

from collections.abc import Iterator
from typing import NamedTuple

from ...core.extend import Computation, Instruction, Module, hlo_text
from .hlo_collectives import collective_kind, joined, node_index, scope_of

_WITHIN = ("fusion", "call", "custom-call")  # these run what they call as one


class Origin(NamedTuple):
    """places: of the recorded ops, the op that names the instruction first. num_bytes: of its operands and results, on
    one device. opcode: XLA's."""

    places: tuple[int, ...]
    num_bytes: int
    opcode: str


def origins(module: Module, num_nodes: int) -> dict[str, Origin]:
    """Returns where each instruction came from, those inside fusions left out."""
    found: dict[str, Origin] = {}
    for computation in module.computations.values():
        for line in () if computation.is_inner or not computation.count else computation.lines:
            places = dict.fromkeys(_places(module, computation, line, num_nodes))
            if not places:  # XLA's own: a copy of an argument is of the op that reads it
                readers = computation.readers.get(line.name, [])[:1]
                places = dict.fromkeys(p for reader in readers for p in _places(module, computation, reader, num_nodes))
            operands = (computation.by_name[name] for name in line.operands if name in computation.by_name)
            size = hlo_text.num_bytes(line.shape) + sum(hlo_text.num_bytes(operand.shape) for operand in operands)
            found[line.name] = Origin(tuple(places), size, line.opcode)
    return found


def _places(module: Module, computation: Computation, line: Instruction, num_nodes: int) -> Iterator[int]:
    own = node_index(scope_of(computation, line), num_nodes)
    if own is not None:
        yield own
    if collective_kind(line) is not None:
        yield from joined(computation, line, num_nodes)
    for _, name in line.called if line.opcode in _WITHIN else ():
        for inner in module.computations[name].lines:
            place = node_index(inner.scope, num_nodes)
            if place is not None:
                yield place
