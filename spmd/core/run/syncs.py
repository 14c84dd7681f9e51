"""The sync: runs what is pending, or returns the program that it would run."""

# Why a sync returns while its programs run: PJRT is asynchronous, and the host records the next
# step meanwhile. Only a read waits; errors of a program that runs are raised by a later sync or
# read.

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..base import compile_log, counters, in_flight, interrupt, trace_rows
from ..base.compile_record import CompileRecord
from ..base.pace import pace
from ..base.state import PerThread, active_observation
from ..graph.graph import (
    DeviceData,
    Graph,
    Value,
    is_data,
    replace_operands,
    topological,
    value_name,
)
from ..graph.source import ends_at_user_line, user_line
from ..passes import on_host
from ..programs import compiler
from ..record import body, recorders
from ..record.annotations import unmarked_op
from ..record.record import NOWHERE, record
from ..record.storage import LIVE, LOCK, SYNC_LOCK, Storage, forget_reads, pending
from ..record.tensor import XlaTensor
from ..record.views import read
from . import executables, inlined_calls
from .execute import roots_of, run
from .failed import give_up
from .initialization import impure
from .pjrt import processes
from .recording import recording
from .schedule import meshes_met


@dataclass(frozen=True, slots=True)
class Synced:
    """The record of one sync.

    Attributes:
        line: the user's line of the sync, or of the read that needed it.
        num_tensors: the number of computed values.
        num_programs: the number of started programs, which may still run.
        compiled: the compile log of this sync, oldest first.
    """

    line: str
    num_tensors: int
    num_programs: int
    compiled: tuple[CompileRecord, ...]


# Called after each sync, in order, with its record.
AFTER: "OrderedDict[int, Callable[[Synced], object]]" = OrderedDict()


# whether the thread is calling the functions of AFTER; syncs that they start are not reported
_notifies = PerThread(False)


class Watch:
    """Counts the programs run and compiled since it was made, for the functions in `AFTER`."""

    def __init__(self) -> None:
        self.is_on = bool(AFTER) and recording.value is None and not _notifies.value
        if self.is_on:
            self.num_runs, self.last_compiled = counters.counter("runs"), compile_log.last()

    def notify(self, num_tensors: int) -> None:
        """Calls the functions in `AFTER`; the caller holds no lock."""
        if not self.is_on:
            return
        num_programs = max(counters.counter("runs") - self.num_runs, 0)
        synced = Synced(
            str(user_line()), num_tensors, num_programs, compile_log.since(self.last_compiled)
        )
        with _notifies.held(True):
            for function in [*AFTER.values()]:
                function(synced)


@ends_at_user_line
def sync(*, wait: bool = False, for_read: bool = False) -> None:
    """Runs everything that this thread has recorded, as one program, and returns at once unless
    `wait`.

    Ops that other threads have recorded run where these ops need them, or where the threads have
    ended. State that depends on constants and random keys alone (initialization) runs first, as a
    program of its own. With `wait` it returns when the devices are done. for_read: the sync is for
    the read of a value. Errors: see `spmd.sync`.
    """
    if body.names.value:
        raise body.body_error(
            "spmd.sync()", "ops recorded there run only as part of the loop; call it outside"
        )
    # The trace shows recording and sync as two rows; recording has no end of its own.
    trace_rows.end_recording()
    with trace_rows.span("sync"):
        _sync(wait=wait, for_read=for_read)


def settle_by_host(storages: list[Storage], count: Value | None = None) -> list[Storage]:
    """Computes the host's part of pending storages (see `on_host.decided`); returns the others."""
    is_recorded = recording.value is not None or active_observation.value is not None
    if is_recorded or (count is None and not on_host.OWN):
        return storages
    values = [storage.value for storage in storages]
    data = on_host.decided(values, count)
    replace_operands(data, topological(values)[0])
    for storage in storages:
        if (name := value_name(storage.value)) in data:
            storage.settle(data[name])
    forget_reads()
    return [storage for storage in storages if type(storage.value) is not DeviceData]


# Called by each sync before it collects what is pending; one that has run all of it returns the
# numbers of results and of ops.
instead: list[Callable[[], tuple[int, int] | None]] = []

# Called when a sync has waited for the devices.
after_wait: list[Callable[[], None]] = []


