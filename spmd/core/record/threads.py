"""The setup at the first use of the device in a process, and in each thread."""

from collections.abc import Callable

import torch

from ..base import forking
from ..graph.source import THREADS, Ring, new_ring
from . import recorders
from .storage import LOCK

# Functions that the first use of the device runs in the process, and in each thread: programs that
# do not use it stay unchanged.
AT_FIRST_USE: list[Callable[[], None]] = []
IN_EACH_THREAD: list[Callable[[], None]] = []


def enter_thread() -> Ring:
    """Sets up the calling thread once, and returns its ring of recorded lines. Raises in a process
    forked after the first use of the device."""
    ring: Ring | None = getattr(THREADS, "ring", None)
    if ring is not None:
        return ring
    forking.check()
    # The functions that wait for the first use of the device, by whichever thread.
    with LOCK:
        while AT_FIRST_USE:
            AT_FIRST_USE.pop()()
    for setup in IN_EACH_THREAD:
        setup()
    # Autograd runs in the caller's thread: a process that ends soon after a backward on autograd's
    # own device thread aborts.
    torch.autograd.set_multithreading_enabled(False)
    recorders.enter()
    ring = THREADS.ring = THREADS.backward = new_ring()
    return ring


forking.on_bad_fork(lambda: THREADS.__dict__.clear())  # of the thread that is the child's
