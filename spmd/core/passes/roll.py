"""Equal layers of a graph become loops of its program."""

import dataclasses

from ..config import config
from ..ir.graph import Graph
from .columns import leaf_columns
from .repeats import find_loops


def rolled(graph: Graph) -> Graph:
    """The graph with its loops, where `config.roll_layers` allows them."""
    if config.roll_layers != "always":
        return graph
    loops = find_loops(graph.nodes, graph.roots)
    return dataclasses.replace(graph, loops=loops, columns=leaf_columns(graph, loops)) if loops else graph
