"""State of a thread: values that hold for a block, and the observation of a call that is recorded
for a replay."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, SupportsFloat, TypeVar

from ...ops.held import held as held
from .forking import survives_fork

_T = TypeVar("_T")


class PerThread(threading.local, Generic[_T]):
    """A value per thread: the initial one, until the thread sets another."""

    def __init__(self, value: _T):  # called again in each thread, with the same argument
        self.value = value

    def held(self, value: _T) -> AbstractContextManager[None]:
        """Gives this thread a value inside."""
        return held(self, value=value)


def while_any(
    begin: Callable[[], object], end: Callable[[], object]
) -> Callable[[], AbstractContextManager[None]]:
    """Returns a context that all threads share: `begin` runs when the first thread enters, `end`
    when the last one leaves."""
    lock = survives_fork(threading.Lock())
    num_inside = 0

    @contextlib.contextmanager
    def inside() -> Iterator[None]:
        nonlocal num_inside
        with lock:
            num_inside += 1
            if num_inside == 1:
                begin()
        try:
            yield
        finally:
            with lock:
                num_inside -= 1
                if not num_inside:
                    end()

    return inside


class Scalar(float):
    """A scalar argument that Python computed from numbers that may change, as a float with the
    index of its formula."""

    __slots__ = ("index",)

    index: int

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


class DrawNumber(int):
    """The count of a random draw, with its index among the draws of the call; or its seed, with
    index -1."""

    index: int

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class Observation:
    """The notes on one call of one thread.

    reads: the calls that read a value on the host. ran: the programs that the call's syncs ran over
    its graph, in order. num_runs: the runs of all programs, initialization included. uploads: the
    host data that was made of CPU tensors, each as (CPU tensor, device data). derived: for device
    data made from other device data without a program, the source and the function. filled: the
    numbers that fill new device data. draws: the draws from the shared stream. other_draws: whether
    there were draws from other streams.
    """

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.ran: list[Any] = []  # classes of floors above
        self.num_runs = 0
        self.uploads: list[tuple[object, object]] = []
        self.derived: dict[object, tuple[Any, Callable[[Any], Any]]] = {}
        self.filled: dict[object, complex] = {}
        self.draws: list[tuple[int, int]] = []
        self.other_draws = False

    def plain(self, value: object) -> object:
        """Returns the present value of a number that Python computed from changing ones; other
        values as they are."""
        return value

    def scalar(self, value: SupportsFloat) -> object:
        """Returns a number that Python computed from changing ones as a scalar argument of an
        op."""
        return float(value)

    def scalars(self, values: Sequence[object]) -> Sequence[object]:
        """`scalar` for a list of scalar arguments, some of which were computed from changing
        numbers."""
        return values

    def draw(self, draw: tuple[int, int]) -> tuple[int, int]:
        """Notes a draw from the shared stream; returns it as numbers with the draw's index."""
        seed, count = map(DrawNumber, draw)
        seed.index, count.index = -1, len(self.draws)
        self.draws.append(draw)
        return seed, count


active_observation = PerThread[Observation | None](None)  # of a call of the thread


def derived(result: _T, source: object, function: Callable[[Any], Any]) -> _T:
    """Notes that a function derived this device data from other data, which a replay replaces;
    returns the derived data."""
    observing = active_observation.value
    if observing is not None:
        observing.derived[result] = source, function
    return result
