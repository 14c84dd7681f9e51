"""Has a graph compiled, and hands a program to PJRT."""

import weakref
import zlib

import jax
import numpy as np

from .. import metrics
from ..compile import cache, failing
from ..compile.lower import pack_numbers
from ..compile.program import Program
from ..ir.graph import Graph, Leaf
from ..ir.source import Line
from ..lazy.cell import unlocked
from ..pjrt import agreement, processes, runs, transfer


def compile_unlocked(graph: Graph, name: str, line: Line, why_not: str = "") -> None:
    """Has the cache compile a graph that it does not have, while other threads go on recording: see `unlocked`."""
    with unlocked():
        cache.program_for(graph, name, line, why_not)


def run(program: Program, graph: Graph) -> list[Leaf]:
    """Hands a program to PJRT, which runs it asynchronously; returns a leaf per root.

    A program that calls Python is waited for: what that raises must come before its inputs are given up. Raises
    `torch.OutOfMemoryError` for a program that cannot fit, before it runs. When a run fails, donated buffers may be
    gone; their leaves then say so at the next use.
    """
    started = metrics.now()
    failing.check_memory(program)
    floats, integers = pack_numbers(graph.nodes)
    vectors = (np.array(floats, np.float64), np.array(integers, np.int64))
    if processes.several():
        numbers = zlib.crc32(b"".join(map(bytes, vectors))).to_bytes(4, "little")
        agreement.note(f"a run, its numbers {numbers.hex()},", program.fingerprint + numbers, program.line)
    buffers = [leaf.placed()[0] for leaf in graph.leaves]
    for i, lies in program.foreign:
        buffers[i] = transfer.respelled(buffers[i], lies)
    try:
        with jax.enable_x64(True):
            made = program.executable(*buffers, *vectors)
        if program.calls_host:
            jax.block_until_ready(made)
    except jax.errors.JaxRuntimeError as error:
        raise failing.explain(program, error) from error
    made = list(made)
    for i in program.respelled:
        made[i] = transfer.respelled(made[i], program.results[i].jax)
    ref = weakref.ref(program)
    leaves = [
        Leaf(root.meta, buffer=buffer, sharding=sharding, maker=ref)
        for root, buffer, sharding in zip(graph.roots, made, program.results, strict=True)
    ]
    runs.note_run(made[program.smallest], ref)
    metrics.add_time("dispatch", metrics.now() - started)
    metrics.add("runs")
    return leaves
