"""Actions of a save by all processes, that succeed in all of them or fail in all.

Only the standard library.
"""

import json
from collections.abc import Callable
from typing import Protocol, TypeVar

_T = TypeVar("_T")
Act = Callable[[], object]
Failure = BaseException | None


class SaveError(RuntimeError):
    """A step or a model was not saved; what was there before is as it was.

    A job that can go on without this step:

    >>> import tempfile, torch, spmd
    >>> manager = spmd.CheckpointManager(tempfile.mkdtemp())
    >>> try:
    ...     saved = manager.save(0, {"weight": torch.ones(2)})
    ...     manager.wait()
    ... except spmd.checkpoint.SaveError as error:  # no space is left, say
    ...     print(error)
    >>> manager.all_steps()
    [0]
    """


class Channel(Protocol):
    """The words that the processes of a save exchange. index, count: this process, and their
    number."""

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
    action: Callable[[], _T],
    form: str,
    cause: Failure = None,
    undo: Act = lambda: None,
) -> _T:
    """Has the first process do something; returns its result, a text or None, in all processes.
    Raises in all if it fails, with the words in this form.

    undo: called in the first process if it fails.
    """
    if exchange.index == 0:
        result, failure = _tried(action)
        if failure is not None:
            undo()
        exchange.publish(name, json.dumps([result, words_of(failure)]))
        cause = cause or failure
    result, words = json.loads(exchange.read(name))
    if words:
        raise SaveError(form.format(words)) from _root(cause)
    return result


def _root(failure: Failure) -> Failure:
    """The error below SaveErrors, whose words the last one has: a traceback shows one error and its
    cause."""
    while isinstance(failure, SaveError):
        failure = failure.__cause__
    return failure


def after_all(
    exchange: Channel, name: str, part: Act, action: Callable[[], _T], form: str, undo: Act
) -> _T:
    """Does this process's part, and has the first process do something when all have done theirs;
    see `by_first`.

    The error names the processes whose parts have failed.
    """
    _, failure = _tried(part)
    exchange.publish(f"{name}/{exchange.index}", words_of(failure))

    def checked() -> _T:
        reports = enumerate(
            [exchange.read(f"{name}/{process}") for process in range(exchange.count)]
        )
        failed = [
            f"process {process}: {words}" if exchange.count > 1 else words
            for process, words in reports
            if words
        ]
        if failed:
            raise SaveError("; ".join(failed))
        return action()

    return by_first(exchange, f"after {name}", checked, form, failure, undo)


def _tried(action: Callable[[], _T]) -> tuple[_T | None, Failure]:
    """Does something; returns its result, and the error that it raises."""
    try:
        return action(), None
    except BaseException as error:
        return None, error


def words_of(failure: Failure) -> str:
    """An error as text for other processes; empty for none."""
    if failure is None:
        return ""
    message = str(failure).rstrip(".") or "no message"
    return message if isinstance(failure, SaveError) else f"{type(failure).__name__}: {message}"
