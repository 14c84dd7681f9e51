"""A program's line of the ledger, from what XLA says of it."""

import re
from collections import Counter

from .. import metrics
from ..ir.graph import Graph
from ..ir.source import Line
from .collectives import KINDS
from .costs import repeated_flops
from .hlo import Module
from .program import Program
from .traffic import exchanges, table

_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(KINDS)})(-start)?\(")


def record(program: Program, graph: Graph, name: str, cause: str, line: Line, seconds: float) -> metrics.CompileRecord:
    """A program's line of the ledger."""
    memory = program.executable.memory_analysis()
    text = program.executable.as_text()
    counts = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    module = Module(text) if counts or " while(" in text else None
    program.exchanges = exchanges(module, graph) if counts and module is not None else ()
    return metrics.CompileRecord(
        name=name,
        cause=cause,
        line=str(line),
        seconds=seconds,
        nodes=len(program.entries),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temp_bytes=getattr(memory, "temp_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        flops=num_flops(program.executable) + (0 if module is None else repeated_flops(module)),
        collectives=dict(counts),
        traffic=table(program.exchanges, graph),
        loops=program.loops,
        functions=functions_of(program, line),
    )


def functions_of(program: Program, line: Line) -> tuple[str, ...]:
    """The user's functions that recorded a program's ops or needed it, each as "file:first line"."""
    codes = {place.code: None for place in (*program.lines, line) if place.code is not None}
    return tuple(metrics.place_of_code(code) for code in codes)


def num_flops(executable: object) -> float:
    """XLA's own count of floating-point operations per device, the body of a loop once; 0 where it gives none."""
    costs = executable.cost_analysis() or {}  # type: ignore[attr-defined]  # jax has two classes for it
    costs = costs[0] if isinstance(costs, list) else costs
    return float(costs.get("flops", 0.0))
