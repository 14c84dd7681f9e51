"""Calls of a thread that go to a watcher in place of dispatch: a body that is captured, a search for a NaN."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from torch._ops import OpOverload

from .call import dispatch
from .overloads import Args, Kwargs, TorchValue
from .tensor import handle_calls_by

_thread = threading.local()  # .watcher: receives this thread's calls in place of dispatch
_lock = threading.Lock()
_num_watchers = 0

Watcher = Callable[[OpOverload, Sequence[type], Args, Kwargs], TorchValue]


def _watched(func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None) -> TorchValue:
    watcher = getattr(_thread, "watcher", None)
    return dispatch(func, types, args, kwargs) if watcher is None else watcher(func, types, args, kwargs or {})


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Sends this thread's calls through a watcher; without one the tensor class calls dispatch itself, at no cost."""
    global _num_watchers
    outer = getattr(_thread, "watcher", None)
    with _lock:
        _num_watchers += 1
        # Only while there is one: the look for a watcher is a call of Python for each op.
        handle_calls_by(_watched)
    _thread.watcher = watcher
    try:
        yield
    finally:
        _thread.watcher = outer
        with _lock:
            _num_watchers -= 1
            if not _num_watchers:
                handle_calls_by(dispatch)


def watcher() -> Watcher | None:
    """The watcher of this thread, or None."""
    return getattr(_thread, "watcher", None)


# Called after an op that was recorded by itself, without a call that torch dispatched.
after_own_op: list[Callable[[], None]] = []


def recorded() -> None:
    """Notes that such an op was recorded."""
    for note in after_own_op:
        note()
