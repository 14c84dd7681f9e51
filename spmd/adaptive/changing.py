"""Syncs whose graph keeps changing with the data: layers left out at random, branches by value, shapes.

Each such graph would be a program of its own, which runs once. The decision follows from a sync's own history: its
runs, and the new graphs among them. A graph over the parameters of other modules does not count: that is the next
of several trainings, each of which may run long.
"""

from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from ..core.extend import Bounded, Graph, Line, OpSpec

# A sync keeps changing where at least FEW graphs before a new one were new, too, within RUNS_EACH runs for each of
# them, and at least half of their kinds of ops are its own. A step, its accumulation and its first run are three.
FEW = 3
RUNS_EACH = 4
# The fewest ops: a shorter graph compiles fast.
LEAST_OPS = 64
# Ops that save memory only within one program: they gather, or they compute or gather again.
_SPARE_MEMORY = frozenset({"spmd.loops.recompute", "spmd.renew"})


@dataclass(slots=True)
class _Sync:
    """The history of a sync.

    runs: their number. new: the runs whose graph had no program, each with the kinds of its graph's ops, and the
    storages of parameters and buffers that it reads. is_said: the user has had the notice.
    """

    runs: int = 0
    is_said: bool = False
    new: list[tuple[int, set[OpSpec], set[Any]]] = field(default_factory=list)


_syncs: Bounded[tuple[CodeType | None, int], _Sync] = Bounded(1024)


def _sync(line: Line) -> _Sync:
    key = line.code, line.number
    return _syncs.get(key) or _syncs.keep(key, _Sync())


def forget() -> None:
    """Forgets the history of every sync."""
    _syncs.clear()


def is_said(line: Line) -> bool:
    """Returns False at the first call for a sync, then True."""
    sync = _sync(line)
    before, sync.is_said = sync.is_said, True
    return before


def note_run(line: Line) -> None:
    """Counts a run of a sync."""
    _sync(line).runs += 1


def keeps_changing(graph: Graph, line: Line) -> bool:
    """Returns True for a graph without a program that is one of many at its sync, and records it."""
    if len(graph.nodes) < LEAST_OPS or any(_spares_memory(node.op) for node in graph.nodes):
        return False
    sync, ops = _sync(line), {op for node in graph.nodes for op in _elements(node.op)}
    # Weak references, which stay what they are when their storages are gone.
    state = {device_data.holder for device_data in graph.inputs if device_data.is_state}
    similar = [
        run for run, others, held in sync.new if _are_isomorphic(ops, others) and (state & held or not (state or held))
    ]
    sync.new.append((sync.runs, ops, state))
    del sync.new[: -4 * FEW]
    return len(similar) >= FEW and sync.runs - similar[-FEW] <= FEW * RUNS_EACH


def _spares_memory(op: OpSpec) -> bool:
    is_gathered = op.sharding is not None and op.sharding.is_replicated()
    return is_gathered or op.name in _SPARE_MEMORY


def _elements(op: OpSpec) -> list[OpSpec]:
    """Returns the op, or the ops of a list op's elements: with a layer less it is another list op."""
    return [part.op for part in op.lowering.elements] or [op]


def _are_isomorphic(some: set[OpSpec], others: set[OpSpec]) -> bool:
    return 2 * len(some & others) >= max(len(some), len(others))
