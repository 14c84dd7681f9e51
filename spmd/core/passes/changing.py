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


@dataclass(slots=True)
class _Barrier:
    """runs: how many there were. new: those whose graph had no program, each with the kinds of its graph's ops."""

    runs: int = 0
    new: list[tuple[int, set[Entry]]] = field(default_factory=list)


_barriers: Bounded[tuple[CodeType | None, int], _Barrier] = Bounded(1024)


def _barrier(line: Line) -> _Barrier:
    key = line.code, line.number
    return _barriers.get(key) or _barriers.keep(key, _Barrier())


def note_run(line: Line) -> None:
    """Counts a run of a barrier."""
    _barrier(line).runs += 1


def keeps_changing(graph: Graph, line: Line) -> bool:
    """Whether a graph without a program is one of many at its barrier; notes it."""
    if len(graph.nodes) < LEAST_OPS:
        return False
    barrier, ops = _barrier(line), {entry for node in graph.nodes for entry in _elements(node.entry)}
    alike = [run for run, others in barrier.new if _are_alike(ops, others)]
    barrier.new.append((barrier.runs, ops))
    del barrier.new[: -4 * FEW]
    return len(alike) >= FEW and barrier.runs - alike[-FEW] <= FEW * RUNS_EACH


def _elements(entry: Entry) -> list[Entry]:
    """An op, or those of a list op's elements: a layer less is another list op."""
    return [part.entry for part in entry.lowering.elements] or [entry]


def _are_alike(some: set[Entry], others: set[Entry]) -> bool:
    return 2 * len(some & others) >= max(len(some), len(others))

