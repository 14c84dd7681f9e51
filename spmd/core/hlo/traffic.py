"""A program's collectives as a table with the user's lines (`hlo_collectives` finds them)."""

import dataclasses
from collections import Counter
from collections.abc import Callable

from ..base.counters import Collective
from ..ir.graph import Graph, Node
from .hlo import Module
from .hlo_collectives import collectives, line_of, source_of

Exchanges = tuple[tuple[Collective, int | None], ...]


def exchanges(module: Module, graph: Graph) -> Exchanges:
    """Returns a program's collectives by the recorded op (its place in the graph) that each came from, without lines:
    those belong to the run that recorded the ops, and the program may be reused by others."""
    counted: Counter[tuple[Collective, int | None]] = Counter()
    for found in collectives(module, graph):
        node = None if found.node is None else graph.nodes[found.node]
        row = Collective(
            kind=found.kind,
            axes=found.axes,
            devices=found.size,
            bytes=found.data,
            count=1,
            op="" if node is None else source_of(node).op.name,
            is_sliced=found.is_sliced,
            link=found.link,
            is_async=found.is_async,
        )
        counted[row, found.node] += found.count
    return tuple((dataclasses.replace(row, count=count), node) for (row, node), count in counted.items())


def table(found: Exchanges, graph: Graph, paths: Callable[[Node], str] = lambda node: "") -> tuple[Collective, ...]:
    """Returns the table of a program's collectives: equal ones are one row, those that move most come first.

    paths: returns the path of the module that an op belongs to, or "".
    """
    counted: Counter[Collective] = Counter()
    for row, place in found:
        node = None if place is None else graph.nodes[place]
        line, path = ("", "") if node is None else (str(line_of(node, graph.nodes)), paths(node))
        counted[dataclasses.replace(row, count=1, line=line, path=path)] += row.count
    made = [dataclasses.replace(row, count=count) for row, count in counted.items()]
    return tuple(sorted(made, key=lambda row: -row.moved_bytes))
