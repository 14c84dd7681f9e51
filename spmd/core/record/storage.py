"""Storages: the value of a tensor and its views; the list of live ones."""

# Why storages are held by weak references: the results of a program are the values that are still
# reachable when a sync begins. A list of our own would keep every intermediate value of a step
# alive, as a result of its program.

import contextlib
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from ..base import forking
from ..graph.graph import DeviceData, Node, TupleElement, Value, is_unpadded, origin, topological
from ..graph.meta import Meta
from ..graph.store import next_serial
from ..sharding.value import Sharding
from . import recorders

# One lock for recording and running: a thread that runs the graph must not donate what another is
# about to read.
LOCK = forking.survives_fork(threading.RLock())
# The thread that runs the graph has this one, too, from the choice of what to run until the
# storages have the results; it is taken before LOCK, never inside it.
SYNC_LOCK = forking.survives_fork(threading.RLock())
# Ops with a lower serial than this are being compiled: another thread must not change them. 0: none
# are.
being_compiled = 0


@contextlib.contextmanager
def unlocked() -> Iterator[None]:
    """Lets other threads record while this one, which has SYNC_LOCK, compiles.

    Ops recorded earlier do not change meanwhile (see `may_change`).
    """
    global being_compiled
    being_compiled = next_serial()
    lock_state = LOCK._release_save()  # type: ignore[attr-defined]  # however often this thread holds it
    try:
        yield
    finally:
        LOCK._acquire_restore(lock_state)  # type: ignore[attr-defined]
        being_compiled = 0


def may_change(node: Node) -> bool:
    """True unless a recorded op is in a graph that another thread compiles."""
    return node.serial >= being_compiled


class Storage:
    """The value that a tensor and all its views share.

    Attributes:
        value: data, or the node that computes it. stamp: changes with the value.
        sharding: requested by the user, kept through in-place writes.
        reads: the shardings of reads that differ from the stored one (`record.reads.Reads`).
        home: the sharding in which the last run left the value.
        is_state: True for a module's Parameter or buffer, whose initial value has a program of its
            own. is_parameter: True for a Parameter.
        past: the values since the last sync; the initial value of state is one of them.
        data: the device data before the first of these values, restored if they fail.
        recorder: the thread that recorded the value.
        needed: (stamp, count) of the syncs of other threads that computed the value and did not
            store it.
        ref: a weak reference to this storage.
        views: the tensors that are views and known to autograd (see `record.view_rebase`).
    """

    __slots__ = (
        "__weakref__",
        "data",
        "home",
        "is_parameter",
        "is_state",
        "listed",
        "meta",
        "needed",
        "past",
        "reads",
        "recorder",
        "ref",
        "sharding",
        "stamp",
        "value",
        "views",
    )

    def __init__(self, value: Value, meta: Meta, sharding: Sharding | None = None):
        self.value = value
        self.meta = meta
        self.stamp = 0
        self.sharding = sharding
        self.home: Sharding | None = None
        self.reads: Any = None
        self.is_state = self.is_parameter = False
        self.past: list[Value] | None = None
        self.data: DeviceData | None = None
        self.listed = False
        self.recorder = recorders.number() if recorders.are_several else 0
        self.needed = (-1, 0)
        self.ref = weakref.ref(self)
        self.views: set[weakref.ref[Any]] | None = None
        if type(value) is DeviceData:
            value.holder = self.ref
        else:
            LIVE.append(self.ref)
            self.listed = True

    def __deepcopy__(self, memo: object) -> None:
        """Returns None: code that copies all attributes of a tensor (fastai) must not copy its
        storage. `deepcopy(tensor)` does."""

    # A signal's handler may raise between any two lines: in this order nothing is lost then.

    def write(self, value: Value) -> None:
        """Replaces the value, as an in-place op does."""
        if UNDO:
            for log in UNDO:
                log.note(self)
        # A failed run restores the device data; a recorded value is one of the past.
        old = self.value
        if type(old) is DeviceData:
            self.data = old
        elif self.past is None:
            self.past = [old]
        else:
            self.past.append(old)
        if type(value) is DeviceData:
            value.holder = self.ref
            self.past = self.data = None  # earlier values wait for no sync any more
        else:
            self.recorder = recorders.number() if recorders.are_several else 0
            if not self.listed:
                LIVE.append(self.ref)
                self.listed = True
        self.stamp += 1
        self.value = value

    def settle(self, device_data: DeviceData) -> None:
        """Takes the result of a run."""
        if UNDO:
            note_layout(self)
        device_data.holder = self.ref
        # `reset` and `set_home`, without their calls: this runs for each result of a step.
        self.stamp += 1
        self.value = device_data
        self.past = self.data = None
        self.home = device_data.sharding
        if self.sharding is not None and self.sharding.is_open:
            self.sharding = device_data.sharding

    def reset(self, value: Value) -> None:
        """Replaces the value and forgets its earlier ones."""
        self.stamp += 1
        self.value = value
        self.past = self.data = None

    def settle_unpadded(self, unpadded: Node, sharding: Sharding | None) -> None:
        """Takes the unpadded view of a padded result. It is not pending: its data is computed."""
        self.reset(unpadded)
        self.set_home(sharding)
        device_data = unpadded.operands[0]
        assert type(device_data) is DeviceData, "the view reads a result"
        device_data.holder = self.ref

    def set_home(self, sharding: Sharding | None) -> None:
        """Sets the sharding in which a run left the value; it replaces an annotation with open
        dims."""
        self.home = sharding
        if self.sharding is not None and self.sharding.is_open:
            self.sharding = sharding


