"""The figures of one program, from what the compiler made or said."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core import metrics
from ..core.compile.collectives import line_of, source_of
from ..core.compile.costs import cycles, kernels
from ..core.compile.hlo import Module
from ..core.compile.program import Program
from ..core.compile.traffic import table
from ..core.engine import launch
from ..core.ir.graph import Graph, Node
from ..core.ir.meta import Meta
from ..core.ir.source import Line, node_line
from ..core.metrics import Collective
from ..core.passes import roll
from ..core.sharding.value import DEVICE, Sharding
from .progress import stage


@dataclass(frozen=True, slots=True)
class Figures:
    """What one program takes, per device. verdict: the compiler's own words where it does not fit, else "".

    loops: (first op, iterations, ops) of each loop that equal layers became; no_loops: why there is none.
    """

    argument_bytes: int = 0
    result_bytes: int = 0
    in_place_bytes: int = 0
    temporary_bytes: int = 0
    peak_bytes: int = 0
    host_temporary_bytes: int = 0
    flops: float = 0.0
    cycles: int = 0
    cycles_once: int = 0
    compile_seconds: float = 0.0
    verdict: str = ""
    untold_loops: int = 0
    kernel_flops: int = 0
    untold_kernels: int = 0
    loops: tuple[tuple[int, int, int], ...] = ()
    no_loops: str = ""
    collectives: tuple[Collective, ...] = ()


def figures_of(graphs: Sequence[Graph], paths: Callable[[Node], str], line: Line) -> list[Figures]:
    """The figures of each graph over the devices that stand for its mesh, of the program that a run has. A program that
    several graphs have is read, and its seconds count, once."""
    read: dict[int, tuple[Program, Figures]] = {}
    found = []
    for graph in graphs:
        started = metrics.now()
        try:
            with stage(f"compiling {len(graph.nodes):,} ops"):
                program = launch.planned_for(graph, line)
        except torch.OutOfMemoryError as error:
            found.append(_does_not_fit(graph, str(error.__cause__), metrics.now() - started))
            continue
        is_new = id(program) not in read
        if is_new:
            read[id(program)] = program, _figures_of_program(program)
        figures = read[id(program)][1]
        found.append(
            replace(
                figures,
                compile_seconds=figures.compile_seconds if is_new else 0.0,
                loops=program.loops,
                no_loops=_why_no_loops(program, graph),
                collectives=table(program.exchanges, graph, paths),
            )
        )
    return found


def _figures_of_program(program: Program) -> Figures:
    """The figures that are the same wherever the step runs a program."""
    record = program.record
    assert record is not None, "it was compiled"
    memory = program.executable.memory_analysis()
    module = Module(program.executable.as_text())
    turns, once = cycles(module)
    kernel_flops, untold_kernels = kernels(module)
    return Figures(
        argument_bytes=record.argument_bytes,
        result_bytes=record.output_bytes,
        in_place_bytes=record.alias_bytes,
        temporary_bytes=record.temp_bytes,
        peak_bytes=_peak(memory, is_told=bool(once)),
        host_temporary_bytes=memory.host_temp_size_in_bytes,
        flops=record.flops,
        cycles=turns,
        cycles_once=once,
        compile_seconds=record.seconds,
        untold_loops=len(module.untold),
        kernel_flops=kernel_flops,
        untold_kernels=untold_kernels,
    )


def _why_no_loops(program: Program, graph: Graph) -> str:
    if program.loops:
        return ""
    return "XLA would copy the stacks of their weights" if program.is_unrolled else roll.why_not(graph)


def _peak(memory: Any, is_told: bool) -> int:
    """The most that a device holds at any time. is_told: whether the compiler has a figure of its own for that; the
    CPU's leaves the temporaries out.

    The TPU's counts what lies on the host, too (libtpu 0.0.42): of such a program it is no more than a bound, as all
    arguments, results and temporaries together are.
    """
    used = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    together = used + memory.temp_size_in_bytes
    if not is_told:
        return together
    on_host = memory.host_argument_size_in_bytes + memory.host_output_size_in_bytes + memory.host_temp_size_in_bytes
    return min(memory.peak_memory_in_bytes, together) if on_host else memory.peak_memory_in_bytes


_SIZES = re.compile(r"(\d+(?:\.\d+)?)([KMGT])\b")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def _does_not_fit(graph: Graph, text: str, seconds: float) -> Figures:
    """What is known where the compiler gave up: the inputs, and what it says that it needs."""
    verdict = text.partition("RESOURCE_EXHAUSTED:")[2].strip() or text
    sizes = [float(number) * _UNITS[unit] for number, unit in _SIZES.findall(verdict)]
    lying = zip(graph.leaves, graph.lies, strict=True)
    arguments = sum(shard_bytes(leaf, lies) for leaf, lies in lying if lies.memory == DEVICE)
    needed = int(sizes[0]) if sizes else 0
    return Figures(
        argument_bytes=arguments,
        temporary_bytes=needed,
        peak_bytes=arguments + needed,
        compile_seconds=seconds,
        verdict=verdict,
    )


def shard_bytes(value: Any, lies: Any) -> int:
    """The bytes of one device's piece."""
    return shard_bytes_of(value.meta, lies)


def shard_bytes_of(meta: Meta, lies: Sharding) -> int:
    """The same of any array like this."""
    return math.prod(lies.shard_shape(meta.shape)) * meta.struct.dtype.itemsize


def largest(graph: Graph, paths: Callable[[Node], str], count: int = 8) -> tuple[str, ...]:
    """The largest values of a graph, with the user's lines: split over the devices where an annotation says how, else
    whole."""
    sizes = [
        (meta.nbytes if node.entry.sharding is None else shard_bytes_of(meta, node.entry.sharding), node, meta)
        for node in graph.nodes
        for meta in node.entry.metas
    ]
    sizes.sort(key=lambda found: -found[0])
    times: Counter[str] = Counter()
    told: dict[str, int] = {}
    for size, node, meta in sizes:
        if len(told) >= count and size < min(told.values()):
            break
        text = _told(graph, node, meta, paths(node))
        if text in told or len(told) < count:
            told.setdefault(text, size)
            times[text] += 1
    return tuple(
        f"{size / 2**30:,.2f} GiB{f' x {times[text]}' if times[text] > 1 else ''}: {text}"
        for text, size in told.items()
    )


def _told(graph: Graph, node: Node, meta: Meta, path: str) -> str:
    """What a value is and who makes it."""
    sharding, line = node.entry.sharding, node_line(source_of(node))
    how = "whole, unless the compiler splits it"
    if sharding is not None:
        how = f"as {sharding.partition_spec(len(meta.shape))}"
    where = line if line.code is not None else line_of(node, graph.nodes)
    return f"{meta!r} ({how}) of {node.entry.name}{f' in {path}' if path else ''}, {where}"
