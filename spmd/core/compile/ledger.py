"""A program's line of the ledger, from what XLA says of it."""

import re
from collections import Counter

from .. import metrics
from ..ir.source import Line
from .program import Program

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(COLLECTIVES)})(-start)?\(")


def record(program: Program, name: str, cause: str, line: Line, seconds: float) -> metrics.CompileRecord:
    """A program's line of the ledger."""
    memory = program.executable.memory_analysis()
    costs = program.executable.cost_analysis() or {}
    costs = costs[0] if isinstance(costs, list) else costs
    text = program.executable.as_text()
    collectives = Counter(match[1] for match in _COLLECTIVE.finditer(text))
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
        flops=float(costs.get("flops", 0.0)),
        collectives=dict(collectives),
    )
