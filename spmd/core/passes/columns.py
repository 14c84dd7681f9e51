"""Which values of a graph stand beside each other, one for each layer: the weights of a kind, moments, gradients.

A loop says so of what it reads and makes in its turns, one that the user wrote (`spmd.scan_layers`) as well; a list op
hands it on, from operands to results and back.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from ..ir.graph import Graph, Node, value_name
from ..ir.loops import Loop
from ..ir.store import Family

_Place = tuple[int, int]  # a column, a row of it


class Columns(NamedTuple):
    """Leaves and roots of a graph, by their places in it, that are alike and belong together, row by row."""

    leaves: list[Family]
    roots: list[Family]


def columns_of(graph: Graph, loops: Sequence[Loop]) -> Columns:
    """What stands beside each other among the leaves and among the roots."""
    leaves = {leaf: i for i, leaf in enumerate(graph.leaves)}
    roots = {value_name(root): i for i, root in enumerate(graph.roots)}
    columns: defaultdict[int, dict[int, Any]] = defaultdict(dict)
    for name, (column, row) in _places(graph, loops).items():
        columns[column][row] = name
    named = [[name for _, name in sorted(rows.items())] for rows in columns.values()]

    def within(places: dict[Any, int], what: Callable[[int], Hashable]) -> list[Family]:
        found = [tuple([places[name] for name in names]) for names in named if all(name in places for name in names)]
        return [family for family in found if len(family) > 1 and len(set(map(what, family))) == 1]

    return Columns(
        within(leaves, lambda i: (graph.leaves[i].meta, graph.lies[i])),
        within(roots, lambda i: (graph.roots[i].meta, graph.pinned[i])),
    )


def _places(graph: Graph, loops: Sequence[Loop]) -> dict[Any, _Place]:
    """Where each value that has a column stands."""
    found: dict[Any, _Place] = {}
    count = 0

    def add(names: dict[int, Any]) -> None:
        nonlocal count
        found.update({name: (count, row) for row, name in names.items()})
        count += 1

    def add_new(names: dict[int, Any]) -> None:
        if found.keys().isdisjoint(names.values()) and len(set(names.values())) == len(names):
            add(names)

    for node in graph.nodes:
        operands, results = node.entry.lowering.columns
        for run in operands:
            add_new({row: value_name(node.operands[place]) for row, place in enumerate(run)})
        for run in results:
            add({row: (node, place) for row, place in enumerate(run)})
    for loop in loops:
        for values in loop.rows:
            add_new({loop.row(turn): value_name(value) for turn, value in enumerate(values)})
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
    for part in node.entry.lowering.elements:
        names = [value_name(node.operands[place]) for place in part.operands]
        names += [(node, result) if several else node for result in part.results]
        first = next(((k, known[name]) for k, name in enumerate(names) if name in known), None)
        if first is not None:
            k, (known_column, row) = first
            groups[part.entry, k, known_column][row] = names
    for rows in groups.values():
        for column in zip(*rows.values(), strict=True):
            if len(set(column)) == len(column) > 1 and known.keys().isdisjoint(column):
                yield dict(zip(rows, column, strict=True))
