"""Syncs whose graph keeps changing with the data: layers left out at random, branches by value,
shapes.

Each such graph would be a program of its own, which runs once. The decision follows from a sync's
own history: its runs, and the new graphs among them. A graph over the parameters of other modules
does not count: that is the next of several trainings, each of which may run long. Such a graph is
cut into programs that others of them share, its list ops as an op per element, those of one element
next to each other: an optimizer's list op is another op for each number of parameters; one
parameter's ops are the same in every graph.
"""

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..core import cache, config, counters, messages
from ..core.extend import (
    Bounded,
    Graph,
    Line,
    Node,
    OpSpec,
    Value,
    list_elements,
    log_entry,
    pass_result,
    stretches,
    walks,
)

# A sync keeps changing where at least FEW graphs before a new one were new, too, within RUNS_EACH
# runs for each of them, and at least half of their kinds of ops are its own. A step, its
# accumulation, its first run, and the first one whose parts are replayed are four.
FEW = 4
RUNS_EACH = 4
# The fewest ops: a shorter graph compiles fast.
LEAST_OPS = 64
# Ops that save memory only within one program: they gather, or they compute or gather again.
_SPARE_MEMORY = frozenset({"spmd.loops.recompute", "spmd.renew"})


@dataclass(slots=True)
class _Sync:
    """The history of a sync.

    runs: their number. new: the runs whose graph had no program, each with the kinds of its graph's
    ops, and the storages of parameters and buffers that it reads. is_said: the user has had the
    notice.
    """

    runs: int = 0
    is_said: bool = False
    new: list[tuple[int, set[OpSpec], set[Any]]] = field(default_factory=list)


_syncs: Bounded[tuple[CodeType | None, int], _Sync] = Bounded(1024)


@dataclass(slots=True)
class _Shared:
    """The places where a graph was cut into programs that other graphs share, and how often it ran
    so."""

    ends: list[int]
    times: int = 0


# The places where a graph was cut, by its key: a warm step searches nothing.
_cut: Bounded[Hashable, _Shared] = Bounded(512)
# A graph of a sync that keeps changing becomes one program when it has run more often than this.
_OFTEN = 64


def _sync(line: Line) -> _Sync:
    key = line.code, line.number
    return _syncs.get(key) or _syncs.keep(key, _Sync())


def forget() -> None:
    """Forgets the history of every sync, and where graphs were cut."""
    _syncs.clear()
    _cut.clear()


def note_run(line: Line) -> None:
    """Counts a run of a sync."""
    _sync(line).runs += 1


def keeps_changing(graph: Graph, line: Line) -> bool:
    """Returns True for a graph without a program that is one of many at its sync, and records
    it."""
    if len(graph.nodes) < LEAST_OPS or any(_spares_memory(node.op) for node in graph.nodes):
        return False
    sync, ops = _sync(line), {op for node in graph.nodes for op in _elements(node.op)}
    # Weak references, which stay what they are when their storages are gone.
    state = {device_data.holder for device_data in graph.inputs if device_data.is_state}
    similar = [
        run
        for run, run_ops, run_state in sync.new
        if _are_isomorphic(ops, run_ops) and (state & run_state or not (state or run_state))
    ]
    sync.new.append((sync.runs, ops, state))
    del sync.new[: -4 * FEW]
    return len(similar) >= FEW and sync.runs - similar[-FEW] <= FEW * RUNS_EACH


def _spares_memory(op: OpSpec) -> bool:
    is_gathered = op.sharding is not None and op.sharding.is_replicated()
    return is_gathered or op.name in _SPARE_MEMORY


def _elements(op: OpSpec) -> list[OpSpec]:
    """Returns the op, or the ops of a list op's elements: with a layer less it is another list
    op."""
    return [part.op for part in op.lowering.elements] or [op]


def _are_isomorphic(some: set[OpSpec], run_ops: set[OpSpec]) -> bool:
    return 2 * len(some & run_ops) >= max(len(some), len(run_ops))


# --- cuts -----------------------------------------------------------------------------------------


def changing_again(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Cuts a graph that `changing_graph` has cut before at the same places, unless it runs often
    enough to be worth a program of its own."""
    shared = _cut.get(sync.key)
    if shared is None:
        return ""
    shared.times += 1
    return "" if shared.times > _OFTEN else _by_element(graph, sync, "as before")


def changing_graph(graph: Graph, sync: pass_result.Sync) -> pass_result.Outcome:
    """Cuts a new graph of a sync that keeps changing (see above) into stretches that others of its
    graphs have."""
    if sync.key in _cut.rows or not keeps_changing(graph, sync.line):
        return ""
    _hint(graph, sync.line)
    counters.add("changing_graphs")
    return _by_element(graph, sync, "the graph of this sync keeps changing")


def _by_element(graph: Graph, sync: pass_result.Sync, reason: str) -> pass_result.Cut:
    """Cuts a graph with each list op as one op per element.

    Other threads' ops would go on reading the list ops' results, so that no graph is cut so where
    there are several.
    """
    result = replaced(graph.nodes)
    walks.replace_operands(result, graph.nodes)
    nodes = walks.topological([result.get(walks.value_name(root), root) for root in graph.roots])[0]
    shared = _cut.get(sync.key)
    if shared is None:
        ends = stretches.stretches(nodes, config.max_program_ops, recurs=False)
        shared = _cut.keep(sync.key, _Shared([*ends, len(nodes)]))
    return pass_result.Cut(nodes, shared.ends, reason, replaced=result)


def _hint(graph: Graph, line: Line) -> None:
    """Warns, once for each line that syncs, that its graph keeps changing, how, and what to write
    instead."""
    sync = _sync(line)
    if sync.is_said:
        return
    sync.is_said = True
    cause = cache.cause(graph, line)
    messages.say(
        f"the program at {line.short()} keeps changing: {log_entry.short(cause)}",
        "keeps changing",
        f"the program at {line} keeps changing: {cause}. From now on a graph that is new there "
        "runs as programs of a few ops each, which other graphs share. A step that records the "
        "same ops each time is one program, and faster: multiply what a layer adds by a number "
        "that is 0 or 1 instead of leaving the layer out, choose by torch.where or spmd.cond "
        "instead of by `if`, pad a batch to a few sizes.",
    )


def replaced(nodes: Sequence[Node]) -> dict[Any, Value]:
    """Returns the results of the single elements' ops that stand for those of a graph's list ops,
    by name."""
    result: dict[Any, Value] = {}
    # by op, the next one
    behind = dict(itertools.pairwise(nodes))
    for are_lists, run in itertools.groupby(nodes, list_elements.is_split):
        if are_lists:
            lists = list(run)
            walks.replace_operands(result, lists)
            chains, by_name = list_elements.element_chains(lists)
            steps = list(itertools.chain.from_iterable(chains))
            last = lists[-1].serial
            room = min(1.0, behind[lists[-1]].serial - last) if lists[-1] in behind else 1.0
            for step_index, step in enumerate(steps):
                step.node.serial = last + room * (step_index + 1) / (len(steps) + 1)
            result.update(by_name)
    return result
