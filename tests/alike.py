"""A rule for tests: which leaves and results of a graph are the rows of one stack (see `engine.launch.form`)."""

import dataclasses
from collections import defaultdict

from spmd.core.engine import launch
from spmd.core.ir.graph import Graph, origin

# Where the library finds its own rule, for which tests put another.
WHERE = (launch, "form")


def alike(graph: Graph, may_roll: bool = True, *, least: int = 2) -> Graph:
    """A family of all leaves that look and lie alike and are overwritten by results of like ops; the same of results
    that are written over nothing."""
    families, stacked = defaultdict(list), defaultdict(list)
    for i, leaf in enumerate(graph.leaves):
        if leaf.meta.numel >= least:
            root = None if graph.onto[i] is None else origin(graph.roots[graph.onto[i]])
            families[leaf.meta, graph.lies[i], None if root is None else root.entry.name].append(i)
    for i, root in enumerate(graph.roots):
        if i not in graph.onto and graph.pinned[i] is not None:
            stacked[root.meta, graph.pinned[i]].append(i)

    def several(groups: dict) -> tuple:
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    return dataclasses.replace(graph, families=several(families), stacked=several(stacked))
