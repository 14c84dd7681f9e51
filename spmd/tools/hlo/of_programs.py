"""Facts that a line of the compile log reads in a program's text: operations, collectives, unrequested moves."""

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from ...core import Collective, Move
from ...core.extend import Graph, Module, Node, Program, executables, user_lines
from .costs import flops_of, repeated_flops
from .hlo_collectives import KINDS, Exchange, Exchanges, Key, PlacedCollective, collectives, key_of
from .unrequested_moves import Placement, moves

_COLLECTIVE = re.compile(rf"= .*? ({'|'.join(KINDS)})(-start)?\(")


def of_program(program: Program) -> tuple[float, dict[str, int], Exchanges, tuple[Placement, ...]]:
    """Returns the operations of a program, the number of its collectives of each kind, these, and its moves."""
    graph, text = program.graph, program.executable.as_text()
    counts = Counter(match[1] for match in _COLLECTIVE.finditer(text))
    counted = executables.num_flops(program.executable)
    # The compiler of a GPU that is only described counts nothing.
    is_counted = bool(counted) or graph.mesh.platform != "gpu"
    if not counts and " while(" not in text and is_counted:
        return counted, {}, (), ()
    module = Module.of(program.executable)
    counted += repeated_flops(module) if is_counted else flops_of(module)
    if not counts:
        return counted, {}, (), ()
    rows = collectives(module, graph)
    unused = "" if program.record is None else " ".join(program.record.unused_axes)
    return counted, dict(counts), exchanges(rows, graph), moves(module, graph, rows, unused)


def of_run(program: Program, above: int) -> tuple[tuple[Collective, ...], tuple[Move, ...]]:
    """Returns the collectives of a program and its moves of more than `above` bytes, with the lines of its run."""
    facts = program.facts
    return table(facts.exchanges, program.graph), listed(facts.moves, program.graph, above)


# --- the tables, with the user's lines --------------------------------------------------------------------------------


Times = Mapping[Key, tuple[float, float]]  # of each collective the seconds, and those that nothing covers


def exchanges(found: Iterable[PlacedCollective], graph: Graph, times: Times | None = None) -> Exchanges:
    """Returns a program's collectives by the recorded op (its place in the graph) that each came from, without lines:
    those belong to the run that recorded the ops, and the program may be reused by others.

    times: by the clock of a plan.
    """

    def row(one: PlacedCollective) -> Collective:
        seconds, waiting = (times or {}).get(key_of(one.computation, one.line), (0.0, 0.0))
        return dataclasses.replace(one.row, op=_op(one, graph), seconds=seconds, waiting=waiting)

    return tuple(_merged((row(one), one.node) for one in found))


def _op(one: PlacedCollective, graph: Graph) -> str:
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
    for row, index in found:
        line = path = ""
        if index is not None:
            source = user_lines.source_of(node := graph.nodes[index])
            line = str(direct if (direct := user_lines.node_line(source)).code is not None else lines[index])
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


def listed(
    found: Iterable[Placement], graph: Graph, above: int, paths: Callable[[Node], str] = lambda node: ""
) -> tuple[Move, ...]:
    """Returns the moves with a collective of more than `above` bytes, with the lines of the ops of this graph.

    paths: returns the path of the module that an op belongs to, or "".
    """
    return tuple(
        dataclasses.replace(
            move, line=str(user_lines.line_of(graph.nodes[place], graph.nodes)), path=paths(graph.nodes[place])
        )
        for move, place in found
        if move.largest > above
    )
