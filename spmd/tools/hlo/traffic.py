"""A program's collectives as a table with the user's lines (`hlo_collectives` finds them)."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from ...core import Collective
from ...core.extend import Graph, Node, user_lines
from .hlo_collectives import Exchange, Key, Placed, key_of

Exchanges = tuple[Exchange, ...]


Times = Mapping[Key, tuple[float, float]]  # of each collective the seconds, and those that nothing covers


def exchanges(found: Iterable[Placed], graph: Graph, times: Times | None = None) -> Exchanges:
    """Returns a program's collectives by the recorded op (its place in the graph) that each came from, without lines:
    those belong to the run that recorded the ops, and the program may be reused by others.

    times: by the clock of a plan.
    """

    def row(one: Placed) -> Collective:
        seconds, waiting = (times or {}).get(key_of(one.computation, one.line), (0.0, 0.0))
        return dataclasses.replace(one.row, op=_op(one, graph), seconds=seconds, waiting=waiting)

    return tuple(_merged((row(one), one.node) for one in found))


def _op(one: Placed, graph: Graph) -> str:
    """The op that a collective came from; of a combined one the number of its arrays and the op of the first one."""
    name = "" if one.node is None else user_lines.source_of(graph.nodes[one.node]).op.name
    if not one.joined:
        return name
    is_backward = all(graph.nodes[place].sequence >= 0 for place in one.joined)
    return f"{len(one.joined)} {'gradients' if is_backward else 'values'} combined, the first of {name}"


def table(found: Exchanges, graph: Graph, paths: Callable[[Node], str] = lambda node: "") -> tuple[Collective, ...]:
    """Returns the table of a program's collectives: equal ones are one row, those that move most come first.

    paths: returns the path of the module that an op belongs to, or "".
    """
    rows: list[Exchange] = []
    lines = user_lines.lines_of(graph.nodes) if found else []
    for row, place in found:
        line = path = ""
        if place is not None:
            source = user_lines.source_of(node := graph.nodes[place])
            line = str(own if (own := user_lines.node_line(source)).code is not None else lines[place])
            path = paths(node) if row.op == source.op.name else ""  # a combined one has several
        rows.append((dataclasses.replace(row, line=line, path=path), None))
    return tuple(sorted((row for row, _ in _merged(rows)), key=lambda row: -row.moved_bytes))


def _merged(found: Iterable[Exchange]) -> Iterator[Exchange]:
    """Yields rows that are equal but for their counts and times as one."""
    sums: dict[Exchange, tuple[int, float, float]] = {}
    for row, node in found:
        key = dataclasses.replace(row, count=1, seconds=0.0, waiting=0.0), node
        count, seconds, waiting = sums.get(key, (0, 0.0, 0.0))
        sums[key] = count + row.count, seconds + row.seconds, waiting + row.waiting
    for (row, node), (count, seconds, waiting) in sums.items():
        yield dataclasses.replace(row, count=count, seconds=seconds, waiting=waiting), node