class UndoLog:
    """Storages and device data as they were before a recording that is taken back at its end.

    The recording is a loop's body, whose values are undone, or a step that never runs (`is_step`),
    of which nothing remains, shardings included. Storages and data created meanwhile are not noted.
    """

    def __init__(self, *, is_step: bool = False) -> None:
        self.first = next_serial()
        self.is_step = is_step
        self.storages: dict[weakref.ref[Storage], tuple[Any, ...]] = {}  # weak: keeps none alive
        self.inputs: dict[DeviceData, Sharding | None] = {}

    def note(self, storage: Storage) -> None:
        """Notes a storage before its first change, unless it is newer than the recording."""
        if storage.ref not in self.storages and value_serial(storage.value)[0] < self.first:
            past = None if storage.past is None else list(storage.past)
            state = storage.stamp, storage.sharding, storage.home, storage.is_state
            self.storages[storage.ref] = (
                storage.value,
                past,
                storage.data,
                storage.recorder,
                *state,
            )

    def values(self) -> dict[Storage, Value]:
        """The noted storages that are alive, in the order of their first writes, each with its
        value from before."""
        return {
            storage: state[0]
            for ref, state in self.storages.items()
            if (storage := ref()) is not None
        }

    def undo(self) -> None:
        """Restores storages and device data."""
        for ref, (value, past, data, recorder, *state) in self.storages.items():
            storage = ref()
            if storage is None:
                continue
            storage.value, storage.past, storage.data, storage.recorder = (
                value,
                past,
                data,
                recorder,
            )
            if self.is_step:
                storage.stamp, storage.sharding, storage.home, storage.is_state = state
            else:
                storage.stamp += 1  # values that views of it have cached meanwhile are read again
            if type(value) is DeviceData:
                value.holder = ref
            elif not storage.listed:
                LIVE.append(ref)
                storage.listed = True
        for device_data, sharding in self.inputs.items():
            device_data.sharding = sharding


# The logs of the recordings in progress, the innermost last.
UNDO: list[UndoLog] = []


def note_layout(storage: Storage, device_data: DeviceData | None = None) -> bool:
    """Notes a storage, or device data, before its sharding changes; returns True if this is part of
    a step that never runs."""
    if not UNDO:
        return False
    steps = [log for log in UNDO if log.is_step]
    for log in steps:
        log.note(storage)
        if device_data is not None:
            log.inputs.setdefault(device_data, device_data.sharding)
    return bool(steps)


