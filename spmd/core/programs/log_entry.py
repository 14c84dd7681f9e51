"""The line of the compile log for a program: what XLA says of its memory, and what readers find in
its text."""

import dataclasses
import re
import weakref
from functools import partial
from operator import itemgetter
from typing import Any

from ..base import compile_log
from ..base.compile_record import CompileRecord, TextFacts
from ..base.config import config
from ..graph.graph import Graph
from ..graph.source import Line
from .program import PROGRAM_READERS, Program, without_data

# In a cause: what stands behind the first statement, and the lines of the user.
_REST = re.compile(r"; .*| at \S+:\d+ in .*", re.DOTALL)
Notes = tuple[tuple[str, str], ...]


class Reading:
    """Reads the text of a program for its line of the compile log, at the first read of the line or
    when the program leaves the cache: a line keeps no program alive."""

    __slots__ = ("_facts", "_min_move_bytes", "_program")

    def __init__(self, program: Program):
        self._program = weakref.ref(program)
        self._min_move_bytes = config.moves_above
        self._facts: TextFacts | None = None

    def __call__(self) -> TextFacts:
        """Returns the facts of the program's text, read once; empty ones if the program is gone."""
        program = self._program()
        if self._facts is None and program is not None:
            traffic, moves = PROGRAM_READERS.tables(program, self._min_move_bytes)
            self._facts = TextFacts(program.facts.flops, program.facts.collectives, traffic, moves)
        return self._facts or TextFacts()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return partial, (dataclasses.replace, self())  # the copy, called, returns these facts


def record(
    program: Program,
    graph: Graph,
    name: str,
    cause: str,
    line: Line,
    seconds: float,
    miscompiles: Notes = (),
) -> CompileRecord:
    """Returns a program's line of the compile log."""
    memory = program.executable.memory_analysis()
    return CompileRecord(
        **_run_fields(program, name, cause, line),
        seconds=seconds,
        nodes=len(program.entries),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temp_bytes=getattr(memory, "temp_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        passes=(*graph.notes, *miscompiles),
    )


def _run_fields(program: Program, name: str, cause: str, line: Line) -> dict[str, Any]:
    """Returns the fields that depend on the run that needs a program."""
    codes = {
        source_line.code: None
        for source_line in (*program.lines, line)
        if source_line.code is not None
    }
    return {
        "name": name,
        "cause": cause,
        "line": str(line),
        "loops": tuple(map(itemgetter(1, 2), program.loops)),
        "functions": tuple(map(compile_log.place_of_code, codes)),
        "read": Reading(program),
    }


def assign(program: Program, graph: Graph, name: str, cause: str, line: Line) -> None:
    """Assigns a program that was compiled for a plan, or by an earlier process, to this graph: sets
    its source lines and adds its line to the compile log."""
    assert program.record is not None, "it was compiled"
    graph = graph.recorded or graph
    program.name, program.line, program.is_planned = name, line, False
    program.graph = without_data(graph)
    program.record = dataclasses.replace(program.record, **_run_fields(program, name, cause, line))
    compile_log.add(program.record)


def short(cause: str) -> str:
    """Returns the first statement of a cause, without the user's line.

    >>> short(
    ...     "an input is now float32[5], before float32[8]; aten.mm reads it at a.py:3 in f: x @ w"
    ... )
    'an input is now float32[5], before float32[8]'
    """
    return _REST.sub("", cause)
