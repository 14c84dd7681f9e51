"""A rule for tests: which inputs and results of a graph are the rows of one stack (see
`engine.executables.form`)."""

import dataclasses
from collections import defaultdict

from spmd.core.graph.graph import Graph, origin
from spmd.core.run import executables

# Where the library finds its own rule, for which tests put another.
WHERE = (executables, "form")


def ungrouped(graph: Graph, may_scan: bool = True) -> Graph:
    """Groups nothing: only inputs that are in a store already are rows of a stack."""
    return graph


def alike(graph: Graph, may_scan: bool = True, *, least: int = 2) -> Graph:
    """Groups the inputs of one meta and sharding that are overwritten by results of equal ops, and
    the results that overwrite nothing."""
    groups, stacked = defaultdict(list), defaultdict(list)
    for i, device_data in enumerate(graph.inputs):
        if device_data.meta.numel >= least:
            root = None if graph.onto[i] is None else origin(graph.roots[graph.onto[i]])
            groups[
                device_data.meta, graph.shardings[i], None if root is None else root.op.name
            ].append(i)
    for i, root in enumerate(graph.roots):
        if i not in graph.onto and graph.pinned[i] is not None:
            stacked[root.meta, graph.pinned[i]].append(i)

    def several(found: dict) -> tuple:
        return tuple(tuple(group) for group in found.values() if len(group) > 1)

    return dataclasses.replace(graph, stack_groups=several(groups), stacked=several(stacked))
