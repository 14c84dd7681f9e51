"""A step that is recorded and never runs: what a barrier would have run is kept, and its results have no data.

Everything above the hand-over to PJRT is what a run does (birth, schedule, donation), so that the programs are those of
a run. Afterwards cells, leaves and the live set are what they were.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from .. import metrics, pace
from ..ir.graph import Graph, Leaf, Node, origin, topological
from ..lazy.cell import ASIDE, BARRIER, LIVE, LOCK, READ, UNDO, UndoLog, forget_reads
from ..pjrt import devices, runs
from ..sharding.value import Sharding


class Recording:
    """The programs that barriers would have run, in order.

    layouts: of results that the compiler places, (program, result) -> how it does, as far as that is known. unknown:
    the leaves that are such results and of which it is not; they stand as if whole on every device. made: all results.
    """

    def __init__(self, layouts: dict[tuple[int, int], Sharding] | None = None):
        self.layouts = {} if layouts is None else layouts
        self.programs: list[Graph] = []
        self.made: list[Leaf] = []
        self.unknown: dict[Leaf, tuple[int, int]] = {}

    def run(self, graph: Graph) -> list[Leaf]:
        """Keeps a program; returns a leaf per root."""
        here = len(self.programs)
        self.programs.append(graph)
        leaves = []
        for i, (root, pinned) in enumerate(zip(graph.roots, graph.pinned, strict=True)):
            chosen = self.layouts.get((here, i)) if pinned is None else pinned
            leaf = Leaf(root.meta, sharding=chosen or graph.mesh, is_abstract=True)
            if chosen is None:
                self.unknown[leaf] = here, i
            leaves.append(leaf)
        self.made += leaves
        runs.note_recorded()
        return leaves


_active: Recording | None = None
_owner = 0  # the thread whose programs it has


def recording() -> Recording | None:
    """What is to have the programs of this thread instead of the devices; None: they run."""
    return _active if _active is not None and _owner == threading.get_ident() else None


@contextlib.contextmanager
def recorded(into: Recording) -> Iterator[None]:
    """What this thread records inside never runs, and no cell, leaf, counter or line of the ledger is changed by it.

    Other threads wait with what they record. Raises RuntimeError inside itself.
    """
    global _active, _owner
    with BARRIER, LOCK, metrics.unchanged(), pace.unchanged():
        if _active is not None:
            raise RuntimeError("spmd.plan: called by the step that is being planned")
        live, aside, read = LIVE[:], ASIDE[:], [(row, row[0].value, row[0].stamp) for row in READ]
        log = UndoLog(is_step=True)
        UNDO.append(log)
        before = _noted([*live, *aside], log)
        READ.clear()
        _active, _owner = into, threading.get_ident()
        try:
            yield
        finally:
            _active = None
            UNDO.remove(log)
            forget_reads()
            log.undo()
            for node, entry, operands, numbers in before:
                node.entry, node.operands, node.numbers = entry, operands, numbers
            _forsake([*LIVE, *ASIDE], log.first)
            LIVE[:], ASIDE[:] = live, aside
            for ref in live:
                if (cell := ref()) is not None:
                    cell.listed = True
            for row, value, stamp in read:
                row[0].value, row[0].stamp = value, stamp
                READ.append(row)


def _noted(refs: list[Any], log: UndoLog) -> list[tuple[Node, Any, Any, Any]]:
    """Has the log know these cells; returns the ops behind them as they are."""
    found = [cell for ref in refs if (cell := ref()) is not None]
    for cell in found:
        log.note(cell)
    nodes = topological([value for cell in found for value in (*(cell.past or ()), cell.value)])[0]
    return [(node, node.entry, node.operands, node.numbers) for node in nodes]


def _forsake(refs: list[Any], first: int) -> None:
    """What was recorded inside (its serial is `first` or more) and outlives it never runs: it has no data."""
    for ref in refs:
        cell = ref()
        if cell is None:
            continue
        cell.listed = False
        maker = origin(cell.value)
        if maker is not None and maker.serial >= first:
            lies = (cell.sharding or devices.default_sharding()).closed()
            cell.value = Leaf(cell.meta, sharding=lies, is_abstract=True)
            cell.value.holder = cell.ref
            cell.past = cell.data = None