def _sync(*, wait: bool, for_read: bool) -> None:
    """`sync` without its checks: collects the pending storages, runs them, and restarts the
    counts."""
    # At each sync: a notebook restores Python's own handlers whenever it runs code.
    interrupt.watch()
    if processes.several():
        # A dead tensor in a reference cycle would be a result of one process's program and not of
        # another's.
        processes.collect_garbage()
    with SYNC_LOCK, LOCK, interrupt.later():
        watch = Watch()
        launched = next(filter(None, (launch() for launch in instead)), None)
        storages = (
            []
            if launched
            else settle_by_host(
                pending()
                if recording.value is not None
                else [
                    storage
                    for storage in pending()
                    if storage.sharding is None or not _is_far_state(storage)
                ]
            )
        )
        num_iterations, num_ops = counters.counter("loop_iterations"), pace.recorded_ops
        num_tensors, num_nodes = launched or (len(storages), 0)
        if storages:
            counters.add("syncs")
            try:
                num_nodes = run(storages, user_line(), for_read=for_read)
                if recording.value is None:
                    counters.add_sample("TensorsGraphSize", num_nodes)
            except Exception as error:
                give_up(storages, error)
                raise
        _unlist_settled()
        had_loop = num_iterations < counters.counter("loop_iterations")
        pace.restart(num_ops, had_loop=had_loop)
        if not had_loop:
            # The length of a usual step, by which a loop that forgets to sync is recognised.
            recorders.longest_step.value = max(recorders.longest_step.value, num_nodes)
    # Outside of the locks: other threads record and run while this one waits.
    if wait:
        in_flight.wait()
        for note in after_wait:
            note()
    watch.notify(num_tensors)
    if (plan := recording.value) is not None:
        # After all programs of the sync, as a recording may end the script that is recorded here.
        plan.synced()


def _is_far_state(storage: Storage) -> bool:
    """True for the initial value of a parameter or buffer on devices that are not here: it is
    planned, never run."""
    sharding = storage.sharding
    return (
        sharding is not None
        and sharding.target is not None
        and storage.is_state
        and not impure([storage.value])
    )


def _unlist_settled() -> None:
    """Removes storages that have data by now from LIVE; pending ones of other threads stay."""
    for ref in LIVE:
        if (storage := ref()) is not None:
            storage.listed = not is_data(storage.value)
    LIVE[:] = [ref for ref in LIVE if (storage := ref()) is not None and storage.listed]
    forget_reads()


def stablehlo(tensors: Sequence[XlaTensor] | None = None, dialect: str = "stablehlo") -> str:
    """The StableHLO of these values, or of what the next sync would compile, with its sharding
    attributes; nothing runs. dialect: "hlo" for the same as HLO."""
    return _text_of(
        tensors,
        "get_stablehlo",
        lambda graph: compiler.lower_graph(executables.compiled_graph(graph)).as_text(dialect),
    )


def hlo(tensors: Sequence[XlaTensor] | None = None) -> str:
    """The HLO of these values, or of what the next sync would compile, as XLA has partitioned and
    optimised it: compiled, not run."""
    return _text_of(
        tensors,
        "get_hlo",
        lambda graph: executables.planned_for(graph, user_line()).executable.as_text(),
    )


def _text_of(
    tensors: Sequence[XlaTensor] | None, caller: str, text: Callable[[Graph], object]
) -> str:
    """The text of the graph of these tensors, or of all that is pending."""
    with SYNC_LOCK, LOCK:
        pending_storages = pending()  # deferred calls end here
        storages = pending_storages if tensors is None else list(map(_root_storage, tensors))
        # Nothing is pending: an empty text, as PyTorch/XLA returns.
        if not storages:
            return ""
        roots = roots_of(inlined_calls.inline(storages)[0])
        nodes, inputs = topological([value for value, _ in roots])
        mesh, *extra_meshes = meshes_met(storages, nodes, inputs).values()
        if extra_meshes:
            raise ValueError(
                f"{caller}: one program cannot span meshes with different devices, "
                f"{list(mesh.device_ids)} and {list(extra_meshes[0].device_ids)}; pass the tensors "
                "of one of them"
            )
        graph = executables.graph_of(roots, mesh, dies=lambda device_data: tensors is None)
        return str(text(graph))


def _root_storage(tensor: XlaTensor) -> Storage:
    """A storage whose recorded value is a tensor's: the tensor's own, or a new one for a view or
    for data."""
    storage, view = tensor._storage, tensor._view
    if view is None and type(storage.value) is not DeviceData:
        return storage
    value = read(tensor)
    meta = storage.meta if view is None else view.meta.layout
    if type(value) is DeviceData:
        value = record(unmarked_op(meta), (value,), (), NOWHERE)
    return Storage(value, meta, storage.sharding if view is None else view.sharding)
