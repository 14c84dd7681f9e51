"""Threads that wait for values: the metric "ExecuteTime", from the launch of a program to its end,
and PyTorch/XLA's callbacks.

The metric's thread begins with the first use of `torch_xla.debug.metrics`; programs without it pay
nothing.
"""

import contextlib
import functools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from ...core import counters, host_reads, points, storage_of
from ...tensors.annotate import on_device
from ...tensors.runtime import sync


class _Ends:
    """A thread that takes launched programs in their order, waits for the end of each, and adds its
    sample."""

    def __init__(self, add: Callable[[float], None]):
        self._add = add
        # A program is its start and one of its results; an event is set once all before it have
        # ended.
        self._launched: SimpleQueue[tuple[float, Any] | threading.Event] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="spmd.execution_time", daemon=True)
        self.thread.start()

    def note(self, started: float, result: Any) -> None:
        """Adds a program; nothing in a fork's child, which has no threads."""
        if self.thread.is_alive():
            self._launched.put((started, result))

    def settle(self) -> None:
        """Returns once the programs launched so far have their samples."""
        if self.thread.is_alive():
            settled = threading.Event()
            self._launched.put(settled)
            settled.wait()

    def _run(self) -> None:
        starts: list[float] = []  # of programs that have no sample yet
        while True:
            launched = self._launched.get()
            if isinstance(launched, threading.Event):
                has_ended = True
            else:
                starts.append(launched[0])
                # A result that a later program has overwritten has no end of its own: that is the
                # later program's.
                # an error is raised where the result is read
                with contextlib.suppress(RuntimeError, ValueError):
                    launched[1].block_until_ready()
                has_ended = not launched[1].is_deleted()
            if has_ended:
                ended = counters.now()
                for started in starts:
                    self._add((ended - started) * 1e9)
                starts.clear()
            if isinstance(launched, threading.Event):
                launched.set()
            del launched  # the result's memory is the script's


@functools.cache
def begin() -> _Ends:
    """Adds samples of "ExecuteTime" from the first call on.

    >>> import spmd
    >>> ends = spmd.torch_xla.execution_time.begin()
    """
    ends = _Ends(lambda nanoseconds: counters.add_sample("ExecuteTime", nanoseconds))
    points.on_launch.append(ends.note)
    return ends


def settle() -> None:
    """Returns once the programs that were launched have ended and have their samples; the first
    call begins.

    >>> import spmd
    >>> spmd.torch_xla.execution_time.settle()
    """
    begin().settle()


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], Any]) -> None:
    """Syncs, and calls `callback(tensor)` in another thread once the devices have computed the
    tensor.

    Raises TypeError for a tensor that is not on xla. Source:
    `torch_xla.experimental.callback.on_ready_callback`.

    >>> import torch
    >>> from spmd.torch_xla.execution_time import on_ready_callback
    >>> on_ready_callback(torch.ones(2, device="xla") + 1, lambda tensor: None)
    """
    target = on_device(tensor, "on_ready_callback")
    sync()

    def wait() -> None:
        with host_reads.leased(storage_of(target), "on_ready_callback", on_device=True) as lease:
            lease.placed()[0].block_until_ready()
        callback(tensor)

    threading.Thread(target=wait, name="spmd.on_ready_callback", daemon=True).start()


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set once the devices have computed the tensor: see `on_ready_callback`.

    >>> import torch
    >>> from spmd.torch_xla.execution_time import on_ready_event
    >>> on_ready_event(torch.ones(2, device="xla") + 1).wait(60)
    True
    """
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event
