"""The stack groups of a graph, with a value per layer: the weights of a kind, moments, gradients.

The xs and ys of a loop are groups, those of a loop that the user wrote (`spmd.scan_layers`) as well; a list op relates
the groups of its operands and of its results.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..graph.graph import Graph, Node, TupleElement, Value, origin, value_name
from ..graph.loops import Candidate, Result
from ..graph.store import StackGroup

_Column = dict[int, Any]  # a stack group: by row, the name of a value
_Place = tuple[int, int]  # a stack group, a row of it


class Columns(NamedTuple):
    """The stack groups of a graph: places of inputs and of roots with equal metas and shardings, row by row.

    peeled: for each loop, the values from outside it that belong to the stacks of its ys (`Candidate.peeled`).
    """

    inputs: list[StackGroup]
    roots: list[StackGroup]
    peeled: list[dict[Result, dict[int, Value]]]


def columns_of(graph: Graph, loops: Sequence[Candidate]) -> Columns:
    """Returns the stack groups of a graph's inputs and roots."""
    inputs = {device_data: i for i, device_data in enumerate(graph.inputs)}
    roots = {value_name(root): i for i, root in enumerate(graph.roots)}
    found = _found(graph, loops)
    named = [[name for _, name in sorted(column.items())] for column in found]

    def within(places: dict[Any, int], what: Callable[[int], Hashable]) -> list[StackGroup]:
        all_there = [tuple([places[name] for name in names]) for names in named if places.keys() >= set(names)]
        return [group for group in all_there if len(group) > 1 and len(set(map(what, group))) == 1]

    return Columns(
        within(inputs, lambda i: (graph.inputs[i].meta, graph.shardings[i])),
        within(roots, lambda i: (graph.roots[i].meta, graph.pinned[i])),
        _peeled(graph, loops, found),
    )


def _found(graph: Graph, loops: Sequence[Candidate]) -> list[_Column]:
    """Returns every stack group of values."""
    kinds: dict[object, Hashable] = {
        device_data: (device_data.meta, sharding)
        for device_data, sharding in zip(graph.inputs, graph.shardings, strict=True)
    }
    columns: list[_Column] = []
    places: dict[object, _Place] = {}

    def add(names: _Column) -> None:
        places.update({name: (len(columns), row) for row, name in names.items()})
        columns.append(dict(names))

    def add_read(names: _Column) -> None:
        """Adds a group, or more rows to the group of some of them: the backward runs through all layers but the first,
        whose input needs no gradient."""
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
        operands, results = node.op.lowering.columns
        for run in operands:
            add_read({row: value_name(node.operands[place]) for row, place in enumerate(run)})
        for run in results:
            add({row: (node, place) for row, place in enumerate(run)})
    for loop in loops:
        for values in loop.xs:
            add_read({loop.row(iteration): value_name(value) for iteration, value in enumerate(values)})
        for result in loop.ys:
            add(dict(enumerate(loop.names(result))))
    lists = [node for node in graph.nodes if node.op.lowering.elements]
    before = -1
    while before < len(places):
        before = len(places)
        for node in (*lists, *reversed(lists)):
            for names in _aligned(node, places):
                add_read(names)
    return columns


def _peeled(
    graph: Graph, loops: Sequence[Candidate], columns: Sequence[_Column]
) -> list[dict[Result, dict[int, Value]]]:
    """Returns, for each loop, the values from outside it in the groups of its ys, where no row between is missing."""
    inside = {node for loop in loops for node in graph.nodes[loop.start : loop.stop]}
    by_first = {column[0]: column for column in columns if 0 in column}
    found: list[dict[Result, dict[int, Value]]] = []
    for loop in loops:
        found.append({})
        for result in loop.ys:
            column = by_first.get(loop.names(result)[0], {})
            more = {row: _value(name) for row, name in column.items() if not 0 <= row < loop.iterations}
            is_complete = len(column) == max(column, default=0) - min(column, default=0) + 1
            if more and is_complete and not any(origin(value) in inside for value in more.values()):
                found[-1][result] = more
    return found


def _value(name: Any) -> Value:
    """Returns the value with this name."""
    return TupleElement(*name) if type(name) is tuple else name


def _aligned(node: Node, known: Mapping[object, _Place]) -> Iterator[_Column]:
    """Yields the stack groups among the operands and results of a list op that follow from the known ones."""
    groups: defaultdict[Hashable, dict[int, list[Any]]] = defaultdict(dict)
    several = len(node.op.metas) > 1
    for part in node.op.lowering.elements:
        names = [value_name(node.operands[place]) for place in part.operands]
        names += [(node, result) if several else node for result in part.results]
        for k, name in enumerate(names):
            if name in known:
                place = known[name]
                groups[part.op, k, place[0]][place[1]] = names
    for rows in groups.values():
        for column in zip(*rows.values(), strict=True):
            if len(column) > 1 and not known.keys() >= set(column):
                yield dict(zip(rows, column, strict=True))
