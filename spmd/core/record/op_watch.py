"""Watchers: they receive a thread's calls in place of dispatch, to capture a body or to search for
a NaN."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torch._ops import OpOverload

from ..base.state import PerThread, while_any
from .call import dispatch
from .overloads import Args, Kwargs, TorchValue
from .tensor import handle_calls_by

Watcher = Callable[[OpOverload, Sequence[type], Args, Kwargs], TorchValue]
watcher = PerThread[Watcher | None](None)  # receives the thread's calls in place of dispatch


def _watched(
    func: OpOverload, types: Sequence[type], args: Args = (), kwargs: Kwargs | None = None
) -> TorchValue:
    """Passes a call to the thread's watcher, or to dispatch where it has none."""
    watch = watcher.value
    return (
        dispatch(func, types, args, kwargs)
        if watch is None
        else watch(func, types, args, kwargs or {})
    )


# Installed only while there is a watcher: `_watched` costs one more Python call for each op.
_any_watching = while_any(partial(handle_calls_by, _watched), partial(handle_calls_by, dispatch))


@contextlib.contextmanager
def watching(watch: Watcher) -> Iterator[None]:
    """Context: sends this thread's calls to a watcher in place of dispatch."""
    with _any_watching(), watcher.held(watch):
        yield


# Called after an op that was recorded by itself, without a call that torch dispatched.
after_own_op: list[Callable[[], None]] = []


def note_own_op() -> None:
    """Notes an op recorded without a call of torch's dispatch."""
    for note in after_own_op:
        note()
