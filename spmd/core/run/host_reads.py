"""Reads of values: each waits for the ops that it needs, and keeps its buffer from being donated
meanwhile."""

# Why a read waits for the ops that it needs and runs all that is recorded: a read in the middle of
# a step, which ran only what it needs, would leave a rest that is another program than the step
# without the read.
#
# Why a read keeps its buffer from being donated and does not copy it: most reads are over before
# the next program runs, and a copy of a model's weights would double the memory in which a
# checkpoint is written.

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from ..base import counters, interrupt, trace_rows
from ..base.config import config
from ..base.state import PerThread
from ..graph.buffer_leases import READERS, Lender
from ..graph.errors import AbstractError
from ..graph.graph import DeviceData, is_data, is_unpadded, origin, value_name
from ..graph.source import Line, describe, user_line
from ..passes import on_host
from ..programs import failing
from ..record import body, recorders
from ..record.record import at_once
from ..record.storage import LOCK, SYNC_LOCK, Storage, forget_reads, pending, pending_except
from ..sharding.value import Sharding
from .execute import run
from .failed import FINAL, depends, give_up
from .pjrt import devices, processes, transfer
from .recording import recording
from .schedule import intended_sharding
from .syncs import Watch, settle_by_host, sync

_IN_A_PLAN = (
    "which has no value: spmd.plan and spmd.export record the step and run nothing. Give them the "
    "step alone, not the loop that prints or reads its results"
)


def materialise(storage: Storage, call: str = "a read", *, together: bool = False) -> None:
    """Computes a storage's value: on the host where it is a number that the host knows, else by a
    sync.

    With several processes a read that needs a sync waits until all processes have come to it.
    together: all have come already. The caller does not hold LOCK, which another thread's sync may
    need.
    """
    # While the body of a loop is recorded, a read runs the value's ops alone, none of the body's.
    if type(storage.value) is not DeviceData and body.names.value:
        if body.ops_on_stand_ins([storage.value]):
            raise body.body_error(
                call,
                f"{storage.meta!r} has another value in each iteration (or on each shard) and "
                "none while the body is recorded; choose with torch.where or spmd.cond, or return "
                "it and read it after the loop",
            )
        if storage.meta.numel == 1:
            _settle_by_host(storage)
        return None if is_data(storage.value) else _run_needed(storage)
    # A sync is a program of all processes: a read by one alone would hang in it.
    if (
        type(storage.value) is not DeviceData
        and processes.several()
        and not together
        and recording.value is None
    ):
        _come_together(storage, call)
    # A counter that a script prints is known to the host: a program for it would be compiled, and
    # cut the step in two.
    if type(storage.value) is not DeviceData and storage.meta.numel == 1:
        _settle_by_host(storage)
    plan = recording.value
    if type(storage.value) is not DeviceData and plan is not None:
        node = origin(storage.value)
        assert node is not None, "only device data has none"
        # Before the sync, so that a step that is planned ends at the user's read, not at a program
        # behind it.
        plan.read(
            storage.value,
            AbstractError(f"{call} at {user_line()} reads {describe(node)}, {_IN_A_PLAN}"),
        )
    # A list of tokens: a sync computes its tokens, and the host then joins them.
    lists = at_once.value
    if lists is not None and lists.is_token_list(storage.value):
        sync(for_read=True)
        lists.finish(storage)
    if type(storage.value) is not DeviceData:
        # PyTorch/XLA's way, for scripts that count on it.
        if config.sync_on_read == "needed":
            _run_needed(storage)
        else:
            _run_all_or_needed(storage)


def _come_together(storage: Storage, call: str) -> None:
    """Waits until all processes have come to this read, as all take part in its sync; raises
    ProcessError where one does something else."""
    event_text = f"{call} of {storage.meta!r}, a read that all processes must make"
    processes.agree(event_text, event_text.encode(), user_line())


def _run_all_or_needed(storage: Storage) -> None:
    """Syncs for one value. If an op of another value cannot be compiled, the ops of this one still
    run; the error is raised again by a read of the other."""
    is_padded = is_unpadded(storage.value)
    try:
        sync(for_read=True)
    except FINAL:
        raise
    except Exception as error:
        if depends(storage, error):
            raise
    if is_padded or not is_data(storage.value):
        _run_needed(storage)


