"""Calls that all processes make: compared before anything is written or read, and their words to
each other."""

import itertools

from ...core import observation, processes, user_line
from .all_or_none import Alone, Channel

_numbers = itertools.count()
_POLL = 1.0  # seconds of one wait, after which a signal can be handled


class Words:
    """The exchange of one call; all processes make them in the same order. Their names are used
    once.

    index, count: this process, and the number of processes.
    """

    def __init__(self) -> None:
        self.index, self.count = processes.index(), processes.count()
        number = next(_numbers)
        self._prefix = f"spmd/words/{number}/"
        if self.index == 0 and number > 1:  # all have left the call before the last one
            processes.client().key_value_delete(f"spmd/words/{number - 2}/")

    def publish(self, name: str, words: str) -> None:
        """Makes a text known to all."""
        processes.publish(self._prefix + name, words)

    def read(self, name: str) -> str:
        """Waits until a name is known; returns its text. jax ends this process when the other one
        dies."""
        while (words := processes.polled(self._prefix + name, _POLL)) is None:
            pass
        return words


def exchange() -> Channel:
    """The exchange of one call."""
    return Words() if processes.several() else Alone()


def agree(call: str) -> None:
    """Compares the call with those of the other processes; a compiled step that makes it is
    recorded at each call."""
    observing = observation.active_observation.value
    if observing is not None:
        observing.reads.append(f"{call} at {user_line()}")
    if processes.several():
        processes.agree(call, call.encode(), user_line())
