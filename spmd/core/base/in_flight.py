"""Launched programs of XLA's CPU client that may still run: their number is limited so that none waits for a thread.

XLA takes 32 programs in flight on a device. The launch of another one over several devices waits on a thread of the
client's pool, and a program in flight that needs this thread never ends (docs/decisions/thread-pools.md).
"""

import contextlib
import threading
from collections import deque
from typing import Any

import jax

from . import forking, spans

# Together they stay below XLA's 32 on every device.
_MOST_OVER_SEVERAL = 16
_MOST_ON_ONE = 8

# A result of each program over several devices, in the order of their launches. XLA runs these one at a time and in
# that order, whatever their devices, so that the end of one implies the end of every program before it.
_over_several: "deque[jax.Array]" = deque()
# The same for programs on one device each, where there are several. They have no order but that of their data.
_on_one: "deque[jax.Array]" = deque()
_LOCK = forking.survives_fork(threading.Lock())


def make_room(num_devices: int) -> None:
    """Waits, at the limit of programs in flight, until a program over so many devices may be launched.

    Errors of a program are raised where its results are read.
    """
    if num_devices > 1:
        forget_done()
        if len(_over_several) >= _MOST_OVER_SEVERAL:
            # A result that was donated to a later program reports nothing; the newest one has no reader yet.
            _wait(next((array for array in list(_over_several) if not array.is_deleted()), None))
            forget_done()
    elif len(_on_one) >= _MOST_ON_ONE:
        # A donated result is an input of a program whose result was not donated, or was donated as well.
        for array in list(_on_one):
            if not array.is_deleted():
                _wait(array)
        forget_done()


def note(result: jax.Array) -> None:
    """Notes a launched program by one of its results; does nothing except on several CPU devices."""
    devices = result.sharding.device_set
    first: Any = next(iter(devices))  # jax has no type for devices
    if first.platform != "cpu":
        return
    if len(devices) > 1:
        _over_several.append(result)
    elif first.client.local_device_count() > 1 and not is_done(result):
        _on_one.append(result)


def forget_done() -> None:
    """Drops the results of programs that have ended."""
    with _LOCK:
        if all(map(is_done, _on_one)):
            _on_one.clear()
        ended = [i for i, array in enumerate(list(_over_several), 1) if not array.is_deleted() and is_done(array)]
        for _ in range(max(ended, default=0)):
            _over_several.popleft()


def is_done(array: jax.Array) -> bool:
    """True once the program that computed an array has run, or if the array was donated since."""
    return array.is_deleted() or array.is_ready()  # type: ignore[attr-defined]


def _wait(array: jax.Array | None) -> None:
    if array is not None:
        waiting = spans.span("wait", lambda: {"for": "room among the programs in flight"})
        with waiting, contextlib.suppress(jax.errors.JaxRuntimeError):
            array.block_until_ready()


def _forget() -> None:
    _over_several.clear()
    _on_one.clear()


forking.on_bad_fork(_forget)
