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
    take = watcher.value
    return (
        dispatch(func, types, args, kwargs)
        if take is None
        else take(func, types, args, kwargs or {})
    )


# Only while there is a watcher: the look for one is a call of Python for each op.
_any_watching = while_any(partial(handle_calls_by, _watched), partial(handle_calls_by, dispatch))


@contextlib.contextmanager
def watching(by: Watcher) -> Iterator[None]:
    """Sends this thread's calls to a watcher. Without watchers, calls go to dispatch directly, at
    no cost.
    """
    with _any_watching(), watcher.held(by):
        yield


# Called after an op that was recorded by itself, without a call that torch dispatched.
after_own_op: list[Callable[[], None]] = []


def recorded() -> None:
    """Notes an op recorded without a call of torch's dispatch."""
    for note in after_own_op:
        note()
