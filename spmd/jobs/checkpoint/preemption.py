"""The end of a job that is announced: SIGTERM, or the cluster's notice that jax passes on to all
processes."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from ...core import processes


class _Signal:
    """The handler of SIGTERM. The first signal is kept for the next step; a second one does what
    one did before."""

    def __init__(self) -> None:
        self.has_come = False
        self.step: int | None = None  # at which it is answered
        self.before: Any = signal.getsignal(signal.SIGTERM)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self.has_come:
            self.has_come = True
        elif callable(self.before):
            self.before(number, frame)
        else:
            signal.signal(number, self.before)
            os.kill(os.getpid(), number)


_signal: _Signal | None = None


def reached(step: int) -> bool:
    """True at the step at which all processes are to save: that of the next call after the notice.

    With several processes jax chooses the step, the same in all, from those that they pass.
    """
    global _signal
    if processes.several():
        return processes.reached_preemption(step)
    if _signal is None and threading.current_thread() is threading.main_thread():
        _signal = _Signal()
        signal.signal(signal.SIGTERM, _signal)
    if _signal is None or not _signal.has_come:
        return False
    if _signal.step is None:
        _signal.step = step
    return step == _signal.step
