"""Cuts of a graph into programs: between iterations of a loop, in a long graph, and in one that keeps changing."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ..base import counters, pace
from ..base.config import config
from ..base.tables import Bounded
from ..compile import cache
from ..explain import slow_compiles
from ..ir.graph import Graph, Node, origin, topological, value_name
from ..ir.source import Line
from ..lazy import recorders
from ..lazy.storage import Storage
from ..passes import by_element, changing, dynamic, scan_layers, unsynced_loops
from ..pjrt import processes
from ..sharding.value import Sharding
from .schedule import Flow, Root, Subgraph


@dataclass(slots=True)
class _Cut:
    """The places where a graph is cut, and how often it ran so. is_long: no program may have all of its ops."""

    ends: list[int]
    is_long: bool
    times: int = 0


# By the key of a graph: a warm step searches nothing.
_cuts: Bounded[Hashable, _Cut] = Bounded(512)
# The rest of a graph whose loop iterations have run is no program of a step anyway: the limit divided by this makes it
# long.
_SHARE_OF_REST = 4
# A graph of a sync that keeps changing becomes one program when it has run more often than this.
_OFTEN = 64


def finer(subgraph: Subgraph, graph: Graph, storages: Sequence[Storage]) -> list[Subgraph]:
    """The subgraphs into which a subgraph without a program is better cut: between the iterations of a loop, else where
    it is long; none where it is not. The ops behind the last iteration are a subgraph that may be cut further."""
    nodes = graph.nodes
    if config.loop_search_ops and not processes.several():
        ends = unsynced_loops.cuts(nodes, written=_steps_of(storages, graph), goes_on=False)
        if ends:
            counters.add("loop_turns", len(ends))
            return [*between(ends, nodes, subgraph.where), Subgraph(nodes[ends[-1] :], subgraph.where, is_rest=True)]
    limit = config.max_program_ops
    if subgraph.is_rest or pace.has_cut:
        limit //= _SHARE_OF_REST
    if len(nodes) <= limit or scan_layers.num_lowered(graph) <= limit:
        return []
    cut = _cuts.keep(graph.key(), _Cut(unsynced_loops.stretches(nodes, limit), is_long=True))
    return between([*cut.ends, len(nodes)], nodes, subgraph.where)


def between(ends: Sequence[int], nodes: Sequence[Node], where: Sharding | None) -> list[Subgraph]:
    """The subgraphs that end at these places. Positions known to differ from iteration to iteration become operands."""
    dynamic.dynamic_start_positions(nodes[: ends[-1]])
    return [Subgraph(nodes[start:end], where, is_final=True) for start, end in zip([0, *ends], ends, strict=False)]


def _steps_of(storages: Sequence[Storage], graph: Graph) -> set[Node] | None:
    """The nodes that a loop must write to be cut out of a graph: where the graph is not long, those of state, as the
    steps of a training loop do (a short loop inside a step is as well off in the step's program); where it is long,
    None."""
    return None if len(graph.nodes) >= config.loop_search_ops else steps_written(storages)


def steps_written(storages: Sequence[Storage]) -> set[Node]:
    """The nodes of the values of state that several steps have written since the last sync."""
    values = [
        value for storage in storages if storage.is_state and storage.past for value in (*storage.past, storage.value)
    ]
    return {made for value in values if (made := origin(value)) is not None}


def cut_before(subgraph: Subgraph, graph: Graph, key: Hashable, left: list[Root], flow: Flow) -> list[Subgraph]:
    """The subgraphs into which a graph with this key was cut before, as it had too many ops for one program or its sync
    keeps changing; none where it is not known, or has run often enough to be worth a program of its own."""
    cut = None if subgraph.is_final else _cuts.get(key)
    if cut is None:
        return []
    cut.times += 1
    if cut.is_long:
        return between([*cut.ends, len(graph.nodes)], graph.nodes, subgraph.where)
    if cut.times > _OFTEN or recorders.is_several:
        return []
    nodes = _by_element(graph, left, flow)
    return between([*cut.ends, len(nodes)], nodes, subgraph.where)


def cut_changing(
    subgraph: Subgraph, graph: Graph, key: Hashable, left: list[Root], flow: Flow, line: Line
) -> list[Subgraph]:
    """The subgraphs of a graph without a program whose sync keeps changing (`passes.changing`): stretches that other
    such graphs have, too; none where the graph is better one program."""
    if key in _cuts.rows or recorders.is_several or not changing.keeps_changing(graph, line):
        return []
    _hint(graph, line)
    nodes = _by_element(graph, left, flow)
    cut = _cuts.keep(key, _Cut(unsynced_loops.stretches(nodes, config.max_program_ops, recurs=False), is_long=False))
    counters.add("changing_graphs")
    return between([*cut.ends, len(nodes)], nodes, subgraph.where)


def _by_element(graph: Graph, left: list[Root], flow: Flow) -> list[Node]:
    """The ops of a graph with each list op as one op per element, replaced also in the storages and ops that take its
    results.

    Other threads' ops would go on reading the list ops' results, so that no graph is cut so where there are several
    threads.
    """
    made = by_element.replaced(graph.nodes)
    readers = (node for name in made for node in flow.readers.get(name, ()))
    by_element.put(made, [*graph.nodes, *readers])
    for place, (value, storage) in enumerate(left):
        left[place] = made.get(value_name(value), value), storage
        storage.value = made.get(value_name(storage.value), storage.value)
        if storage.past:
            storage.past = [made.get(value_name(past), past) for past in storage.past]
    return topological([made.get(value_name(root), root) for root in graph.roots])[0]


def _hint(graph: Graph, line: Line) -> None:
    """Warns, once for each line that syncs, that its graph keeps changing, how, and what to write instead."""
    if changing.is_said(line):
        return
    slow_compiles.say(
        f"the program at {line} keeps changing: {cache.cause(graph, line)}. From now on a graph that is new there "
        "runs as programs of a few ops each, which other graphs share. A step that records the same ops each time is "
        "one program, and faster: multiply what a layer adds by a number that is 0 or 1 instead of leaving the layer "
        "out, choose by torch.where or spmd.cond instead of by `if`, pad a batch to a few sizes."
    )