# Storages whose value is a recorded op, in the order in which they became so; dead ones are dropped
# at the sync.
LIVE: list["weakref.ref[Storage]"] = []
# Storages whose ops could not be compiled: no sync runs them before they are read or an annotation
# is corrected.
ASIDE: list["weakref.ref[Storage]"] = []


def requeue(is_mended: Callable[[Sequence[Node], Sequence[DeviceData]], bool]) -> None:
    """Returns storages that were set aside to the next sync: those whose ops and data `is_mended`
    accepts."""
    with LOCK:
        aside, ASIDE[:] = ASIDE[:], ()
        for ref in aside:
            storage = ref()
            if storage is None or storage.listed or type(storage.value) is DeviceData:
                continue
            if is_mended(*topological([storage.value])):
                LIVE.append(ref)
                storage.listed = True
            else:
                ASIDE.append(ref)


# Called before pending storages are looked at.
BEFORE_PENDING: list[Callable[[], None]] = []

# The views that keep their value for the next read, each with its storage and the thread that read
# it, since the last sync.
READ: list[tuple[Any, "weakref.ref[Storage]", int]] = []


def note_read(view: Any, storage: Storage) -> None:
    """Notes a view with a cached value."""
    READ.append((view, storage.ref, recorders.number() if recorders.are_several else 0))


def forget_reads(ran: Collection[Node] | None = None) -> None:
    """Drops the values that views cache: a cached value keeps the memory of past ops.

    ran: the ops of finished iterations. With it, and for reads of other threads, pending ops may
    read cached values; only stale ones and those of `_has_waited` are dropped.
    """
    runs_here = recorders.run_condition()
    remaining = []
    for view, ref, reader in READ:
        if (
            (ran is not None or not runs_here(reader))
            and (storage := ref()) is not None
            and view.stamp == storage.stamp
            and not _has_waited(view.value, ran or ())
        ):
            remaining.append((view, ref, reader))
        else:
            view.value, view.stamp = None, -1
    READ[:] = remaining


def drop_reads(since: int) -> None:
    """Drops the values that views have cached since `READ` had this length."""
    for view, *_ in READ[since:]:
        view.value, view.stamp = None, -1
    del READ[since:]


def _has_waited(value: Value, ran: Collection[Node]) -> bool:
    """True for a value of these ops that depends on more than its storage's data: `reads.renew`
    made it wait for other ops, whose data may be overwritten by now."""
    node = origin(value)
    while node is not None and node in ran:
        producers = [producer for producer in map(origin, node.operands) if producer is not None]
        # A view's op has one operand: with more it waits for other values.
        if producers and len(node.operands) > 1:
            return True
        node = producers[0] if producers else None
    return False


def _waiting() -> list[Storage]:
    """Live storages with a pending value, of all threads."""
    for prepare in BEFORE_PENDING:
        prepare()
    return [
        storage
        for ref in LIVE
        if (storage := ref()) is not None
        and type(storage.value) is not DeviceData
        and not is_unpadded(storage.value)
    ]


# Return, for each value, whether a sync can run it.
can_run: list[Callable[[Sequence[Value]], list[bool]]] = []


def pending() -> list[Storage]:
    """The live storages with a pending value of this thread or of an ended one, in the order of
    recording.

    That order is the same for the first step, which creates optimizer state, and for later ones,
    which write it: they share a program.
    """
    forking.check()
    runs_here = recorders.run_condition()
    storages = [storage for storage in _waiting() if runs_here(storage.recorder)]
    for runs_of in can_run:
        runs = runs_of([storage.value for storage in storages])
        storages = [storage for storage, is_run in zip(storages, runs, strict=True) if is_run]
    return sorted(storages, key=lambda storage: value_serial(storage.value))


def pending_except(storages: Iterable[Storage]) -> list[Storage]:
    """The live storages of all threads with a pending value, except these."""
    excluded = set(storages)
    return [storage for storage in _waiting() if storage not in excluded]


def value_serial(value: Value) -> tuple[float, int]:
    """The sort key of values by their recording."""
    return (value.node.serial, value.index) if type(value) is TupleElement else (value.serial, 0)  # type: ignore[union-attr]
