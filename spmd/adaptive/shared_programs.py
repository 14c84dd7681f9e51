"""Cuts of a graph into programs that other graphs share: between iterations of a loop, and where it keeps changing."""

from collections.abc import Hashable
from dataclasses import dataclass

from ..core import config, counters, messages
from ..core.extend import Bounded, Cut, Graph, Line, Outcome, Sync, executables, stretches, walks
from . import by_element, changing, unsynced_loops


@dataclass(slots=True)
class _Shared:
    """The places where a graph was cut into programs that other graphs share, and how often it ran so."""

    ends: list[int]
    times: int = 0


# The places where a graph was cut, by its key: a warm step searches nothing.
_changing: Bounded[Hashable, _Shared] = Bounded(512)
# A graph of a sync that keeps changing becomes one program when it has run more often than this.
_OFTEN = 64


def forget() -> None:
    """Forgets where graphs were cut."""
    _changing.clear()


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
    result = by_element.replaced(graph.nodes)
    walks.replace_operands(result, graph.nodes)
    nodes = walks.topological([result.get(walks.value_name(root), root) for root in graph.roots])[0]
    known = _changing.get(sync.key)
    if known is None:
        ends = stretches.cuts(nodes, config.max_program_ops, recurs=False)
        known = _changing.keep(sync.key, _Shared([*ends, len(nodes)]))
    return Cut(nodes, known.ends, what, replaced=result)


def _hint(graph: Graph, line: Line) -> None:
    """Warns, once for each line that syncs, that its graph keeps changing, how, and what to write instead."""
    if changing.is_said(line):
        return
    cause = executables.cause(graph, line)
    messages.say(
        f"the program at {line.short()} keeps changing: {executables.short(cause)}",
        "keeps changing",
        f"the program at {line} keeps changing: {cause}. From now on a graph that is new there "
        "runs as programs of a few ops each, which other graphs share. A step that records the same ops each time is "
        "one program, and faster: multiply what a layer adds by a number that is 0 or 1 instead of leaving the layer "
        "out, choose by torch.where or spmd.cond instead of by `if`, pad a batch to a few sizes.",
    )