def _with_step(storage: Storage) -> list[Storage]:
    """The storages to run for a read of one: if several threads record, all that the thread of this
    one has overwritten in its step, as later reads need these, too."""
    if not recorders.are_several or storage.data is None:
        return [storage]
    # Without former data a value is an initial one, and no part of a step.
    step = [
        pending_storage
        for pending_storage in pending_except([storage])
        if pending_storage.data and pending_storage.recorder == storage.recorder
    ]
    return [storage, *step]


def _run_needed(storage: Storage) -> None:
    """Runs only the ops that a value needs: inside a body, after a failed sync, or for
    `config.sync_on_read`."""
    with SYNC_LOCK, LOCK, interrupt.later():
        watch = Watch()
        storages = _with_step(storage)
        try:
            # Without donation: the rest of what is recorded still reads this data.
            run(storages, user_line(), donate=False)
        except Exception as error:
            give_up(storages, error)
            raise
        forget_reads()
    watch.notify(1)


def _settle_by_host(storage: Storage) -> None:
    """Computes a storage's value on the host where it can, without a program."""
    with LOCK:
        # In a plan a value may be larger: nothing runs, so that only the host can know it.
        largest = on_host.LARGEST if recording.value is None else on_host.LARGEST_IN_A_PLAN
        nodes = on_host.constant_ops(storage.value) or on_host.host_computable_ops(
            storage.value, largest
        )
        if nodes:
            storage.settle(on_host.computed(nodes)[value_name(storage.value)])


def settle_count(storage: Storage) -> None:
    """Computes a value that decides a count on the host, without a program, where the host can."""
    if config.pad_lengths and not body.names.value and not processes.several():
        with SYNC_LOCK, LOCK:
            if not is_data(storage.value):
                settle_by_host(pending(), storage.value)


# Called before each of the thread's reads of a value that is no constant number, with the storage
# and the read's text.
on_read = PerThread[Callable[[Storage, str], object] | None](None)


class Lease(NamedTuple):
    """A value's data during a read outside the lock: a host array, or a lent buffer.

    row: the value's row in the buffer, if that is a store's.
    """

    device_data: DeviceData
    host: np.ndarray | None
    array: jax.Array | None
    row: int | None
    sharding: Sharding | None

    def placed(self) -> tuple[jax.Array, Sharding]:
        """The buffer of a value that is on devices, and its sharding."""
        assert self.array is not None and self.sharding is not None
        return self.array, self.sharding


@contextlib.contextmanager
def leased(
    storage: Storage,
    call: str = "a read",
    *,
    on_device: bool = False,
    together: bool = False,
    padded: bool = False,
) -> Iterator[Lease]:
    """Lends the storage's value to a read outside the lock: inside this context no other thread's
    sync donates its buffer.

    on_device: host data is uploaded first. padded: padded data is lent with its padding. call,
    together: see `host_value`.
    """
    note = on_read.value
    if note is not None and (storage.meta.numel > 1 or on_host.constant_ops(storage.value) is None):
        note(storage, f"{call} at {user_line()}")
    lease = lent_to(
        READERS,
        storage,
        call,
        on_device=on_device,
        together=together,
        padded=padded,
        with_store=False,
    )
    try:
        yield lease
    finally:
        # Given back in any case: a lender that keeps it would make each later step copy it.
        if lease.array is not None:
            READERS.give_back(lease.array)


