"""The programs that were started and may still run."""

# Why programs over several simulated devices are launched in one order, and only so many at a time: XLA's CPU client
# runs a device's part in a pool of threads. Two programs that wait for each other's threads in a collective never end.

import atexit
import sys
import time
from collections import deque
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax

from ...base import forking, in_flight, spans
from ...base.state import held


class Started(NamedTuple):
    """A program that was started: one of its results, a function that returns it, when, and as which event of all
    processes (0: of none)."""

    result: jax.Array
    maker: Any
    at: float
    event: int

    def is_done(self) -> bool:
        """True once the program has run."""
        return in_flight.is_done(self.result)


_in_flight: "deque[Started]" = deque()  # those that may still run
_MOST_IN_FLIGHT = 64

_num_runs = 0


def stamp() -> int:
    """Returns a number that changes when a program has run: values read before are not in a graph recorded now."""
    return _num_runs


def note_run(result: jax.Array, maker: Any, event: int = 0) -> None:
    """Keeps one result of a program that was started, until the program is done."""
    global _num_runs
    _num_runs += 1
    note_started(result, maker, event)


def note_started(result: jax.Array, maker: Any = lambda: None, event: int = 0) -> None:
    """Keeps the result of a program that computes nothing but reshards an array; `stamp` stays."""
    forget_done()
    if len(_in_flight) == _MOST_IN_FLIGHT:
        _in_flight.popleft()
    _in_flight.append(Started(result, maker, time.monotonic(), event))
    in_flight.note(result)


def note_recorded() -> None:
    """Changes `stamp` as if a program had run: values read from now on are not in a graph recorded before."""
    global _num_runs
    _num_runs += 1


def unchanged() -> AbstractContextManager[None]:
    """A context that restores `stamp` at its end: recording inside does not count as a run."""
    return held(sys.modules[__name__], _num_runs=_num_runs)


def forget_done() -> None:
    """Drops the results of programs that have ended."""
    while _in_flight and _in_flight[0].is_done():
        _in_flight.popleft()
    in_flight.forget_done()


def is_idle() -> bool:
    """True once every program that was started is done."""
    forget_done()
    return not _in_flight


def started() -> list[Started]:
    """Returns the programs that were started and are not known to be done, oldest first."""
    return list(_in_flight)


def wait() -> None:
    """Waits until every program that was started is done; raises the error of the first that failed."""
    with spans.span("wait", lambda: {"for": "all programs"}):
        for run in started():
            if not run.result.is_deleted():
                run.result.block_until_ready()
    forget_done()


# An XLA thread that ends a program after the interpreter has gone aborts the process; a fork's child has no threads.
atexit.register(wait)
forking.on_bad_fork(_in_flight.clear)
