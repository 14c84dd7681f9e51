"""Arrays that are lent to readers outside the lock: a program that would overwrite one takes a copy
of it instead."""

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np

from ..base import counters, forking


@dataclass(eq=False)
class Lender:
    """A reader that keeps arrays for some time. room: the most bytes that copies of its arrays may
    take; a launch that needs more waits until enough arrays are given back. waited, copying: the
    seconds of these waits and copies."""

    room: Callable[[], float] = lambda: math.inf
    waited: float = field(default=0.0, init=False)
    copying: float = field(default=0.0, init=False)

    def lend(self, array: jax.Array) -> None:
        """Keeps an array from being overwritten; the caller holds the lock of recording."""
        with _changed:
            array_id = id(array)
            if array_id not in LENT:
                LENT[array_id] = _Lent(weakref.ref(array, partial(LENT.pop, array_id)))
            LENT[array_id].lenders.append(self)

    def give_back(self, array: jax.Array) -> None:
        """Ends one `lend` of an array; needs no lock."""
        with _changed:
            loan = LENT[id(array)]
            loan.lenders.remove(self)
            if not loan.lenders:
                del LENT[id(array)]
            _changed.notify_all()


@dataclass(eq=False)
class _Lent:
    """An array that is lent, weakly."""

    ref: "weakref.ref[jax.Array]"
    lenders: list[Lender] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The bytes on the devices of this process."""
        array = self.ref()
        return 0 if array is None else bytes_here(array)


# Reentrant, as a collection inside may run a user's `__del__`, which reads a tensor.
_changed = threading.Condition(forking.survives_fork(threading.RLock()))
# Arrays do not hash. The weak reference removes the row before another array can have the id.
LENT: dict[int, _Lent] = {}  # by the array's id
READERS = Lender()  # reads that are over soon, and other libraries, which never give back


def bytes_here(array: jax.Array) -> int:
    """Returns the bytes of an array on devices of this process."""
    shard_shape, devices = (
        array.sharding.shard_shape(array.shape),
        array.sharding.addressable_devices,
    )
    return int(np.prod(shard_shape)) * array.dtype.itemsize * len(devices)


def is_lent(array: jax.Array | None) -> bool:
    """True if a reader outside the lock has this array."""
    return id(array) in LENT


def spare(buffers: list[Any], donated: Iterable[int]) -> None:
    """Replaces lent buffers among the donated ones, given by index, by copies, which may be
    overwritten."""
    # Without the lock, as this runs at each launch, and nothing is lent at most of them.
    if not LENT:
        return
    donated_indices = list(donated)
    with _changed:
        # A lender without room for copies must give arrays back first.
        while waiting_lender := _short_of_room(
            [LENT[id(buffers[i])] for i in donated_indices if is_lent(buffers[i])]
        ):
            begin = time.perf_counter()
            _changed.wait()
            waiting_lender.waited += time.perf_counter() - begin
        lent_indices = [i for i in donated_indices if is_lent(buffers[i])]
        lenders = {lender for i in lent_indices for lender in LENT[id(buffers[i])].lenders}
    begin = time.perf_counter()
    for i in lent_indices:
        counters.add("buffers_spared")
        buffers[i] = jax.device_put(buffers[i], buffers[i].sharding, may_alias=False)
    for lender in lenders:
        lender.copying += time.perf_counter() - begin


def _short_of_room(loans: list[_Lent]) -> Lender | None:
    """Returns a lender without room for copies of its arrays, or None."""
    for lender in {lender for loan in loans for lender in loan.lenders}:
        if sum(loan.nbytes for loan in loans if lender in loan.lenders) > lender.room():
            return lender
    return None
