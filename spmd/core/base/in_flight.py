"""The programs in flight: started, and perhaps still running. On XLA's CPU client their number is
limited, so that none waits for a thread.

The client takes 32 programs in flight on a device. The launch of another one over several devices
waits on a thread of its pool, and a program in flight that needs this thread never ends
(docs/decisions/thread-pools.md).
"""

# Why programs over several simulated devices are launched in one order, and only so many at a time:
# XLA's CPU client runs a device's part in a pool of threads. Two programs that wait for each
# other's threads in a collective never end.

import atexit
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from . import forking, trace_rows
from .state import held

Maker = Callable[[], Any]  # returns the program, a class of a floor above, or None


class Started(NamedTuple):
    """A started program. result: one of its arrays; maker: returns the program; event: its number
    among the events of all processes, 0 for none."""

    result: jax.Array
    maker: Maker
    launch_time: float
    event: int


_started: "deque[Started]" = deque(maxlen=64)  # those that may still run, the newest

# Together they stay below XLA's 32 on every device.
_MOST_OVER_SEVERAL = 16
_MOST_ON_ONE = 8

# A result of each program over several devices, in the order of their launches. XLA runs these one
# at a time and in that order, whatever their devices, so that the end of one implies the end of
# every program before it.
_over_several: "deque[jax.Array]" = deque()
# The same for programs on one device each, where there are several. They have no order but that of
# their data.
_on_one: "deque[jax.Array]" = deque()
_LOCK = forking.survives_fork(threading.Lock())


def make_room(num_devices: int) -> None:
    """Waits, at the limit of programs in flight, until a program over this number of devices may be
    launched.

    Errors of a program are raised where its results are read.
    """
    forget_done()
    if num_devices > 1:
        if len(_over_several) >= _MOST_OVER_SEVERAL:
            # A result that was donated to a later program reports nothing; the newest one has no
            # reader yet.
            _wait(next((array for array in list(_over_several) if not array.is_deleted()), None))
            forget_done()
    elif len(_on_one) >= _MOST_ON_ONE:
        # It is enough to wait for results that were not donated: a donated one was an input of a
        # later program.
        for array in list(_on_one):
            if not array.is_deleted():
                _wait(array)
        forget_done()


def note(result: jax.Array) -> None:
    """Counts a launched program, by one of its results, where the number in flight is limited: on
    several CPU devices."""
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
        while _started and is_done(_started[0].result):
            _started.popleft()
        if all(map(is_done, _on_one)):
            _on_one.clear()
        # One by one, in the order of their launches: all before the last that has ended have ended.
        ended = [
            i
            for i, array in enumerate(list(_over_several), 1)
            if not array.is_deleted() and is_done(array)
        ]
        for _ in range(max(ended, default=0)):
            _over_several.popleft()


def is_done(array: jax.Array) -> bool:
    """True once the program that computed an array has run, or if the array was donated since."""
    return array.is_deleted() or array.is_ready()  # type: ignore[attr-defined]


def _wait(array: jax.Array | None) -> None:
    if array is not None:
        waiting = trace_rows.span("wait", lambda: {"for": "room among the programs in flight"})
        with waiting, contextlib.suppress(jax.errors.JaxRuntimeError):
            array.block_until_ready()


_num_runs = 0


def stamp() -> int:
    """Returns a number that changes with each run. Values read under an older number do not belong
    to the graph being recorded."""
    return _num_runs


def note_run(result: jax.Array, maker: Maker, event: int = 0) -> None:
    """Notes a started program by one of its results, until it is done."""
    note_recorded()
    note_started(result, maker, event)


def note_started(result: jax.Array, maker: Maker = lambda: None, event: int = 0) -> None:
    """`note_run` for a program that only reshards an array: `stamp` does not change."""
    _started.append(Started(result, maker, time.monotonic(), event))
    note(result)


def note_recorded() -> None:
    """Changes `stamp` as a run does: later reads do not belong to graphs recorded before."""
    global _num_runs
    _num_runs += 1


def unchanged() -> contextlib.AbstractContextManager[None]:
    """A context that restores `stamp` at its end: recording inside does not count as a run."""
    return held(sys.modules[__name__], _num_runs=_num_runs)


def is_idle() -> bool:
    """True once every program that was started is done."""
    forget_done()
    return not _started


def started() -> list[Started]:
    """Returns the programs that were started and are not known to be done, oldest first."""
    return list(_started)


def wait() -> None:
    """Waits until every program that was started is done; raises the error of the first that
    failed."""
    with trace_rows.span("wait", lambda: {"for": "all programs"}):
        for run in started():
            if not run.result.is_deleted():
                run.result.block_until_ready()
    forget_done()


def _forget() -> None:
    _started.clear()
    _over_several.clear()
    _on_one.clear()


# An XLA thread that ends a program after the interpreter has gone aborts the process; a fork's
# child has no threads.
atexit.register(wait)
forking.on_bad_fork(_forget)
