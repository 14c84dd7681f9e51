"""Deferred calls: recorded calls whose op stands in the graph without operands and results.

`finish` adds both, as soon as something reads what they write, or looks at pending values. A step
of such calls that is equal to an earlier one runs without them (`steps.segments.equal_steps`).
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..base.interrupt import later
from ..base.tables import Bounded
from ..graph.graph import Node, Value
from . import recorders
from .record import at_once
from .storage import BEFORE_PENDING, LIVE, LOCK, UNDO, Storage


@dataclass(slots=True, eq=False)
class DeferredCall:
    """A deferred call. key: equal for calls that differ in their arguments and numbers alone.
    arguments: the operands that are not found by `finish`. is_read: False where it keeps values for
    a backward pass that has not come. steps: those with such a call, by their keys; None: of a call
    without state. pool: the gradients that it gives (`loops.gradient_pool.GradientPool`)."""

    node: Node
    key: Any
    arguments: Sequence[Value]
    finish: Callable[[], None]
    steps: Bounded[Any, Any] | None
    is_read: bool = True
    pool: Any = None
    recorder: int = field(init=False, default_factory=recorders.number)


calls: list[DeferredCall] = []  # in order
# assignments to watched storages: of values; of shardings and reads; and calls that write later
num_assigned = num_annotated = num_raised = 0


def increment_versions(tensors: Sequence[torch.Tensor]) -> None:
    """Raises autograd's versions of tensors that a call writes. Raises RuntimeError for tensors of
    inference mode, which have none."""
    global num_raised
    if tensors:
        num_raised += 1
        torch._C._increment_version(tensors)


def writes() -> tuple[int, int]:
    """The numbers of writes to watched storages, now and later."""
    return num_assigned, num_raised


def is_on() -> bool:
    """True where calls may be deferred: nothing that is recorded is taken back, or computed at
    once."""
    return not (UNDO or at_once.value)


def finish() -> None:
    """Gives the deferred calls their operands, and their results to storages, in order."""
    if not calls:
        return
    with LOCK, later():  # half of them would be half a step
        waiting, calls[:] = [*calls], []
        for call in waiting:
            with recorders.acting_as(call.recorder):
                call.finish()


BEFORE_PENDING.insert(0, finish)


def watch(storages: Sequence[Storage]) -> None:
    """Counts assignments to these storages from now on, and finishes deferred calls where one is
    read."""
    for storage in storages:
        storage.__class__ = _Watched


def _read(slot: Any) -> Callable[[Storage], Any]:
    read = slot.__get__

    def finished(storage: Storage) -> Any:
        if calls:
            finish()
        return read(storage)

    return finished


def _stamp_now(storage: Storage) -> int:
    if calls or _written:
        finish()
        with LOCK:
            written = [*_written.values()]
            _written.clear()
            for refs, number in written:
                for ref in refs:
                    if (one := ref()) is not None:
                        _stamp.__set__(one, _stamp.__get__(one) + number)
    return _stamp.__get__(storage)


# The count last: who has seen it sees the value.


def _assign(storage: Storage, value: Value) -> None:
    global num_assigned
    _set_value(storage, value)
    num_assigned += 1


def _annotated(slot: Any) -> Callable[[Storage, Any], None]:
    def annotate(storage: Storage, value: Any) -> None:
        global num_annotated
        slot.__set__(storage, value)
        num_annotated += 1

    return annotate


class _Watched(Storage):
    __slots__ = ()


_value, _stamp, _reads, _sharding = map(
    vars(Storage).__getitem__, ("value", "stamp", "reads", "sharding")
)
_set_value = _value.__set__
for _name, _attribute in (
    ("value", property(_read(_value), _assign)),
    ("stamp", property(_stamp_now, _stamp.__set__)),
    ("reads", property(_read(_reads), _annotated(_reads))),
    ("sharding", property(_sharding.__get__, _annotated(_sharding))),  # no call changes one
):
    setattr(_Watched, _name, _attribute)


def is_watched(storage: Storage) -> bool:
    """True after `watch`."""
    return type(storage) is _Watched


def values(storages: Sequence[Storage]) -> list[Value]:
    """The values of watched storages before the deferred calls."""
    return [*map(_value.__get__, storages)]


def forget(storages: Sequence[Storage]) -> None:
    """Drops the values of watched storages, without a look at deferred calls."""
    deque(map(_set_value, storages, itertools.repeat(None)), 0)


def count_up(refs: Sequence[Any]) -> None:
    """Gives watched storages new stamps, by weak references: as soon as one is read."""
    _written[id(refs)] = refs, _written.get(id(refs), (refs, 0))[1] + 1


# writes that no stamp shows yet: references to storages and the number of writes, by the id of the
# former
_written: dict[int, tuple[Sequence[Any], int]] = {}


def renew(storage: Storage, value: Value) -> None:
    """Gives a storage its first value, as a new one with the same sharding."""
    storage.reset(value)
    storage.home = None
    if not storage.listed:
        LIVE.append(storage.ref)
        storage.listed = True