def lent_to(
    lender: Lender,
    storage: Storage,
    call: str,
    *,
    on_device: bool = True,
    together: bool = True,
    padded: bool = False,
    with_store: bool = True,
) -> Lease:
    """Lends a storage's value until `lender.give_back(lease.array)`; see `leased`. with_store: a
    row of a store is lent with its store, as copying it out would double a deep model's memory. A
    small store is lent to any read by the host, which keeps its host copy for the other rows."""
    while True:  # once, unless another thread writes the storage just now
        # Padded data is lent as it is: the unpadded view needs no program.
        if not padded or not is_unpadded(storage.value):
            materialise(storage, call, together=together)
        with LOCK:
            device_data = storage.value
            if padded and is_unpadded(device_data):
                (device_data,) = device_data.operands
            if type(device_data) is not DeviceData:
                continue
            device_data = _readable(device_data, call)
            if on_device and device_data.host is not None:
                target = intended_sharding(device_data) or devices.default_sharding()
                device_data.take(transfer.upload(device_data.host, target), target)
                storage.set_home(target)
            if device_data.host is not None:
                return Lease(device_data, device_data.host, None, None, device_data.sharding)
            rows, lends_store = device_data.store, with_store
            if rows is not None and not on_device:
                host = rows.on_host(device_data.row)
                if host is not None:
                    return Lease(device_data, host, None, None, device_data.sharding)
                is_small = len(rows) * device_data.meta.nbytes <= _SMALL
                lends_store |= is_small and transfer.is_readable_here(rows.placed())
            if lends_store:
                (array, row), sharding = device_data.buffer_and_row(), device_data.sharding
            else:
                (array, sharding), row = device_data.block_buffer(), None
            lender.lend(array)
            return Lease(device_data, None, array, row, sharding)


# The bytes of a store that come to the host sooner than a program copies one row out.
_SMALL = 1 << 20


def _readable(device_data: DeviceData, call: str) -> DeviceData:
    """The data, or in a recording its substitute on the host; raises the error of data that cannot
    be read."""
    if device_data.is_abstract:
        plan = recording.value
        why = "it has a shape, a layout and no data" if plan is None else _IN_A_PLAN
        error = AbstractError(f"{call} at {user_line()}: {device_data.meta!r} is abstract: {why}")
        if plan is None:
            raise error
        return DeviceData(
            device_data.meta, host=plan.read(device_data, error), sharding=device_data.sharding
        )
    device_data.check()
    return device_data


# Called after each read of a value that the devices have, with the user's call, the line, and the
# seconds.
after_read: list[Callable[[str, Line, float], None]] = []


def host_value(storage: Storage, call: str = "a read", *, together: bool = False) -> np.ndarray:
    """The full value of a storage as a host array of the logical shape; `call` is the function that
    the user called. Padded data is read with its padding, so that no length needs a program.

    together: all processes are known to read it at once; else they wait for each other where a
    program has to run, or shards of other processes are needed.
    """
    with leased(storage, call, together=together, padded=True) as lease:
        if lease.host is not None:
            return _without_padding(lease.host, storage)
        counters.add("host_reads")
        device_data, line, started = lease.device_data, user_line(), counters.now()
        try:
            with trace_rows.span("wait", lambda: {"for": f"{call} at {line}"}):
                array = _download(lease, storage, call, together=together)
        except jax.errors.JaxRuntimeError as error:
            # The program that failed was launched earlier; its error comes out at the first read of
            # a result.
            explained = failing.late(
                device_data.maker() if device_data.maker is not None else None, error
            )
            device_data.lost_reason = str(explained)
            raise explained from error
        for note in after_read:
            note(call, line, counters.now() - started)
        return _without_padding(array, storage)


def _without_padding(array: np.ndarray, storage: Storage) -> np.ndarray:
    shape = storage.meta.shape
    return array if array.shape == shape else np.ascontiguousarray(array[tuple(map(slice, shape))])


def _download(lease: Lease, storage: Storage, call: str, *, together: bool) -> np.ndarray:
    """The unsharded value of a lease on the host; shards of other processes are gathered first."""
    buffer, sharding = lease.placed()
    data = lease.device_data
    shape = data.meta.shape
    # A row may lie on one process's devices: whether all read it together is decided by its store.
    if not transfer.is_readable_here(buffer if data.store is None else data.store.placed()):
        if not together:
            _come_together(storage, call)
        if lease.row is None:
            buffer, sharding = data.placed()
        # Shards of other processes come by a program of all of them, which the agreement has made
        # certain.
        sharding, buffer = (
            sharding.replicated(),
            transfer.move(buffer, shape, sharding, sharding.replicated()),
        )
    if lease.row is None:
        return transfer.download(buffer, shape)
    # A copy, as a later program may overwrite the buffer; the next row is read in it.
    host = transfer.download(buffer, buffer.shape).copy()
    rows = lease.device_data.store
    if rows is not None:
        rows.host = buffer, host
    return host[lease.row, ...]
