"""Recorders: the threads that record ops, as numbers. A barrier runs what its own thread has recorded."""

import itertools
import threading
import weakref
from collections.abc import Callable

import torch

# Under this name torch hands a thread's number on to autograd's own threads, with all else that it hands on.
_KEY = "spmd.recorder"

is_several = False  # whether more than one thread has recorded: before, every value is of number 0
_numbers = itertools.count()


class _Life:
    """Kept by a thread alone: dies with it."""

    __slots__ = ("__weakref__",)


_alive: "weakref.WeakValueDictionary[int, _Life]" = weakref.WeakValueDictionary()


class _Thread(threading.local):
    number = -1
    is_autograds = False
    life: _Life | None = None
    longest = 0


_thread = _Thread()


def enter() -> None:
    """Gives the calling thread a number; one of autograd's own threads has that of whoever called backward."""
    global is_several
    if torch._C._current_graph_task_id() != -1 and torch._C._is_key_in_tls(_KEY):
        _thread.is_autograds = True
    else:
        _thread.number, _thread.life = next(_numbers), _Life()
        _alive[_thread.number] = _thread.life
        torch._C._stash_obj_in_tls(_KEY, _thread.number)
    is_several = is_several or number() > 0 or _thread.is_autograds


def number() -> int:
    """The number of the thread that records now."""
    return torch._C._get_obj_in_tls(_KEY) if _thread.is_autograds else _thread.number


def is_run_here() -> Callable[[int], bool]:
    """Tells whether this thread's barriers run what the thread with a number recorded: it is this one, or has ended."""
    own = number()
    return lambda recorder: recorder == own or recorder not in _alive


def note_step(num_ops: int) -> None:
    """This thread's barrier has run so many ops, none of them in a loop that nobody synced."""
    _thread.longest = max(_thread.longest, num_ops)


def longest_step() -> int:
    """The most ops that a barrier of this thread has run."""
    return _thread.longest
