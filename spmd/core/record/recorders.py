"""Recorders: threads by number. A sync runs its own thread's ops."""

# Why a sync runs its own thread's ops and not all: with half a step of another thread in it, it
# would be another program each time. Why a thread that has ended has no recorder any more: no sync
# would ever run what it has left.

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator

import torch

from ..base.state import PerThread

# Under this key torch passes a thread's number on to autograd's own threads, with its other
# thread-local state.
_KEY = "spmd.recorder"

are_several = (
    False  # whether more than one thread has recorded: until then every value has number 0
)
_numbers = itertools.count()


class _Life:
    """Held by its thread alone: it dies with the thread."""

    __slots__ = ("__weakref__",)


_alive: "weakref.WeakValueDictionary[int, _Life]" = weakref.WeakValueDictionary()


class _Recorder(threading.local):
    number = -1
    is_of_autograd = False
    life: _Life | None = None


_thread = _Recorder()
longest_step = PerThread(0)  # the most ops of one sync, but for unsynced loops


def enter() -> None:
    """Numbers the calling thread; autograd's own threads share the number of backward's caller."""
    global are_several
    if torch._C._current_graph_task_id() != -1 and torch._C._is_key_in_tls(_KEY):
        _thread.is_of_autograd = True
    else:
        _thread.number, _thread.life = next(_numbers), _Life()
        _alive[_thread.number] = _thread.life
        torch._C._stash_obj_in_tls(_KEY, _thread.number)
    are_several = are_several or number() > 0 or _thread.is_of_autograd


@contextlib.contextmanager
def acting_as(recorder: int) -> Iterator[None]:
    """Context in which this thread records for another one."""
    own = _thread.number, _thread.is_of_autograd
    _thread.number, _thread.is_of_autograd = recorder, False
    try:
        yield
    finally:
        _thread.number, _thread.is_of_autograd = own


def number() -> int:
    """The calling thread's number."""
    return torch._C._get_obj_in_tls(_KEY) if _thread.is_of_autograd else _thread.number


def run_condition() -> Callable[[int], bool]:
    """A condition on a recorder's number: this thread's syncs run the ops of this thread and of
    ended ones."""
    own_number = number()
    # All values have number 0: thread 0 runs them, and any thread after its end.
    if not are_several:
        return (own_number if 0 in _alive else 0).__eq__
    return lambda recorder: recorder == own_number or recorder not in _alive
