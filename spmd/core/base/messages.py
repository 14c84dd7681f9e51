"""Lines on stderr for the user: each but an error fits the terminal, and few of a kind are printed
in a minute.

The full text of what was shortened is in `spmd.metrics.report()`.
"""

import contextlib
import os
import shutil
import sys
import textwrap
import threading
import time
from collections import Counter, defaultdict, deque

from . import counters, forking
from .config import is_terminal

MOST = 3  # lines of a kind in a minute
_MINUTE = 60.0
_WIDTH = 200  # columns, where none are known: in a file or a pipe
_START = "spmd: "
_END = "..."

LOCK = forking.survives_fork(threading.RLock())
# by kind, the times of its last lines
_printed: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST))
_held_back: Counter[str] = Counter()


def say(text: str, kind: str, full: str = "", *, is_error: bool = False) -> None:
    """Prints one line, shortened to the terminal's width, unless a minute has had `MOST` of its
    kind: then the next line of the kind says how many were held back.

    full: a longer text, for the report. is_error: prints the whole text, however long, as the
    process may end before a report is printed.
    """
    if full or len(_line(text)) > width():
        counters.add_note(full or text)
    print_line(text, kind, is_whole=is_error)


def _line(text: str) -> str:
    return _START + " ".join(text.split())


def fitted(text: str, spare: int = 0) -> str:
    """Returns a text as one line, shortened to leave this number of the terminal's columns free."""
    room = max(width() - spare, len(_END))
    return textwrap.shorten(_line(text), room, placeholder=_END, break_on_hyphens=False)


def print_line(text: str, kind: str, *, is_whole: bool = False) -> None:
    """Prints one line, unless a minute has had `MOST` of its kind."""
    timestamp = time.monotonic()
    with LOCK:
        times = _printed[kind]
        if len(times) == MOST and timestamp - times[0] < _MINUTE:
            _held_back[kind] += 1
            return
        times.append(timestamp)
        num_suppressed = _held_back.pop(kind, 0)
        suffix = f" ({num_suppressed} more held back)" if num_suppressed else ""
        line = _line(text) if is_whole else fitted(text, len(suffix))
        print(f"{line}{suffix}", file=sys.stderr, flush=True)


def forget() -> None:
    """Restarts the counts of printed and held-back lines."""
    with LOCK:
        _printed.clear()
        _held_back.clear()


def width() -> int:
    """The columns of a line: the terminal's, or COLUMNS."""
    columns = shutil.get_terminal_size((0, 0)).columns  # COLUMNS, else stdout's terminal
    if not columns and is_terminal(sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # no file of the system
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return columns or _WIDTH
