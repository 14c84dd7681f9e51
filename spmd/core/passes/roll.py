"""Equal layers of a graph become loops of its program, their weights and state the rows of stacks."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import metrics
from ..compile.options import platform_of
from ..config import config
from ..ir.graph import Graph, origin, value_name
from ..ir.loops import Loop
from ..ir.store import Family
from .columns import columns_of
from .repeats import find_loops
from .turns import is_state

# So many equal layers are rolled unasked: fewer compile as fast unrolled. TPU compilers take longer over each.
_ENOUGH = {"tpu": 4}
_ENOUGH_ELSEWHERE = 8
# Beside such, loops of fewer turns that spare so many ops: of the layers before and behind a frozen one.
_LARGE = 32


def rolled(graph: Graph, may_roll: bool = True) -> Graph:
    """The graph with its loops, where `config.roll_layers` allows them, and with the families of what they and the
    loops that the user wrote read."""
    started = metrics.now()
    try:
        return _formed(graph, _loops_of(graph) if may_roll and config.roll_layers != "never" else [])
    finally:
        metrics.add_time("roll", metrics.now() - started)


def num_lowered(graph: Graph) -> int:
    """How many ops of a graph are compiled: of a loop one turn."""
    return len(graph.nodes) - sum((loop.turns - 1) * loop.period for loop in rolled(graph).loops)


def why_not(graph: Graph) -> str:
    """The reason why a graph has no loops of equal layers, in words."""
    if config.roll_layers == "never":
        return "config.roll_layers is 'never'"
    found = find_loops(graph.nodes, graph.roots)
    if not found:
        return "no layers with the same ops and shapes were found"
    if not _loops_of(graph):
        most = max(loop.turns for loop in found)
        return f"{most} equal layers, and a loop is made from {_enough(graph)} on"
    return "the program would copy what they read into stacks, more than one row of each"


def _enough(graph: Graph) -> int:
    return _ENOUGH.get(platform_of(graph), _ENOUGH_ELSEWHERE)


def _loops_of(graph: Graph) -> list[Loop]:
    loops = find_loops(graph.nodes, graph.roots)
    if config.roll_layers == "auto":
        enough = _enough(graph)
        loops = [loop for loop in loops if loop.turns >= enough or (loop.turns - 1) * loop.period >= _LARGE]
        loops = loops if any(loop.turns >= enough for loop in loops) else []
    return loops


def _formed(graph: Graph, loops: Sequence[Loop]) -> Graph:
    columns = columns_of(graph, loops)
    families = tuple(family for family in columns.leaves if _stays(graph, family))
    if loops and config.roll_layers == "auto" and _is_dear(loops, graph, families):
        return _formed(graph, [])
    for loop, beside in zip(loops, columns.beside, strict=True):
        loop.beside = beside
    return dataclasses.replace(
        graph,
        loops=loops,
        families=families,
        stacked=tuple(columns.roots),
        columns=[family for family in columns.leaves if family not in families],
    )


def _is_dear(loops: Sequence[Loop], graph: Graph, families: Sequence[Family]) -> bool:
    """True where the program would copy more bytes into the stacks that its loops read than one row of each takes:
    values that no loop, list op or store has as rows. One row is that of a layer which differs, as T5's first does."""
    rows: set[Any] = {graph.leaves[i] for family in families for i in family}
    for loop in loops:
        rows.update(node for place in loop.early for node in loop.at(place))
        rows.update(name for result in loop.kept for name in loop.names(result))
        rows.update(value_name(initial) for _, initial in loop.carried)
    makers = {node for node in graph.nodes if node.entry.lowering.takes_rows and len(node.entry.metas) > 1}
    read = {tuple(map(value_name, values)): values for loop in loops for values in loop.rows}
    copied, one_row = 0, sum(graph.leaves[family[0]].meta.nbytes for family in families)
    for names, values in read.items():
        there = [name in rows or origin(value) in makers for name, value in zip(names, values, strict=True)]
        copied += sum(value.meta.nbytes for value, is_there in zip(values, there, strict=True) if not is_there)
        one_row += values[0].meta.nbytes if any(there) else 0
    return copied > one_row


def _stays(graph: Graph, family: Family) -> bool:
    """Whether leaves are there at the next run, too, or what is written over them: then they are worth a store."""
    return any(graph.donated[i] for i in family) or all(is_state(graph.leaves[i]) for i in family)
