"""Which inputs and results of a program are rows of one stack, and which of these stacks it may overwrite.

Not here: who finds leaves that belong together (`passes`), the stacks at a run (`engine.stacks`).
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

from ..ir.graph import Graph
from ..ir.store import Family, whole_stores

# A graph with its families, and with its loops where it may be rolled.
Form = Callable[[Graph, bool], Graph]


def none(graph: Graph, may_roll: bool = True) -> Graph:
    """The graph as it is: what no store has already is no row of a stack."""
    return graph


def formed(graph: Graph, form: Form, *, may_roll: bool = True) -> tuple[Graph, list[int], tuple[Family, ...]]:
    """The graph with its families; the places of the leaves that `form` leaves alone, and which of these are taken
    together because they are all the rows of a store."""
    found = form(graph, may_roll)
    taken = {place for family in found.families for place in family}
    single = [place for place in range(len(graph.leaves)) if place not in taken]
    stores = whole_stores(graph.leaves, single)
    if stores or found.families or found.stacked:
        found = _complete(dataclasses.replace(found, families=(*found.families, *stores)))
    return found, single, stores


def _complete(graph: Graph) -> Graph:
    """The graph, each family donated as a whole or not at all: to the stack of the values that its rows get.

    A row that nothing is written over comes out as it went in. What is stacked stands in the order of the families
    whose memory it takes, which is how jax pairs them. A result that takes the memory of one leaf is in no stack.
    """
    donated = list(graph.donated)
    paired: list[Family] = []
    for family in graph.families:
        kinds = {(graph.leaves[i].meta.struct, graph.lies[i]) for i in family}
        assert len(kinds) == 1, "rows look and lie alike"
        returned = _returned(graph, family) if any(donated[i] for i in family) else None
        if returned is None:
            for i in family:
                donated[i] = False
        else:
            paired.append(returned)
    in_families = {i for family in graph.families for i in family}
    alone = {graph.onto[i] for i, is_given in enumerate(donated) if is_given and i not in in_families}
    taken = alone.union(place for places in paired for place in places)
    others = [places for places in graph.stacked if taken.isdisjoint(places) and _is_even(graph, places)]
    stacked = (*paired, *others)
    _keep_unusable(graph, donated, alone.union(place for places in stacked for place in places))
    return dataclasses.replace(graph, donated=tuple(donated), stacked=stacked)


def _keep_unusable(graph: Graph, donated: list[bool], taken: set[int | None]) -> None:
    """Donates a leaf that is written over by nothing only where a result of its kind is left that is in no stack."""
    left = Counter(
        (root.meta.struct, lies)
        for place, (root, lies) in enumerate(zip(graph.roots, graph.pinned, strict=True))
        if place not in taken
    )
    in_families = {i for family in graph.families for i in family}
    for i, is_given in enumerate(donated):
        if is_given and graph.onto[i] is None and i not in in_families:
            kind = graph.leaves[i].meta.struct, graph.lies[i]
            donated[i] = left[kind] > 0
            left[kind] -= 1


def _returned(graph: Graph, family: Family) -> Family | None:
    """The stack that takes a family's memory: what is written over each row, by its place in the roots, or itself."""
    found = []
    for i in family:
        place = graph.onto[i] if graph.donated[i] else ~i
        if place is None:
            return None
        found.append(place)
    return tuple(found)


def _is_even(graph: Graph, places: Sequence[int]) -> bool:
    """Whether roots can be one stack: they look alike, and must lie alike."""
    first, lies = graph.roots[places[0]].meta, graph.pinned[places[0]]
    return lies is not None and all(graph.roots[i].meta is first and graph.pinned[i] is lies for i in places)


def told(graph: Graph) -> str:
    """For the ledger, what became of the inputs of a program."""
    rows = sum(map(len, graph.families))
    return f"; {rows} of {len(graph.leaves)} inputs are rows of {len(graph.families)} stores" if rows else ""
