"""Has a graph compiled, and hands a program to PJRT."""

import weakref
import zlib

import jax
import numpy as np

from .. import in_flight, metrics
from ..compile import cache, failing, families
from ..compile.numbers import pack_numbers
from ..compile.program import Program
from ..ir.graph import Graph, Leaf
from ..ir.source import Line
from ..lazy.cell import unlocked
from ..passes import roll
from ..pjrt import agreement, processes, runs, transfer
from . import stacks

# Finds the loops of a graph, and the leaves and results that are to be rows of stacks.
form: families.Form = roll.rolled


def formed(graph: Graph, *, may_roll: bool = True) -> Graph:
    """The graph as it is compiled."""
    return families.formed(graph, form, may_roll=may_roll)[0]


def program_for(graph: Graph, name: str, line: Line, why_not: str = "") -> Program:
    """The compiled program of a graph. why_not: see `cache.program_for`."""
    return cache.program_for(graph, name, line, form, why_not)


def planned_for(graph: Graph, line: Line) -> Program:
    """The program of a graph that no run needs yet: see `cache.planned_for`."""
    return cache.planned_for(graph, line, form)


def compile_unlocked(graph: Graph, name: str, line: Line, why_not: str = "") -> None:
    """Has the cache compile a graph that it does not have, while other threads go on recording: see `unlocked`."""
    with unlocked():
        program_for(graph, name, line, why_not)


def run(program: Program, graph: Graph) -> list[Leaf]:
    """Hands a program to PJRT, which runs it asynchronously; returns a leaf per root.

    A program that calls Python is waited for: what that raises must come before its inputs are given up. Raises
    `torch.OutOfMemoryError` for a program that cannot fit, before it runs. When a run fails, donated buffers may be
    gone; their leaves then say so at the next use.
    """
    started = metrics.now()
    failing.check_memory(program, graph)
    floats, integers = pack_numbers(graph.nodes)
    vectors = (np.array(floats, np.float64), np.array(integers, np.int64))
    if processes.several():
        numbers = zlib.crc32(b"".join(map(bytes, vectors))).to_bytes(4, "little")
        agreement.note(f"a run, its numbers {numbers.hex()},", program.fingerprint + numbers, program.line)
    try:
        buffers = stacks.arguments(program, graph)
        for i, lies in program.foreign:
            buffers[i] = transfer.respelled(buffers[i], lies)
        in_flight.make_room(len(graph.mesh.device_ids))
        with jax.enable_x64(True):
            made = program.executable(*buffers, *vectors)
        if program.calls_host:
            jax.block_until_ready(made)
    except jax.errors.JaxRuntimeError as error:
        raise failing.about(graph, program, failing.explain(program, error)) from error
    made = list(made)
    for i, lies in program.respelled:
        made[i] = transfer.respelled(made[i], lies)
    ref = weakref.ref(program)
    leaves = stacks.given(program, graph, made, ref)
    runs.note_run(made[program.smallest], ref)
    metrics.add_time("dispatch", metrics.now() - started)
    metrics.add("runs")
    return leaves
