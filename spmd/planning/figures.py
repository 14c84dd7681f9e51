"""The figures of one program, read from what the compiler made."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..core import metrics
from ..core.compile.compiler import compile_for
from ..core.compile.cycles import cycles
from ..core.compile.hlo import Module
from ..core.ir.graph import Graph
from ..core.sharding.topology import Target


@dataclass(frozen=True, slots=True)
class Part:
    arguments: dict[str, int]
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temporary_bytes: int
    peak_bytes: int
    flops: float
    cycles: int
    cycles_once: int
    compile_seconds: float


def part_of(graph: Graph, roles: dict[Any, str], target: Target) -> Part:
    started = metrics.now()
    compiled = compile_for(graph)
    seconds = metrics.now() - started
    memory = compiled.memory_analysis()
    costs = compiled.cost_analysis() or {}
    sizes: Counter[str] = Counter()
    for leaf, lies in zip(graph.leaves, graph.lies, strict=True):
        sizes[roles[leaf]] += math.prod(lies.shard_shape(leaf.meta.shape)) * leaf.meta.struct.dtype.itemsize
    module = Module(compiled.as_text())
    all_turns, once = cycles(module)
    return Part(
        dict(sizes),
        memory.argument_size_in_bytes,
        memory.output_size_in_bytes,
        memory.alias_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.peak_memory_in_bytes,
        float(costs.get("flops", 0)),
        all_turns,
        once,
        seconds,
    )
