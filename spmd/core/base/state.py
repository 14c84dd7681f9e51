"""State of a thread: values that hold for a block, and the observation of a call that is recorded
for a replay."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, SupportsFloat, TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def held(owner: object, **values: object) -> Iterator[None]:
    """Gives attributes of an object these values inside, and after it their former ones."""
    former = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in former.items():
            setattr(owner, name, value)


class PerThread(threading.local, Generic[_T]):
    """A value of each thread: the one that it was made with, until the thread has another."""

    def __init__(self, value: _T):  # called again in each thread, with the same argument
        self.value = value

    def held(self, value: _T) -> AbstractContextManager[None]:
        """Gives this thread a value inside."""
        return held(self, value=value)


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
    its graph, in order. num_runs: of all programs, initialization included. uploads: the host data
    that was made of CPU tensors, each as (CPU tensor, device data). derived: the device data that
    was made of other device data by no program: from which, and by which function. filled: the
    numbers that fill new device data. draws: the draws from the shared stream. other_draws: whether
    there were others.
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
        """A number that Python computed from ones that may change as the number that it is now;
        else the value."""
        return value

    def scalar(self, value: SupportsFloat) -> object:
        """Such a number as a scalar argument of an op."""
        return float(value)

    def scalars(self, values: Sequence[object]) -> Sequence[object]:
        """A list of scalar arguments, with such numbers among them."""
        return values

    def draw(self, draw: tuple[int, int]) -> tuple[int, int]:
        """Notes a draw from the shared stream; returns it with its place."""
        seed, count = map(DrawNumber, draw)
        seed.index, count.index = -1, len(self.draws)
        self.draws.append(draw)
        return seed, count


active_observation = PerThread[Observation | None](None)  # of a call of the thread


def derived(result: _T, source: object, function: Callable[[Any], Any]) -> _T:
    """Notes that a function made this device data of other data, of which a replay has another
    value; returns it."""
    observing = active_observation.value
    if observing is not None:
        observing.derived[result] = source, function
    return result
