"""A step that is recorded and never runs: the programs that its syncs would run are kept, and its
results have no data.

Everything above the hand-over to PJRT is the code of a run (initialization, schedule, donation), so
its programs are those of a run. Afterwards storages, device data and the list of live storages are
restored.
"""

# Why a plan records by the same code as a run, and only stops at what would run: a plan of another
# recording would be one of another program, and its figures those of no step.

import contextlib
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from ..base import compile_log, in_flight
from ..base.pace import pace
from ..base.state import PerThread
from ..graph.errors import AbstractError
from ..graph.graph import (
    DeviceData,
    Graph,
    Node,
    Value,
    origin,
    replace_operands,
    results,
    topological,
    value_name,
)
from ..graph.op import OpSpec
from ..record import deferred
from ..record.storage import (
    ASIDE,
    LIVE,
    LOCK,
    READ,
    SYNC_LOCK,
    UNDO,
    Storage,
    UndoLog,
    forget_reads,
)
from ..sharding.value import Sharding
from .pjrt import devices


class Recording:
    """The programs that syncs would have run, in order.

    layouts: (program, result) -> the sharding that the compiler chooses for a result, as far as it
    is known. unknown: the results whose sharding is not known; they count as replicated. results:
    all of them. has_values: `read` returns values, filled with the number 1, instead of an error.
    """

    # A planned step must read nothing, as its programs would be others. A planned script reads
    # arrays of ones.
    has_values = False

    def __init__(self, layouts: dict[tuple[int, int], Sharding] | None = None):
        self.layouts = {} if layouts is None else layouts
        self.programs: list[Graph] = []
        self.results: list[DeviceData] = []
        self.unknown: dict[DeviceData, tuple[int, int]] = {}

    def run(self, graph: Graph) -> list[DeviceData]:
        """Keeps a program; returns device data for each root."""
        program_index = len(self.programs)
        self.programs.append(graph)
        outputs = []
        for i, (root, pinned) in enumerate(zip(graph.roots, graph.pinned, strict=True)):
            # A second recording of the step knows what the compiler chose in the first one.
            layout = self.layouts.get((program_index, i)) if pinned is None else pinned
            device_data = DeviceData(root.meta, sharding=layout or graph.mesh, is_abstract=True)
            if layout is None:
                self.unknown[device_data] = program_index, i
            outputs.append(device_data)
        self.results += outputs
        # Values read from here on belong to no graph that was recorded before, as after a run.
        in_flight.note_recorded()
        return outputs

    def read(self, value: Value, error: AbstractError) -> np.ndarray:
        """Returns the host array for a read of a value without data; here it raises the error.
        Called before the sync of the read, if there is one, and after it."""
        raise error

    def synced(self) -> None:
        """Is called at the end of each sync."""


# Takes the programs of the thread instead of the devices; None: they run.
recording = PerThread[Recording | None](None)


@contextlib.contextmanager
def recorded(plan: Recording) -> Iterator[None]:
    """Context in which this thread records and nothing runs. Its end restores storages, device
    data, counters and the compile log. Other threads wait. Raises RuntimeError if nested.
    """
    with SYNC_LOCK, LOCK, compile_log.unchanged(), pace.unchanged():
        # A plan inside a plan would take the programs of the outer one's step.
        if recording.value is not None:
            raise RuntimeError("spmd.plan: called by the step that is being planned")
        live, aside, cached = (
            LIVE[:],
            ASIDE[:],
            [(row, row[0].value, row[0].stamp) for row in READ],
        )
        deferred.finish()
        log = UndoLog(is_step=True)
        UNDO.append(log)
        snapshot = _snapshot([*live, *aside], log)
        # Views keep values for the next read; in here they would be values of the step that is
        # planned.
        READ.clear()
        recording.value = plan
        try:
            yield
        finally:
            recording.value = None
            UNDO.remove(log)
            forget_reads()
            log.undo()
            earlier = {node for node, *_ in snapshot}
            # Before the ops are put back: a kept program reads ops with the operands of the
            # recording.
            for graph in plan.programs:
                _copy_earlier_nodes(graph, earlier)
            for node, op, operands, numbers in snapshot:
                node.op, node.operands, node.numbers = op, operands, numbers
            _replace_recorded([*LIVE, *ASIDE], log.first)
            LIVE[:], ASIDE[:] = live, aside
            for ref in live:
                if (storage := ref()) is not None:
                    storage.listed = True
            for row, value, stamp in cached:
                row[0].value, row[0].stamp = value, stamp
                READ.append(row)


def _snapshot(
    refs: "Sequence[weakref.ref[Storage]]", log: UndoLog
) -> list[tuple[Node, OpSpec, Sequence[Value], Sequence[float | int]]]:
    """Notes these storages in the log; returns the ops behind them, each with its present parts."""
    storages = [storage for ref in refs if (storage := ref()) is not None]
    for storage in storages:
        log.note(storage)
    nodes = topological(
        [value for storage in storages for value in (*(storage.past or ()), storage.value)]
    )[0]
    return [(node, node.op, node.operands, node.numbers) for node in nodes]


def _copy_earlier_nodes(graph: Graph, earlier: set[Node]) -> None:
    """Gives a recorded program copies of ops from before the context, as those ops get back the
    operands that the recording replaced."""
    copies: dict[object, Value] = {}
    for index, node in enumerate(graph.nodes):
        if node in earlier:
            copy = graph.nodes[index] = node.with_operands(node.operands)
            copy.serial = node.serial
            copies.update(zip(map(value_name, results(node)), results(copy), strict=True))
    graph.roots[:] = [copies.get(value_name(root), root) for root in graph.roots]
    replace_operands(copies, graph.nodes)


def _replace_recorded(refs: "Sequence[weakref.ref[Storage]]", first: int) -> None:
    """Gives storages that outlive the context abstract data for values recorded in it (serial
    `first` or more), which never run."""
    for ref in refs:
        storage = ref()
        if storage is None:
            continue
        # The caller resets both lists, and sets the flag of the storages that it lists again.
        storage.listed = False
        maker = origin(storage.value)
        if maker is not None and maker.serial >= first:
            sharding = (storage.sharding or devices.default_sharding()).closed()
            storage.value = DeviceData(storage.meta, sharding=sharding, is_abstract=True)
            storage.value.holder = storage.ref
            storage.past = storage.data = None
