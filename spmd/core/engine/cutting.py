"""Where a graph is cut into programs: between iterations of a loop, where it is long, where it keeps changing."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from .. import metrics, pace
from ..compile import cache, notice
from ..config import config
from ..ir.graph import Graph, Node, origin, topological, value_name
from ..ir.source import Line
from ..lazy import recorders
from ..lazy.cell import Cell
from ..passes import by_element, changing, dynamic, roll, turns
from ..pjrt import processes
from ..sharding.value import Sharding
from ..tables import Bounded
from .schedule import Flow, Piece, Root


@dataclass(slots=True)
class _Cut:
    """Where a graph is cut, and how often it ran so. is_long: no program may have all of its ops."""

    ends: list[int]
    is_long: bool
    times: int = 0


# By graph: a warm step finds nothing out.
_cuts: Bounded[Hashable, _Cut] = Bounded(512)
# What is left of a graph when iterations of a loop have run is no program of a step anyway: so much shorter is long.
_SHARE_OF_REST = 4
# A graph of a barrier that keeps changing becomes one program when it has run so often.
_OFTEN = 64


def finer(piece: Piece, graph: Graph, cells: Sequence[Cell]) -> list[Piece]:
    """The pieces into which one that has no program is better cut: between the turns of a loop, else where it is long;
    none where it is not. The ops behind the last turn are a piece that may be cut further."""
    nodes = graph.nodes
    if config.loop_search_ops and not processes.several():
        ends = turns.cuts(nodes, written=_steps_of(cells, graph), goes_on=False)
        if ends:
            metrics.add("loop_turns", len(ends))
            return [*between(ends, nodes, piece.where), Piece(nodes[ends[-1] :], piece.where, is_rest=True)]
    limit = config.max_program_ops
    if piece.is_rest or pace.has_cut:
        limit //= _SHARE_OF_REST
    if len(nodes) <= limit or roll.num_lowered(graph) <= limit:
        return []
    cut = _cuts.keep(graph.key(), _Cut(turns.stretches(nodes, limit), is_long=True))
    return between([*cut.ends, len(nodes)], nodes, piece.where)


def between(ends: Sequence[int], nodes: Sequence[Node], where: Sharding | None) -> list[Piece]:
    """The pieces of a graph that end at these places. Positions known to differ from turn to turn become operands."""
    dynamic.lift_positions(nodes[: ends[-1]])
    return [Piece(nodes[start:end], where, is_whole=True) for start, end in zip([0, *ends], ends, strict=False)]


def _steps_of(cells: Sequence[Cell], graph: Graph) -> set[Node] | None:
    """What a loop must write to be cut out of a graph: state, as the steps of a training loop do, where it is not long
    (a short loop inside a step is as well off in the step's program); nothing (None) where it is long."""
    return None if len(graph.nodes) >= config.loop_search_ops else steps_written(cells)


def steps_written(cells: Sequence[Cell]) -> set[Node]:
    """What makes the values of state that several steps have written since the last barrier."""
    values = [value for cell in cells if cell.is_state and cell.past for value in (*cell.past, cell.value)]
    return {made for value in values if (made := origin(value)) is not None}


def cut_before(piece: Piece, graph: Graph, key: Hashable, left: list[Root], flow: Flow) -> list[Piece]:
    """The pieces into which a graph with this key was cut before, as it had too many ops for one program or its barrier
    keeps changing; none where it is not known, or has run often enough to be worth a program of its own."""
    cut = None if piece.is_whole else _cuts.get(key)
    if cut is None:
        return []
    cut.times += 1
    if cut.is_long:
        return between([*cut.ends, len(graph.nodes)], graph.nodes, piece.where)
    if cut.times > _OFTEN or recorders.is_several:
        return []
    nodes = _by_element(graph, left, flow)
    return between([*cut.ends, len(nodes)], nodes, piece.where)


def cut_changing(piece: Piece, graph: Graph, key: Hashable, left: list[Root], flow: Flow, line: Line) -> list[Piece]:
    """The pieces of a graph without a program whose barrier keeps changing (`passes.changing`): stretches that other
    such graphs have, too; none where the graph is better one program."""
    if key in _cuts.rows or recorders.is_several or not changing.keeps_changing(graph, line):
        return []
    _hint(graph, line)
    nodes = _by_element(graph, left, flow)
    cut = _cuts.keep(key, _Cut(turns.stretches(nodes, config.max_program_ops, recurs=False), is_long=False))
    metrics.add("changing_graphs")
    return between([*cut.ends, len(nodes)], nodes, piece.where)


def _by_element(graph: Graph, left: list[Root], flow: Flow) -> list[Node]:
    """The ops of a graph, those of a list each its own, also for the cells and ops that take its results.

    Other threads' ops would go on reading the lists', so that nothing is cut so where there are several.
    """
    made = by_element.replaced(graph.nodes)
    readers = (node for name in made for node in flow.readers.get(name, ()))
    by_element.put(made, [*graph.nodes, *readers])
    for place, (value, cell) in enumerate(left):
        left[place] = made.get(value_name(value), value), cell
        cell.value = made.get(value_name(cell.value), cell.value)
        if cell.past:
            cell.past = [made.get(value_name(past), past) for past in cell.past]
    return topological([made.get(value_name(root), root) for root in graph.roots])[0]


def _hint(graph: Graph, line: Line) -> None:
    """Says once of a barrier that its graph keeps changing, how, and what to write instead."""
    if changing.is_said(line):
        return
    notice.say(
        f"the program at {line} keeps changing: {cache.cause(graph, line)}. A graph that is new there runs from now on "
        "as programs of a few ops each, which others have, too. A step that records the same ops each time is one "
        "program, and faster: multiply what a layer adds by a number that is 0 or 1 instead of leaving the layer out, "
        "choose by torch.where or spmd.cond instead of by `if`, pad a batch to a few sizes."
    )
