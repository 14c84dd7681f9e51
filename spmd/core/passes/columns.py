"""Which values of a graph stand beside each other, one for each layer: the weights of a kind, moments, gradients.

A loop says so of what it reads and makes in its turns, one that the user wrote (`spmd.scan_layers`) as well; a list op
hands it on, from operands to results and back.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..ir.graph import Graph, Node, Pick, Value, origin, value_name
from ..ir.loops import Loop, Result
from ..ir.store import Family

_Column = dict[int, Any]  # by row, the name of a value
_Place = tuple[int, int]  # a column, a row of it


class Columns(NamedTuple):
    """Leaves and roots of a graph, by their places in it, that are alike and belong together, row by row.

    beside: of each loop, what others make that stands with its results (`Loop.beside`).
    """

    leaves: list[Family]
    roots: list[Family]
    beside: list[dict[Result, dict[int, Value]]]


def columns_of(graph: Graph, loops: Sequence[Loop]) -> Columns:
    """What stands beside each other among the leaves and among the roots."""
    leaves = {leaf: i for i, leaf in enumerate(graph.leaves)}
    roots = {value_name(root): i for i, root in enumerate(graph.roots)}
    found = _found(graph, loops)
    named = [[name for _, name in sorted(column.items())] for column in found]

    def within(places: dict[Any, int], what: Callable[[int], Hashable]) -> list[Family]:
        all_there = [tuple([places[name] for name in names]) for names in named if places.keys() >= set(names)]
        return [family for family in all_there if len(family) > 1 and len(set(map(what, family))) == 1]

    return Columns(
        within(leaves, lambda i: (graph.leaves[i].meta, graph.lies[i])),
        within(roots, lambda i: (graph.roots[i].meta, graph.pinned[i])),
        _beside(graph, loops, found),
    )


def _found(graph: Graph, loops: Sequence[Loop]) -> list[_Column]:
    """Every column of values."""
    kinds: dict[Any, Hashable] = {leaf: (leaf.meta, lies) for leaf, lies in zip(graph.leaves, graph.lies, strict=True)}
    columns: list[_Column] = []
    places: dict[Any, _Place] = {}

    def add(names: _Column) -> None:
        places.update({name: (len(columns), row) for row, name in names.items()})
        columns.append(dict(names))

    def add_read(names: _Column) -> None:
        """As a column, or as more rows of the one that some of them stand in: the backward runs through all layers but
        the first, whose input needs no gradient."""
        if len(set(names.values())) < len(names):
            return
        known = {(places[name][0], places[name][1] - row) for row, name in names.items() if name in places}
        if not known:
            add(names)
        elif len(known) == 1:
            ((column, offset),) = known
            rows = columns[column]
            more = {row + offset: name for row, name in names.items() if name not in places}
            if (
                rows.keys().isdisjoint(more)
                and len({kinds.get(name) for name in (*rows.values(), *more.values())}) == 1
            ):
                rows.update(more)
                places.update({name: (column, row) for row, name in more.items()})

    for node in graph.nodes:
        operands, results = node.entry.lowering.columns
        for run in operands:
            add_read({row: value_name(node.operands[place]) for row, place in enumerate(run)})
        for run in results:
            add({row: (node, place) for row, place in enumerate(run)})
    for loop in loops:
        for values in loop.rows:
            add_read({loop.row(turn): value_name(value) for turn, value in enumerate(values)})
        for result in loop.kept:
            add(dict(enumerate(loop.names(result))))
    lists = [node for node in graph.nodes if node.entry.lowering.elements]
    before = -1
    while before < len(places):
        before = len(places)
        for node in (*lists, *reversed(lists)):
            for names in _aligned(node, places):
                add_read(names)
    return columns


def _beside(graph: Graph, loops: Sequence[Loop], columns: Sequence[_Column]) -> list[dict[Result, dict[int, Value]]]:
    """Of each loop, what others make that stands with its results, where no row between is missing."""
    inside = {node for loop in loops for node in graph.nodes[loop.start : loop.stop]}
    by_first = {column[0]: column for column in columns if 0 in column}
    found: list[dict[Result, dict[int, Value]]] = []
    for loop in loops:
        found.append({})
        for result in loop.kept:
            column = by_first.get(loop.names(result)[0], {})
            more = {row: _value(name) for row, name in column.items() if not 0 <= row < loop.turns}
            is_whole = len(column) == max(column, default=0) - min(column, default=0) + 1
            if more and is_whole and not any(origin(value) in inside for value in more.values()):
                found[-1][result] = more
    return found


def _value(name: Any) -> Value:
    """The value that is known by a name."""
    return Pick(*name) if type(name) is tuple else name


def _aligned(node: Node, known: Mapping[Any, _Place]) -> Iterator[_Column]:
    """The columns among the operands and results of a list op that follow from those that are known."""
    groups: defaultdict[Hashable, dict[int, list[Any]]] = defaultdict(dict)
    several = len(node.entry.metas) > 1
    for part in node.entry.lowering.elements:
        names = [value_name(node.operands[place]) for place in part.operands]
        names += [(node, result) if several else node for result in part.results]
        for k, name in enumerate(names):
            if name in known:
                place = known[name]
                groups[part.entry, k, place[0]][place[1]] = names
    for rows in groups.values():
        for column in zip(*rows.values(), strict=True):
            if len(column) > 1 and not known.keys() >= set(column):
                yield dict(zip(rows, column, strict=True))
