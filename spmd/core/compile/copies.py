"""Whether a rolled program copies its stacks: XLA's CPU compiler at times does, which takes more than unrolled layers."""

import math

from ..ir.graph import Graph
from .hlo import Computation, Module, arrays
from .options import platform_of
from .program import Program

_FILLS = ("broadcast", "constant")


def costs_more(program: Program, graph: Graph) -> bool:
    """Whether a program over CPU devices copies more of its loops' stacks than one row of each family of weights."""
    if not graph.loops or platform_of(graph) != "cpu":
        return False
    rows = {loop.turns + extra for loop in graph.loops for extra in (0, 1)}
    module = Module(program.executable.as_text())
    outer = [each for each in module.computations.values() if each.count and not each.is_inner]
    spare = 0
    for family in graph.families:
        leaf, lies = graph.leaves[family[0]], graph.lies[family[0]]
        spare += math.prod(lies.shard_shape(leaf.meta.shape)) * leaf.meta.struct.dtype.itemsize
    return sum(_copied(each, rows) for each in outer) > spare


def _copied(computation: Computation, rows: set[int]) -> int:
    """The bytes of the stacks that a computation copies; not those that it fills anew."""
    by_name = {line.name: line for line in computation.lines}
    copied = 0
    for line in computation.lines:
        if line.opcode != "copy" and not (line.opcode == "fusion" and line.name.startswith("wrapped_copy")):
            continue
        made_by = by_name.get(line.operands[0])
        is_fill = made_by is not None and any(word in made_by.name for word in _FILLS)
        for _, dims, size in arrays(line.shape):
            if not is_fill and len(dims) > 1 and dims[0] in rows:
                copied += size
    return copied
