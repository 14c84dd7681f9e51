"""The loop over the passes, for a graph of a sync without a known program."""

# Why passes look at a graph on a miss alone: the cache finds a program under the key of the graph
# as it was recorded, so that what they have made of it costs nothing at a hit, however long they
# search.

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..base.config import config
from ..graph.graph import Graph, Node, origin, replace_operands, value_name
from ..graph.source import Line
from ..passes import COMPILE_PASSES, PASSES, checker, dynamic
from ..passes.pass_result import Changed, CompilePass, Cut, OnHost, Pass, Sync, runs
from ..programs import cache
from ..record import recorders
from ..sharding.value import Sharding
from .pjrt import processes
from .recording import recording
from .schedule import Flow, Prepared, Root, Subgraph, around_host


def prepared(
    graph: Graph,
    subgraph: Subgraph,
    roots_left: list[Root],
    flow: Flow,
    line: Line,
    *,
    donate: bool,
) -> Prepared:
    """Returns a graph with its program. A graph without one goes through the passes, until a
    changed graph has a program or a pass cuts it.

    roots_left: roots that have not run. A pass that replaces values also replaces them in the roots
    and in `flow`.
    """
    is_plan = recording.value is not None
    program = cache.find(graph)
    if program is not None or subgraph.is_final:
        return Prepared(graph, program)
    # Counted before the passes: they compare this sync's numbers with those of the last one, by
    # place.
    counts = [len(node.numbers) for node in graph.nodes]
    sync = Sync(line, graph.key(), counts, _steps_written(roots_left), subgraph.is_rest)
    reasons: list[str] = []
    for row in PASSES:
        if not _applies(row, donate=donate, is_plan=is_plan):
            continue
        result = row.run(graph, sync)
        if isinstance(result, str):
            reasons += [result] if result else []
            graph = _checked(graph, result, name=row.name, is_changed=False)
        elif isinstance(result, Changed):
            graph = _checked(result.graph, result.description, name=row.name, is_changed=True)
            program = cache.find(graph)
            if program is not None or result.is_last:
                break
        else:
            return Prepared(graph, parts=_subgraphs(graph, result, subgraph, roots_left, flow))
    return Prepared(graph, program, why_not=reasons[0] if reasons else "")


def run_compile_passes(
    graph: Graph, may_scan: bool = True, passes: Sequence[CompilePass] = COMPILE_PASSES
) -> Graph:
    """Returns a graph after the compile passes, in the form in which it is lowered."""
    for name, run, needs in passes:
        if not runs(needs, graph):
            continue
        result, note = run(graph, may_scan)
        graph = _checked(result, note, name=name, is_changed=result.nodes is not graph.nodes)
    return graph


# Called with each graph that a pass has changed, and a headline.
after_pass: list[Callable[[Graph, str], None]] = []


def _checked(graph: Graph, note: str, *, name: str, is_changed: bool) -> Graph:
    """Checks the graph that a pass has returned; returns it with the pass's note."""
    if config.check_graphs:
        checker.check(graph, name)
    for look in after_pass if is_changed else ():
        look(graph, f"after '{name}' ({note})")
    return replace(graph, notes=(*graph.notes, (name, note))) if note else graph


def _applies(row: Pass, *, donate: bool, is_plan: bool) -> bool:
    """True if a pass applies to a sync, by its fields `reads`, `plans`, `processes`, `threads`."""
    return (
        (donate or row.reads)
        and (row.plans or not is_plan)
        and (row.processes or not processes.several())
        and (row.threads or not recorders.are_several)
    )


def _subgraphs(
    graph: Graph, cut: Cut | OnHost, subgraph: Subgraph, roots_left: list[Root], flow: Flow
) -> Sequence[Subgraph]:
    """The subgraphs into which a pass has cut a graph."""
    if isinstance(cut, OnHost):
        return around_host(Subgraph(graph.nodes, subgraph.where), set(cut.nodes))
    # A pass that takes iterations out of the graph hands their last values on; readers behind it
    # must find these.
    if cut.replaced:
        replace_operands(
            cut.replaced, (node for name in cut.replaced for node in flow.readers.get(name, ()))
        )
        for index, (value, storage) in enumerate(roots_left):
            roots_left[index] = cut.replaced.get(value_name(value), value), storage
            storage.value = cut.replaced.get(value_name(storage.value), storage.value)
            if storage.past:
                storage.past = [cut.replaced.get(value_name(past), past) for past in storage.past]
    subgraphs = split_at(cut.ends, cut.nodes, subgraph.where)
    remainder = (
        [Subgraph(cut.nodes[cut.ends[-1] :], subgraph.where, is_rest=True)] if cut.has_rest else []
    )
    return [*subgraphs, *remainder]


def split_at(ends: Sequence[int], nodes: Sequence[Node], where: Sharding | None) -> list[Subgraph]:
    """The final subgraphs of a list of nodes that is cut at these indices.

    Start positions known to differ from iteration to iteration become operands.
    """
    # Before the cut: the parts of one loop must be one program, whatever their positions.
    dynamic.dynamic_start_positions(nodes[: ends[-1]])
    return [
        Subgraph(nodes[start:end], where, is_final=True)
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def _steps_written(roots: Sequence[Root]) -> set[Node]:
    """The nodes of the values of state that several steps have written since the last sync."""
    written: set[Node | None] = set()
    for _, storage in roots:
        if storage.is_state and storage.past:
            written.update(map(origin, (*storage.past, storage.value)))
    return {node for node in written if node is not None}
