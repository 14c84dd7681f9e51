"""Ctrl-C while ops are recorded: raised between two ops, never inside torch's C++, which would abort the process.

torch asks the device guard for its type from C++ functions that let no exception out, and the asking itself lets Python
run its signal handlers. So Python's own SIGINT handler gives way to one that does the same a moment later: at the next
op that is recorded, or, where none comes, after `PATIENCE`.
"""

import _thread
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from . import metrics

# Seconds after which a press that no op has taken is taken wherever the program is: in a sleep, in a compile.
PATIENCE = 0.05

_Press = tuple[FrameType | None]
_held: list[_Press] = []  # pressed, and not raised yet
_due: list[_Press] = []  # those of them that have waited long enough


def watch() -> None:
    """Puts our handler in the place of Python's own; anybody else's stays. Notebooks restore Python's at each cell."""
    if (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, _on_ctrl_c)


def raise_held() -> None:
    """Raises the press that is waiting, if there is one; between two ops it may."""
    if _held and threading.current_thread() is threading.main_thread():
        _held.clear()
        _due.clear()
        metrics.look_at = 0
        raise KeyboardInterrupt


def _on_ctrl_c(number: int, frame: FrameType | None) -> None:
    if _due:
        _due.clear()
        _held.clear()
        raise KeyboardInterrupt
    press = (frame,)
    _held.append(press)
    metrics.look_at = -1  # the next op looks up, and finds it
    _thread.start_new_thread(_press_again, (press,))  # not a threading.Thread, whose start waits, here of all places


def _press_again(press: _Press) -> None:
    time.sleep(PATIENCE)
    if any(held is press for held in _held):
        _due.append(press)
        # A true signal, which also ends a system call that waits.
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)


def _note(number: int, frame: FrameType | None) -> None:
    _held.append((frame,))


@contextlib.contextmanager
def later() -> Iterator[None]:
    """Ctrl-C inside waits for the end, whatever the handler."""
    handler: Any = signal.getsignal(signal.SIGINT)
    if not callable(handler) or handler is _note or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if _held:
            (frame,) = _held[-1]
            _held.clear()
            (signal.default_int_handler if handler is _on_ctrl_c else handler)(signal.SIGINT, frame)
