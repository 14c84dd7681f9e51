"""Barriers whose graph keeps changing with the data: layers left out at random, branches by value, shapes.

Each such graph would be a program of its own, which runs once. What is known of a barrier is its own history: the runs,
and the new graphs among them.
"""

from dataclasses import dataclass, field
from types import CodeType

from ..ir.graph import Graph
from ..ir.op import Entry
from ..ir.source import Line
from ..tables import Bounded

# A barrier keeps changing where so many graphs before a new one were new, too, within so many runs for each of them,
# and are made of the same kinds of ops as it, at least half. A step, its accumulation and its first run are three.
FEW = 3
RUNS_EACH = 4
# A shorter graph is soon compiled.
LEAST_OPS = 64
# What is gathered, or computed or gathered again, spares memory within one program alone.
_SPARE_MEMORY = frozenset({"spmd.recompute", "spmd.renew"})


@dataclass(slots=True)
class _Barrier:
    """runs: how many there were. new: those whose graph had no program, each with the kinds of its graph's ops.
    is_said: the user has been told of it."""

    runs: int = 0
    is_said: bool = False
    new: list[tuple[int, set[Entry]]] = field(default_factory=list)


_barriers: Bounded[tuple[CodeType | None, int], _Barrier] = Bounded(1024)


def _barrier(line: Line) -> _Barrier:
    key = line.code, line.number
    return _barriers.get(key) or _barriers.keep(key, _Barrier())


def forget() -> None:
    """Forgets the history of every barrier."""
    _barriers.clear()


def is_said(line: Line) -> bool:
    """False the first time that it is asked of a barrier."""
    barrier = _barrier(line)
    before, barrier.is_said = barrier.is_said, True
    return before


def note_run(line: Line) -> None:
    """Counts a run of a barrier."""
    _barrier(line).runs += 1


def keeps_changing(graph: Graph, line: Line) -> bool:
    """Tells whether a graph without a program is one of many at its barrier; notes it."""
    if len(graph.nodes) < LEAST_OPS or any(_spares_memory(node.entry) for node in graph.nodes):
        return False
    barrier, ops = _barrier(line), {entry for node in graph.nodes for entry in _elements(node.entry)}
    alike = [run for run, others in barrier.new if _are_alike(ops, others)]
    barrier.new.append((barrier.runs, ops))
    del barrier.new[: -4 * FEW]
    return len(alike) >= FEW and barrier.runs - alike[-FEW] <= FEW * RUNS_EACH


def _spares_memory(entry: Entry) -> bool:
    is_gathered = entry.sharding is not None and entry.sharding.is_replicated()
    return is_gathered or entry.name in _SPARE_MEMORY


def _elements(entry: Entry) -> list[Entry]:
    """An op, or those of a list op's elements: a layer less is another list op."""
    return [part.entry for part in entry.lowering.elements] or [entry]


def _are_alike(some: set[Entry], others: set[Entry]) -> bool:
    return 2 * len(some & others) >= max(len(some), len(others))
