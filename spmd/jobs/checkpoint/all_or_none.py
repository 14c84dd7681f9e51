"""Actions of a save by all processes, that succeed in all of them or fail in all. Only the standard library."""

from collections.abc import Callable
from typing import Any, Protocol


class SaveError(RuntimeError):
    """A step or a model was not saved; what was there before is as it was."""


class Channel(Protocol):
    """The words that the processes of a save exchange. index, count: this process, and their number."""

    index: int
    count: int

    def publish(self, name: str, words: str) -> None:
        """Makes a text known to all, under a name that is used once."""

    def read(self, name: str) -> str:
        """Waits until a name is known; returns its text."""


class Alone:
    """The exchange of one process."""

    index, count = 0, 1

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def publish(self, name: str, words: str) -> None:
        self._known[name] = words

    def read(self, name: str) -> str:
        return self._known[name]


def by_first(
    exchange: Channel,
    name: str,
    action: Callable[[], Any],
    form: str,
    cause: BaseException | None = None,
    undo: Callable[[], Any] = lambda: None,
) -> None:
    """Has the first process do something; raises in all processes if it fails, with the words in this form.

    undo: called in the first process if it fails.
    """
    if exchange.index == 0:
        failure = failure_of(action)
        if failure is not None:
            undo()
        exchange.publish(name, words_of(failure))
        cause, words = cause or failure, words_of(failure)
    else:
        words = exchange.read(name)
    if words:
        raise SaveError(form.format(words)) from _root(cause)


def _root(failure: BaseException | None) -> BaseException | None:
    """The error below SaveErrors, whose words the last one has: a traceback shows one error and its cause."""
    while isinstance(failure, SaveError):
        failure = failure.__cause__
    return failure


def publish_part(exchange: Channel, action: Callable[[], Any], name: str = "written") -> BaseException | None:
    """Does this process's part of a save; makes known if it fails, and returns that."""
    failure = failure_of(action)
    exchange.publish(f"{name}/{exchange.index}", words_of(failure))
    return failure


def check_parts(exchange: Channel, name: str = "written") -> None:
    """Waits until all have done their parts; raises SaveError that names the processes that failed."""
    said = [exchange.read(f"{name}/{process}") for process in range(exchange.count)]
    failed = [
        f"process {process}: {words}" if exchange.count > 1 else words for process, words in enumerate(said) if words
    ]
    if failed:
        raise SaveError("; ".join(failed))


def failure_of(action: Callable[[], Any]) -> BaseException | None:
    """Does something; returns the error that it raises."""
    try:
        action()
    except BaseException as error:
        return error
    return None


def words_of(failure: BaseException | None) -> str:
    """An error as text for other processes; empty for none."""
    if failure is None:
        return ""
    said = str(failure).rstrip(".") or "no message"
    return said if isinstance(failure, SaveError) else f"{type(failure).__name__}: {said}"
