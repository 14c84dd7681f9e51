"""The stack groups of a program: inputs and results that are rows of one stack, and the stacks that it may overwrite.

Not here: the search for inputs that belong together (`passes`), the stacks at a run (`run.executables`).
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from ..graph.graph import Graph
from ..graph.store import StackGroup, full_stores

# Adds the stack groups to a graph, and its loops if it may be scanned.
Form = Callable[[Graph, bool], Graph]


def none(graph: Graph, may_scan: bool = True) -> Graph:
    """Returns the graph as it is: only inputs that are in a store already are rows of a stack."""
    return graph


def formed(graph: Graph, form: Form, *, may_scan: bool = True) -> tuple[Graph, list[int], tuple[StackGroup, ...]]:
    """Returns the graph with its stack groups; the places of the inputs that `form` leaves alone, and the groups among
    these that are all the rows of a store."""
    found = form(graph, may_scan)
    taken = {place for group in found.stack_groups for place in group}
    single = [place for place in range(len(graph.inputs)) if place not in taken]
    stores = full_stores(graph.inputs, single)
    if stores or found.stack_groups or found.stacked:
        found = _complete(dataclasses.replace(found, stack_groups=(*found.stack_groups, *stores)))
    return found, single, stores


def _complete(graph: Graph) -> Graph:
    """Returns the graph, each stack group donated as a whole or not at all: to the stack of the values that replace its
    rows.

    A row that is not written over comes out as it went in. The stacked results are in the order of the groups whose
    memory they take, as jax pairs them in order. A result that takes the memory of one input is in no stack.
    """
    donated = list(graph.donated)
    paired: list[StackGroup] = []
    for group in graph.stack_groups:
        kinds = {(graph.inputs[i].meta.struct, graph.shardings[i]) for i in group}
        assert len(kinds) == 1, "rows have one meta and one sharding"
        returned = _returned(graph, group) if any(donated[i] for i in group) else None
        if returned is None:
            for i in group:
                donated[i] = False
        else:
            paired.append(returned)
    in_groups = {i for group in graph.stack_groups for i in group}
    alone = {graph.onto[i] for i, is_given in enumerate(donated) if is_given and i not in in_groups}
    taken = alone.union(place for places in paired for place in places)
    others = [places for places in graph.stacked if taken.isdisjoint(places) and _is_even(graph, places)]
    stacked = (*paired, *others)
    _keep_unusable(graph, donated, alone.union(place for places in stacked for place in places))
    return dataclasses.replace(graph, donated=tuple(donated), stacked=stacked)


def _keep_unusable(graph: Graph, donated: list[bool], taken: set[int | None]) -> None:
    """Donates an input that no result is written over only if a result of its kind is left that is in no stack."""
    left = Counter(
        (root.meta.struct, shardings)
        for index, (root, shardings) in enumerate(zip(graph.roots, graph.pinned, strict=True))
        if index not in taken
    )
    in_groups = {i for group in graph.stack_groups for i in group}
    for i, is_given in enumerate(donated):
        if is_given and graph.onto[i] is None and i not in in_groups:
            kind = graph.inputs[i].meta.struct, graph.shardings[i]
            donated[i] = left[kind] > 0
            left[kind] -= 1


def _returned(graph: Graph, group: StackGroup) -> StackGroup | None:
    """Returns the stack that takes a group's memory: for each row the place among the roots of its replacement, or the
    row itself; None if a donated row has no replacement."""
    found = []
    for i in group:
        place = graph.onto[i] if graph.donated[i] else ~i
        if place is None:
            return None
        found.append(place)
    return tuple(found)


def _is_even(graph: Graph, places: Sequence[int]) -> bool:
    """True if roots can be one stack: equal metas and equal requested shardings."""
    first, sharding = graph.roots[places[0]].meta, graph.pinned[places[0]]
    return sharding is not None and all(graph.roots[i].meta is first and graph.pinned[i] is sharding for i in places)


def summary(graph: Graph) -> str:
    """Describes the stack groups of a program's inputs, for the compile log."""
    rows = sum(map(len, graph.stack_groups))
    return f"; {rows} of {len(graph.inputs)} inputs are rows of {len(graph.stack_groups)} stores" if rows else ""
