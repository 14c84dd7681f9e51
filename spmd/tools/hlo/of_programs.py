"""Reads for the compile log from a program's text: operations in loops, collectives, unrequested moves."""

import re
from collections import Counter
from typing import Any

from ...core import config
from ...core.extend import Graph, Module, Program, executables
from .costs import repeated_flops
from .gpu_kernels import flops_of
from .hlo_collectives import KINDS, collectives
from .traffic import exchanges, table
from .unrequested_moves import listed, moves

_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(KINDS)})(-start)?\(")


def of_program(program: Program, graph: Graph) -> dict[str, Any]:
    notes, graph = graph.notes, graph.recorded or graph
    text = program.executable.as_text()
    counts = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    counted = executables.num_flops(program.executable)
    # The compiler of a GPU that is only described counts nothing.
    is_counted = bool(counted) or graph.mesh.platform != "gpu"
    module = Module.of(program.executable) if counts or " while(" in text or not is_counted else None
    counted += 0 if module is None else repeated_flops(module) if is_counted else flops_of(module)
    if counts and module is not None:
        found = collectives(module, graph)
        unused = " ".join(words for name, words in notes if name == "unused axis")
        program.exchanges, program.moves = exchanges(found, graph), moves(module, graph, found, unused)
    return {"flops": counted, "collectives": dict(counts)}


def of_run(program: Program, graph: Graph) -> dict[str, Any]:
    return {
        "traffic": table(program.exchanges, graph),
        "moves": listed(program.moves, graph, config.moves_above),
    }
