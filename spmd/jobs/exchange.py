"""Words that the processes exchange in a call of all of them, by jax's key-value store."""

import itertools

from ..core import processes

_numbers = itertools.count()
_POLL = 1.0  # seconds of one wait, after which a signal can be handled


class Words:
    """The exchange of one call; all processes make them in the same order. Their names are used once.

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
        processes.client().key_value_set(self._prefix + name, words)

    def read(self, name: str) -> str:
        """Waits until a name is known; returns its text. jax ends this process when the other one dies."""
        while (words := processes.polled(self._prefix + name, _POLL)) is None:
            pass
        return words
