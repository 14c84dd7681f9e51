"""Equal layers of a graph become loops of its program, with their weights and state as stacked parameters."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from ..base import counters
from ..base.config import config
from ..graph.graph import Graph, origin, value_name
from ..graph.loops import Candidate
from ..graph.store import StackGroup
from .found_loops import with_loops
from .hoisted import hoist
from .repeats import find_loops
from .stacked_parameters import columns_of
from .stretches import FEWEST_ITERATIONS

# The fewest equal layers that "auto" scans: fewer compile as fast unrolled. TPU compilers take longer over each.
_ENOUGH = {"tpu": 4}
_ENOUGH_ELSEWHERE = 8
# Next to such a loop, the fewest ops that a loop of fewer iterations spares: of the layers around a frozen one.
_LARGE = 32


def scan(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with its loops, where `config.scan_layers` allows them, and with the stack groups of their xs
    and of the xs of loops that the user wrote; and the loops, or the reason why there are none, in words."""
    started = counters.now()
    result, loops, words = _chosen(graph, _LARGE if may_scan else None)
    if loops:
        result, late = hoist(with_loops(result, loops))
        words = ", ".join(f"{loop.iterations} iterations of {loop.period} ops" for loop in loops) + late
    counters.add_time("roll", counters.now() - started)
    return result, words


def num_lowered(graph: Graph) -> int:
    """Returns the number of a graph's ops that are compiled: of a loop, those of one iteration."""
    return len(graph.nodes) - sum((loop.iterations - 1) * loop.period for loop in _chosen(graph)[1])


def why_not(graph: Graph) -> str:
    """Returns the reason why a graph has no loops of equal layers, in words."""
    return _chosen(graph)[2]


def _loops_of(graph: Graph, least: float) -> tuple[list[Candidate], str]:
    """Returns the loops that a program may have, and the reason why there are none."""
    if config.scan_layers == "never":
        return [], "config.scan_layers is 'never'"
    loops = find_loops(graph.nodes, graph.roots)
    if not loops:
        same = "of the same ops, shapes, shardings and scalar arguments"
        return [], f"no {FEWEST_ITERATIONS} layers {same} follow each other, and fewer are not a loop"
    if config.scan_layers == "auto":
        enough = _ENOUGH.get(graph.mesh.platform, _ENOUGH_ELSEWHERE)
        most = max(loop.iterations for loop in loops)
        if most < enough:
            return [], f"{most} equal layers, and a loop is made from {enough} on"
        loops = [loop for loop in loops if loop.iterations >= enough or (loop.iterations - 1) * loop.period >= least]
    return loops, ""


def _chosen(graph: Graph, least: float | None = _LARGE) -> tuple[Graph, list[Candidate], str]:
    """Returns the graph with its stack groups, the candidates that become loops, and why there are none.

    least: the fewest ops that a loop of few layers next to one of enough spares; None: there are to be no loops.
    """
    loops, reason = ([], "XLA would copy the stacks of their weights") if least is None else _loops_of(graph, least)
    if not loops and not any(any(node.op.lowering.columns) for node in graph.nodes):
        return graph, [], reason
    columns = columns_of(graph, loops)
    stack_groups = tuple(group for group in columns.inputs if _stays(graph, group))
    if loops and config.scan_layers == "auto" and _exceeds_budget(loops, graph, stack_groups):
        if least != math.inf:
            return _chosen(graph, math.inf)
        result, _, _ = _chosen(graph, None)
        return result, [], "the program would copy their operands into stacks, more than one row of each"
    for loop, peeled in zip(loops, columns.peeled, strict=True):
        loop.peeled = peeled
    result = dataclasses.replace(
        graph,
        stack_groups=stack_groups,
        stacked=tuple(columns.roots),
        columns=[group for group in columns.inputs if group not in stack_groups],
    )
    return result, loops, reason


def _exceeds_budget(loops: Sequence[Candidate], graph: Graph, stack_groups: Sequence[StackGroup]) -> bool:
    """True if the program would copy more bytes into the stacks of its loops' xs than one row of each takes.

    Copied are values that are rows of no loop, list op or store. One row is that of a layer which differs (T5's first).
    """
    rows: set[Any] = {graph.inputs[i] for group in stack_groups for i in group}
    for loop in loops:
        rows.update(node for place in loop.early for node in loop.at(place))
        rows.update(name for result in loop.ys for name in loop.names(result))
        rows.update(value_name(initial) for _, initial in loop.carry)
    makers = {node for node in graph.nodes if node.op.lowering.takes_rows and len(node.op.metas) > 1}
    read = {tuple(map(value_name, values)): values for loop in loops for values in loop.xs}
    copied, one_row = 0, sum(graph.inputs[group[0]].meta.nbytes for group in stack_groups)
    for names, values in read.items():
        there = [name in rows or origin(value) in makers for name, value in zip(names, values, strict=True)]
        copied += sum(value.meta.nbytes for value, is_there in zip(values, there, strict=True) if not is_there)
        one_row += values[0].meta.nbytes if any(there) else 0
    return copied > one_row


def _stays(graph: Graph, group: StackGroup) -> bool:
    """True if the inputs, or the values written over them, exist at the next run, too: then they are worth a store."""
    return any(graph.donated[i] for i in group) or all(graph.inputs[i].is_state for i in group)
