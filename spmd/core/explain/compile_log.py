"""The line of the compile log for a program, from XLA's analyses of it."""

import dataclasses
import re
from collections import Counter
from typing import Any

from ..base import counters
from ..base.config import config
from ..hlo.costs import repeated_flops
from ..hlo.gpu_kernels import flops_of
from ..hlo.hlo import Module
from ..hlo.hlo_collectives import KINDS, collectives, lines_of
from ..hlo.program import Program
from ..hlo.traffic import exchanges, table
from ..hlo.unrequested_moves import listed, moves
from ..ir.graph import Graph
from ..ir.source import Line

Notes = tuple[tuple[str, str], ...]
_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(KINDS)})(-start)?\(")


def record(
    program: Program, graph: Graph, name: str, cause: str, line: Line, seconds: float, miscompiles: Notes = ()
) -> counters.CompileRecord:
    """Returns a program's line of the compile log."""
    notes, graph = graph.notes, graph.recorded or graph
    memory = program.executable.memory_analysis()
    text = program.executable.as_text()
    counts = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    counted = num_flops(program.executable)
    # The compiler of a GPU that is only described counts nothing.
    is_counted = bool(counted) or graph.mesh.platform != "gpu"
    module = Module(text) if counts or " while(" in text or not is_counted else None
    counted += 0 if module is None else repeated_flops(module) if is_counted else flops_of(module)
    if counts and module is not None:
        found = collectives(module, graph)
        unused = " ".join(words for name, words in notes if name == "unused axis")
        program.exchanges, program.moves = exchanges(found, graph), moves(module, graph, found, unused)
    return counters.CompileRecord(
        **_of_run(program, graph, name, cause, line),
        seconds=seconds,
        nodes=len(program.entries),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temp_bytes=getattr(memory, "temp_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        flops=counted,
        collectives=dict(counts),
        passes=(*notes, *miscompiles),
    )


def _of_run(program: Program, graph: Graph, name: str, cause: str, line: Line) -> dict[str, Any]:
    """Returns the fields that belong to the run that needs a program."""
    codes = {place.code: None for place in (*program.lines, line) if place.code is not None}
    return {
        "name": name, "cause": cause, "line": str(line), "traffic": table(program.exchanges, graph),
        "moves": listed(program.moves, graph, config.moves_above),
        "loops": tuple((iterations, period) for _, iterations, period in program.loops),
        "functions": tuple(map(counters.place_of_code, codes)),
    }  # fmt: skip


def taken(program: Program, graph: Graph, name: str, cause: str, line: Line) -> None:
    """Assigns a program that was compiled for a plan, or by an earlier process, to this graph: sets its source lines
    and adds its line to the compile log."""
    assert program.record is not None, "it was compiled"
    graph = graph.recorded or graph
    program.name, program.line, program.is_planned = name, line, False
    program.lines = lines_of(graph.nodes)
    program.record = dataclasses.replace(program.record, **_of_run(program, graph, name, cause, line))
    counters.record_compile(program.record)


def num_flops(executable: object) -> float:
    """XLA's own count of floating-point operations per device, the body of a loop counted once; 0 if it gives none."""
    costs = executable.cost_analysis() or {}  # type: ignore[attr-defined]  # jax has two classes for it
    costs = costs[0] if isinstance(costs, list) else costs
    return float(costs.get("flops", 0.0))
