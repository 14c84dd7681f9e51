"""Which values of a graph stand beside each other, one for each layer: the weights of a kind, moments, gradients.

A loop says so of what it reads and makes in its turns; a list op hands it on, from operands to results and back.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from ..ir.graph import Graph, Node, value_name
from ..ir.loops import Loop

_Place = tuple[int, int]  # a column, a row of it


def leaf_columns(graph: Graph, loops: Sequence[Loop]) -> list[tuple[int, ...]]:
    """The inputs of a graph (by index) that are alike and belong together, each column row by row."""
    index = {leaf: i for i, leaf in enumerate(graph.leaves)}
    columns: defaultdict[int, dict[int, int | None]] = defaultdict(dict)
    for name, (column, row) in _places(graph, loops).items():
        columns[column][row] = index.get(name)
    found = []
    for rows in columns.values():
        places = [place for _, place in sorted(rows.items()) if place is not None]
        alike = {(graph.leaves[i].meta, graph.lies[i], graph.donated[i]) for i in places}
        if len(places) == len(rows) > 1 and len(alike) == 1:
            found.append(tuple(places))
    return found


def _places(graph: Graph, loops: Sequence[Loop]) -> dict[Any, _Place]:
    """Where each value that has a column stands."""
    found: dict[Any, _Place] = {}
    count = 0

    def add(names: dict[int, Any]) -> None:
        nonlocal count
        found.update({name: (count, row) for row, name in names.items()})
        count += 1

    for loop in loops:
        for values in loop.rows:
            names = list(map(value_name, values))
            if found.keys().isdisjoint(names) and len(set(names)) == len(names):
                add({loop.row(turn): name for turn, name in enumerate(names)})
        for result in loop.kept:
            add(dict(enumerate(loop.names(result))))
    lists = [node for node in graph.nodes if node.entry.lowering.elements]
    before = -1
    while before < count:
        before = count
        for node in (*lists, *reversed(lists)):
            for names in _aligned(node, found):
                add(names)
    return found


def _aligned(node: Node, known: dict[Any, _Place]) -> Iterator[dict[int, Any]]:
    """The columns among the operands and results of a list op that follow from those that are known."""
    groups: defaultdict[Hashable, dict[int, list[Any]]] = defaultdict(dict)
    several = len(node.entry.metas) > 1
    for i, part in enumerate(node.entry.lowering.elements):
        names = [*(value_name(node.operands[place]) for place in part.operands), (node, i) if several else node]
        first = next(((k, known[name]) for k, name in enumerate(names) if name in known), None)
        if first is not None:
            k, (column, row) = first
            groups[part.entry, k, column][row] = names
    for rows in groups.values():
        for names in zip(*rows.values(), strict=True):
            if len(set(names)) == len(names) > 1 and known.keys().isdisjoint(names):
                yield dict(zip(rows, names, strict=True))
