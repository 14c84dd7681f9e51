"""Ahead: a thread that prepares the next few items of an iteration while the caller works with the
last one."""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from ...core import forking

_Pulled = TypeVar("_Pulled")
_Ready = TypeVar("_Ready")
_END: Any = object()


class Ahead(Generic[_Pulled, _Ready]):
    """At most `count` ready items, made in order in a thread of its own: `prepare(item)` of each
    item of `pulled`.

    The thread starts at the first `next_item()` and ends with the items, with an exception, or at
    `stop()`. It holds this object and not the caller's, whose end stops it. A call into `pulled` or
    `prepare` that runs by then ends first; nothing is prepared after it.
    """

    def __init__(self, prepare: Callable[[_Pulled], _Ready], count: int) -> None:
        self.pulled: Iterator[_Pulled] = iter(())
        self._prepare = prepare
        self._count = count
        # Reentrant: the end of a caller's object may stop this in the midst of any of its own
        # lines.
        self._changed = threading.Condition(threading.RLock())
        self._ready: deque[_Ready] = deque()
        self._error: BaseException | None = None
        self._has_started = self.has_ended = self._is_preparing = self.is_stopped = False
        self.thread = threading.Thread(target=self._run, name="spmd-data", daemon=True)

    def next_item(self) -> _Ready:
        """Returns the next item; raises StopIteration at the end, and after the last item what the
        thread raised."""
        forking.check()
        with self._changed:
            if not self._has_started and not self.is_stopped:
                self._has_started = True
                _running.add(self)
                self.thread.start()
            while not (self._ready or self.has_ended):
                self._changed.wait()
            if self._ready:
                item = self._ready.popleft()
                self._changed.notify_all()
                return item
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            raise error
        finally:
            del error  # with its traceback it holds this frame

    def stop(self) -> None:
        """Lets the thread end; returns at once."""
        if forking.is_in_bad_fork():
            return  # the thread has stayed in the parent, perhaps with the lock
        with self._changed:
            self.is_stopped = True
            self._ready.clear()
            if not self._has_started:
                self.pulled, self.has_ended = iter(()), True
            self._changed.notify_all()

    def join(self) -> None:
        """Waits for the end of a thread that was stopped."""
        if self._has_started and self.thread is not threading.current_thread():
            self.thread.join()

    def has_prepared(self) -> None:
        """Waits, after `stop()`, until nothing is being prepared."""
        with self._changed:
            while self._is_preparing:
                self._changed.wait()

    def _run(self) -> None:
        try:
            while self._make_one():
                pass
        except BaseException as error:
            self._error = error
        finally:
            self._end()

    def _make_one(self) -> bool:
        """Pulls and prepares an item; False at the end."""
        if self.is_stopped:
            return False
        item = next(self.pulled, _END)
        if item is _END:
            return False
        with self._changed:
            while len(self._ready) >= self._count and not self.is_stopped:
                self._changed.wait()
            if self.is_stopped:
                return False
            self._is_preparing = True
        try:
            ready = self._prepare(item)
        finally:
            with self._changed:
                self._is_preparing = False
                self._changed.notify_all()
        with self._changed:
            if not self.is_stopped:
                self._ready.append(ready)
                self._changed.notify_all()
        return True

    def _end(self) -> None:
        # A generator's `finally` runs here, in its thread.
        self.pulled = iter(())
        _running.discard(self)
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()


def going_on(threads: Iterable[Ahead[Any, Any]]) -> list[Ahead[Any, Any]]:
    """Returns those that have not ended, and waits for those that were stopped.

    A stopped one may be inside its source, which is to begin again.
    """
    for ahead in (started := list(threads)):
        if ahead.is_stopped:
            ahead.join()
    return [ahead for ahead in started if not ahead.has_ended]


_running: "weakref.WeakSet[Ahead]" = weakref.WeakSet()


def _end_all() -> None:
    """Ends uploads before jax's own end, which this precedes as it was registered later.

    A thread inside its source is not waited for: it may wait for a disk or a network, and touches
    no device there.
    """
    if not forking.is_in_bad_fork():
        for ahead in list(_running):
            ahead.stop()
            ahead.has_prepared()


atexit.register(_end_all)
