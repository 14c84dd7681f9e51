"""The line of the compile log for a program: what XLA says of its memory and operations, and what readers add."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from ..base import counters
from ..graph.graph import Graph
from ..graph.source import Line, lines_of
from .program import Program

# In a cause: what stands behind the first statement, and the lines of the user.
_REST = re.compile(r"; .*| at \S+:\d+ in .*", re.DOTALL)
Notes = tuple[tuple[str, str], ...]
Reader = Callable[[Program, Graph], dict[str, Any]]
# What packages read from an executable, as fields of its line (`counters.CompileRecord`): of the program once it is
# compiled; of a run, for the graph, as it was recorded, that needs the program.
of_program: list[Reader] = []
of_run: list[Reader] = []


def record(
    program: Program, graph: Graph, name: str, cause: str, line: Line, seconds: float, miscompiles: Notes = ()
) -> counters.CompileRecord:
    """Returns a program's line of the compile log."""
    memory = program.executable.memory_analysis()
    fields: dict[str, Any] = {}
    for read in of_program:
        fields |= read(program, graph)
    if "flops" not in fields:  # a reader that counts loops has XLA's count already
        fields["flops"] = num_flops(program.executable)
    return counters.CompileRecord(
        **fields,
        **_of_run(program, graph.recorded or graph, name, cause, line),
        seconds=seconds,
        nodes=len(program.entries),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temp_bytes=getattr(memory, "temp_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        passes=(*graph.notes, *miscompiles),
    )


def _of_run(program: Program, graph: Graph, name: str, cause: str, line: Line) -> dict[str, Any]:
    """Returns the fields that belong to the run that needs a program."""
    codes = {place.code: None for place in (*program.lines, line) if place.code is not None}
    fields: dict[str, Any] = {
        "name": name, "cause": cause, "line": str(line),
        "loops": tuple((iterations, period) for _, iterations, period in program.loops),
        "functions": tuple(map(counters.place_of_code, codes)),
    }  # fmt: skip
    for read in of_run:
        fields |= read(program, graph)
    return fields


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


def short(cause: str) -> str:
    """Returns the first statement of a cause, without the user's line.

    >>> short("an input is now float32[5], before float32[8]; aten.mm reads it at a.py:3 in step: x @ w")
    'an input is now float32[5], before float32[8]'
    """
    return _REST.sub("", cause)
