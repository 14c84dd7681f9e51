"""Watchers: they receive a thread's calls in place of dispatch, to capture a body or to search for
a NaN."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from torch._ops import OpOverload

from ..base.state import PerThread
from .call import dispatch
from .overloads import Args, Kwargs, TorchValue
from .tensor import handle_calls_by

_lock = threading.Lock()
_num_watchers = 0

Watcher = Callable[[OpOverload, Sequence[type], Args, Kwargs], TorchValue]
watcher = PerThread[Watcher | None](None)  # receives the thread's calls in place of dispatch


def _watched(
    func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
) -> TorchValue:
    take = watcher.value
    return (
        dispatch(func, types, args, kwargs)
        if take is None
        else take(func, types, args, kwargs or {})
    )


@contextlib.contextmanager
def watching(by: Watcher) -> Iterator[None]:
    """Sends this thread's calls to a watcher. Without watchers, calls go to dispatch directly, at
    no cost.
    """
    global _num_watchers
    with _lock:
        _num_watchers += 1
        # Only while there is one: the look for a watcher is a call of Python for each op.
        handle_calls_by(_watched)
    try:
        with watcher.held(by):
            yield
    finally:
        with _lock:
            _num_watchers -= 1
            if not _num_watchers:
                handle_calls_by(dispatch)


# Called after an op that was recorded by itself, without a call that torch dispatched.
after_own_op: list[Callable[[], None]] = []


def recorded() -> None:
    """Notes an op recorded without a call of torch's dispatch."""
    for note in after_own_op:
        note()
