"""Cuts of a graph into programs: between iterations of a loop, in a long graph, and in one that keeps changing."""

from collections.abc import Hashable
from dataclasses import dataclass

from ..base import counters, messages, pace
from ..base.config import config
from ..base.tables import Bounded
from ..compile import cache
from ..compile.compile_log import short
from ..ir.graph import Graph, topological, value_name
from ..ir.source import Line
from . import by_element, changing, scan_layers, unsynced_loops
from .outcome import Cut, Outcome, Sync


@dataclass(slots=True)
class _Shared:
    """The places where a graph was cut into programs that other graphs share, and how often it ran so."""

    ends: list[int]
    times: int = 0


# The places where a graph was cut, by its key: a warm step searches nothing.
_long: Bounded[Hashable, list[int]] = Bounded(512)
_changing: Bounded[Hashable, _Shared] = Bounded(512)
# The rest of a graph whose loop iterations have run is no program of a step anyway: the limit divided by this makes it
# long.
_SHARE_OF_REST = 4
# A graph of a sync that keeps changing becomes one program when it has run more often than this.
_OFTEN = 64


def forget() -> None:
    """Forgets where graphs were cut."""
    _long.clear()
    _changing.clear()


def long_again(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that `long` has cut before at the same places."""
    ends = _long.get(sync.key)
    return "" if ends is None else Cut(graph.nodes, ends, "as before")


def changing_again(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that `changing_graph` has cut before at the same places, unless it runs often enough to be worth a
    program of its own."""
    known = _changing.get(sync.key)
    if known is None:
        return ""
    known.times += 1
    return "" if known.times > _OFTEN else _by_element(graph, sync, "as before")


def between_iterations(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph between the iterations of a loop. In a graph that is not long these must write state, as the steps
    of a training loop do: a short loop inside a step is as well off in the step's program."""
    if not config.loop_search_ops:
        return ""
    written = None if len(graph.nodes) >= config.loop_search_ops else set(sync.written)
    ends = unsynced_loops.cuts(graph.nodes, written=written, goes_on=False)
    if not ends:
        return ""
    counters.add("loop_iterations", len(ends))
    return Cut(graph.nodes, ends, f"{len(ends)} iterations of a loop without a sync", has_rest=True)


def long(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a graph that has more ops than one program may have, equal layers counted once."""
    nodes, limit = graph.nodes, config.max_program_ops
    if sync.is_rest or pace.has_cut:
        limit //= _SHARE_OF_REST
    if len(nodes) <= limit or scan_layers.num_lowered(graph) <= limit:
        return ""
    ends = _long.keep(sync.key, [*unsynced_loops.stretches(nodes, limit), len(nodes)])
    return Cut(nodes, ends, f"more than {limit:,} ops")


def changing_graph(graph: Graph, sync: Sync) -> Outcome:
    """Cuts a new graph of a sync that keeps changing (see `changing`) into stretches that others of its graphs have."""
    if sync.key in _changing.rows or not changing.keeps_changing(graph, sync.line):
        return ""
    _hint(graph, sync.line)
    counters.add("changing_graphs")
    return _by_element(graph, sync, "the graph of this sync keeps changing")


def _by_element(graph: Graph, sync: Sync, what: str) -> Cut:
    """Cuts a graph with each list op as one op per element.

    Other threads' ops would go on reading the list ops' results, so that no graph is cut so where there are several.
    """
    made = by_element.replaced(graph.nodes)
    by_element.put(made, graph.nodes)
    nodes = topological([made.get(value_name(root), root) for root in graph.roots])[0]
    known = _changing.get(sync.key)
    if known is None:
        ends = unsynced_loops.stretches(nodes, config.max_program_ops, recurs=False)
        known = _changing.keep(sync.key, _Shared([*ends, len(nodes)]))
    return Cut(nodes, known.ends, what, replaced=made)


def _hint(graph: Graph, line: Line) -> None:
    """Warns, once for each line that syncs, that its graph keeps changing, how, and what to write instead."""
    if changing.is_said(line):
        return
    cause = cache.cause(graph, line)
    messages.say(
        f"the program at {line.short()} keeps changing: {short(cause)}",
        "keeps changing",
        f"the program at {line} keeps changing: {cause}. From now on a graph that is new there "
        "runs as programs of a few ops each, which other graphs share. A step that records the same ops each time is "
        "one program, and faster: multiply what a layer adds by a number that is 0 or 1 instead of leaving the layer "
        "out, choose by torch.where or spmd.cond instead of by `if`, pad a batch to a few sizes.",
    )
