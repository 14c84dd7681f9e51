"""Equal layers of a graph become loops of its program, their weights and state the rows of stacks."""

import dataclasses

from ..config import config
from ..ir.graph import Graph
from ..ir.store import Family
from .columns import columns_of
from .repeats import find_loops
from .turns import is_state


def rolled(graph: Graph) -> Graph:
    """The graph with its loops, where `config.roll_layers` allows them."""
    if config.roll_layers != "always":
        return graph
    loops = find_loops(graph.nodes, graph.roots)
    if not loops:
        return graph
    columns = columns_of(graph, loops)
    families = tuple(family for family in columns.leaves if _stays(graph, family))
    return dataclasses.replace(
        graph,
        loops=loops,
        families=families,
        stacked=tuple(columns.roots),
        columns=[family for family in columns.leaves if family not in families],
    )


def _stays(graph: Graph, family: Family) -> bool:
    """Whether leaves are there at the next run, too, or what is written over them: then they are worth a store."""
    return any(graph.donated[i] for i in family) or all(is_state(graph.leaves[i]) for i in family)
