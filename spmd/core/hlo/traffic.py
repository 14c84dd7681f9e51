"""A program's collectives as a table with the user's lines (`hlo_collectives` finds them)."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ..base.counters import Collective
from ..ir.graph import Graph, Node
from ..ir.source import node_line
from .hlo_collectives import Exchange, Placed, lines_of, source_of

Exchanges = tuple[Exchange, ...]


def exchanges(found: Iterable[Placed], graph: Graph) -> Exchanges:
    """Returns a program's collectives by the recorded op (its place in the graph) that each came from, without lines:
    those belong to the run that recorded the ops, and the program may be reused by others."""

    def op(node: int | None) -> str:
        return "" if node is None else source_of(graph.nodes[node]).op.name

    return tuple(_merged((dataclasses.replace(one.row, op=op(one.node)), one.node) for one in found))


def table(found: Exchanges, graph: Graph, paths: Callable[[Node], str] = lambda node: "") -> tuple[Collective, ...]:
    """Returns the table of a program's collectives: equal ones are one row, those that move most come first.

    paths: returns the path of the module that an op belongs to, or "".
    """
    rows: list[Exchange] = []
    lines = lines_of(graph.nodes) if found else []
    for row, place in found:
        line = path = ""
        if place is not None:
            node = graph.nodes[place]
            own = node_line(source_of(node))
            line, path = str(own if own.code is not None else lines[place]), paths(node)
        rows.append((dataclasses.replace(row, line=line, path=path), None))
    return tuple(sorted((row for row, _ in _merged(rows)), key=lambda row: -row.moved_bytes))


def _merged(found: Iterable[Exchange]) -> Iterator[Exchange]:
    """Yields rows that are equal but for their counts as one."""
    counted: Counter[Exchange] = Counter()
    for row, node in found:
        counted[dataclasses.replace(row, count=1), node] += row.count
    return ((dataclasses.replace(row, count=count), node) for (row, node), count in counted.items())
