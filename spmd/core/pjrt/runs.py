"""The programs that were started and may still run."""

import atexit
import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import jax

from .. import forking, in_flight

# Of each program that may still run one of its results, and the program.
_in_flight: "deque[tuple[jax.Array, Any]]" = deque()
_MOST_IN_FLIGHT = 64

_num_runs = 0


def stamp() -> int:
    """A number that is another one once a program has run: what was read before is not in what is recorded now."""
    return _num_runs


def note_run(result: jax.Array, maker: Any) -> None:
    """Remembers that a program was started, by one of its results, until it is done."""
    global _num_runs
    _num_runs += 1
    note_started(result, maker)


def note_started(result: jax.Array, maker: Any = lambda: None) -> None:
    """The same of what computes nothing: it lays an array out anew."""
    forget_done()
    if len(_in_flight) == _MOST_IN_FLIGHT:
        _in_flight.popleft()
    _in_flight.append((result, maker))
    in_flight.note(result)


def note_recorded() -> None:
    """Has what is read from now on not be in what was recorded before, as if a program had run."""
    global _num_runs
    _num_runs += 1


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """What is recorded inside as if it had run leaves `stamp` as it was."""
    global _num_runs
    before = _num_runs
    try:
        yield
    finally:
        _num_runs = before


def forget_done() -> None:
    """Drops what is known of programs that have ended."""
    while _in_flight and in_flight.is_done(_in_flight[0][0]):
        _in_flight.popleft()
    in_flight.forget_done()


def started() -> list[tuple[jax.Array, Any]]:
    """The programs that were started and not seen to end, oldest first: (a result, what `note_run` was told)."""
    return list(_in_flight)


def wait() -> None:
    """Returns when every program that was started is done; raises what the first to fail raises."""
    for array, _ in started():
        if not array.is_deleted():
            array.block_until_ready()
    forget_done()


# A thread of XLA's that ends a program when the interpreter has gone aborts the process; a fork's child has no threads.
atexit.register(wait)
forking.on_bad_fork(_in_flight.clear)
