"""Reads of values: each waits for what it needs, and keeps its buffer from being donated meanwhile."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from .. import interrupt, metrics
from ..compile import failing
from ..config import config
from ..ir.errors import AbstractError
from ..ir.graph import Leaf, Node, is_data, origin
from ..ir.source import describe, user_line
from ..lazy import body, recorders
from ..lazy.cell import BARRIER, LIVE, LOCK, Cell, forget_reads, pending_elsewhere
from ..passes import dynamic
from ..pjrt import agreement, devices, processes, transfer
from ..sharding.value import Sharding
from .abstract import recording
from .barrier import Watch, sync
from .execute import run
from .failed import FINAL, depends, give_up
from .placement import wanted

_IN_A_PLAN = (
    "which has no value: spmd.plan records the step and runs nothing. Give it the step alone, not the loop that prints "
    "or reads its results"
)


def materialise(cell: Cell, call: str = "a read", *, together: bool = False) -> None:
    """Has a cell's value computed: by the host where it is a number that the host knows, else by a barrier.

    With several processes only those that all call it `together` start a barrier. The caller does not hold LOCK: the
    barrier may be another thread's, which needs it.
    """
    if type(cell.value) is not Leaf and body.names():
        if body.is_inside(cell.value, {}):
            body.refuse(
                call,
                f"{cell.meta!r} has another value in each turn (or on each shard) and none while the body is recorded; "
                "choose with torch.where or spmd.cond, or return it and read it after the loop",
            )
        return _run_needed(cell)
    if type(cell.value) is not Leaf and processes.several() and not together:
        raise agreement.ProcessError(
            f"{call} at {user_line()}: {cell.meta!r} has not run yet, and with several processes a read runs nothing, "
            "as every program is one of all processes. Call spmd.sync() in every process first."
        )
    if type(cell.value) is not Leaf and cell.meta.numel == 1:
        _settle_by_host(cell)
    if type(cell.value) is not Leaf and recording() is not None:
        node = origin(cell.value)
        assert node is not None, "only a leaf has none"
        raise AbstractError(f"{call} at {user_line()} reads {describe(node)}, {_IN_A_PLAN}")
    if type(cell.value) is not Leaf:
        if config.sync_on_read == "needed":
            _run_needed(cell)
        else:
            _run_all_or_needed(cell)


def _run_all_or_needed(cell: Cell) -> None:
    """A barrier for the sake of one value: where another value's op cannot be compiled, what this one needs still can.
    The other's error comes again from its own read."""
    try:
        sync(for_read=True)
    except FINAL:
        raise
    except Exception as error:
        if depends(cell, error):
            raise
    if type(cell.value) is not Leaf:
        _run_needed(cell)


def _with_step(cell: Cell) -> list[Cell]:
    """The cells to be run for a value: where another thread has written it over data, in the midst of a step, all that
    this step has written, so that the next of them is data by then."""
    if not recorders.is_several or cell.data is None:
        return [cell]
    # No barrier sees a cell that was set aside after a failure; the one that is read is run all the same.
    step = [other for other in pending_elsewhere([cell]) if other.data and other.recorder == cell.recorder]
    return [cell, *step]


def _run_needed(cell: Cell) -> None:
    with BARRIER, LOCK, interrupt.later():
        watch = Watch()
        cells = _with_step(cell)
        try:
            run(cells, user_line(), donate=False)
        except Exception as error:
            give_up(cells, error)
            raise
        forget_reads()
    watch.tell(1)


# Elements of what the host computes where no program runs: a mask over all tokens of a batch.
_LARGEST_IN_A_PLAN = 1 << 24


def _settle_by_host(cell: Cell) -> None:
    """Gives the cell its value where the host can make it of data and other work, which need not be run, is pending."""
    with LOCK:
        nodes = dynamic.few_small(cell.value, *([] if recording() is None else [_LARGEST_IN_A_PLAN]))
        if nodes is not None and (recording() is not None or _is_more_pending(nodes)):
            cell.settle(dynamic.known(cell.value, nodes))


def _is_more_pending(nodes: Sequence[Node]) -> bool:
    """Whether anything but these waits to be run by this thread; what was recorded last is asked first."""
    is_run_here = recorders.is_run_here()
    for ref in reversed(LIVE):
        cell = ref()
        if cell is None or is_data(cell.value) or origin(cell.value) in nodes:
            continue
        if is_run_here(cell.recorder):
            return True
    return False


class Lease(NamedTuple):
    """Where a leaf's data is while someone reads it outside the lock: on the host, or in a buffer."""

    leaf: Leaf
    host: np.ndarray | None
    array: jax.Array | None
    sharding: Sharding | None

    def placed(self) -> tuple[jax.Array, Sharding]:
        """The buffer of a value that is on devices, and how it lies."""
        assert self.array is not None and self.sharding is not None
        return self.array, self.sharding


@contextlib.contextmanager
def leased(cell: Cell, call: str = "a read", *, on_device: bool = False, together: bool = False) -> Iterator[Lease]:
    """The cell's value, for reading outside the lock: inside this context no other thread's barrier donates its buffer.

    on_device: host data is uploaded first. call, together: see `host_value`.
    """
    lease = None
    while lease is None:  # once, unless another thread writes the cell just now
        materialise(cell, call, together=together)
        lease = _lease(cell, call, on_device=on_device)
    try:
        yield lease
    finally:
        with LOCK:
            lease.leaf.shared -= 1


def _lease(cell: Cell, call: str, *, on_device: bool) -> Lease | None:
    """A lease of a cell that has data."""
    with LOCK:
        leaf = cell.value
        if type(leaf) is not Leaf:
            return None
        if leaf.is_abstract:
            why = "it has a shape, a layout and no data" if recording() is None else _IN_A_PLAN
            raise AbstractError(f"{call} at {user_line()}: {leaf.meta!r} is abstract: {why}")
        leaf.check()
        if on_device and leaf.host is not None:
            lies = wanted(leaf) or devices.default_sharding()
            leaf.take(transfer.upload(leaf.host, lies), lies)
            cell.lie(lies)
        leaf.shared += 1
        return Lease(leaf, leaf.host, None if leaf.host is not None else leaf.placed()[0], leaf.sharding)


def host_value(cell: Cell, call: str = "a read", *, together: bool = False) -> np.ndarray:
    """The whole value of a cell as a host array of the logical shape; `call` is what the user called.

    together: all processes read it at once, so that pieces of other processes can come. Raises ProcessError where they
    would have to and do not.
    """
    with leased(cell, call, together=together) as lease:
        if lease.host is not None:
            return lease.host
        metrics.add("host_reads")
        leaf = lease.leaf
        try:
            return _download(lease, call, together=together)
        except jax.errors.JaxRuntimeError as error:
            explained = failing.late(leaf.maker() if leaf.maker is not None else None, error)
            leaf.gone = str(explained)
            raise explained from error


def _download(lease: Lease, call: str, *, together: bool) -> np.ndarray:
    buffer, lies = lease.placed()
    shape = lease.leaf.meta.shape
    if not transfer.is_whole_here(buffer):
        if not together:
            raise agreement.ProcessError(
                f"{call} at {user_line()}: {lease.leaf.meta!r} is split over several processes ({lies!r}); "
                "spmd.full_tensor(t), called by every process, gives the whole of it"
            )
        lies, buffer = lies.replicated(), transfer.move(buffer, shape, lies, lies.replicated())
    return transfer.download(buffer, shape)
