"""Reads for the compile log from a program's text: operations in loops, collectives, unrequested moves."""

import re
from collections import Counter

from ...core import Collective, Move
from ...core.extend import Module, Program, executables
from .costs import flops_of, repeated_flops
from .hlo_collectives import KINDS, Exchange, collectives, exchanges, table
from .unrequested_moves import Placement, listed, moves

_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(KINDS)})(-start)?\(")


def of_program(program: Program) -> tuple[float, dict[str, int], tuple[Exchange, ...], tuple[Placement, ...]]:
    """Returns the operations of a program, the number of its collectives of each kind, these, and its moves."""
    graph, text = program.graph, program.executable.as_text()
    counts = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    counted = executables.num_flops(program.executable)
    # The compiler of a GPU that is only described counts nothing.
    is_counted = bool(counted) or graph.mesh.platform != "gpu"
    if not counts and " while(" not in text and is_counted:
        return counted, {}, (), ()
    module = Module.of(program.executable)
    counted += repeated_flops(module) if is_counted else flops_of(module)
    if not counts:
        return counted, {}, (), ()
    rows = collectives(module, graph)
    unused = "" if program.record is None else " ".join(program.record.unused_axes)
    return counted, dict(counts), exchanges(rows, graph), moves(module, graph, rows, unused)


def of_run(program: Program, above: int) -> tuple[tuple[Collective, ...], tuple[Move, ...]]:
    """Returns the collectives of a program and its moves of more than `above` bytes, with the lines of its run."""
    facts = program.facts
    return table(facts.exchanges, program.graph), listed(facts.moves, program.graph, above)
