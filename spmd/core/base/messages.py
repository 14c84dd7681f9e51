"""Lines on stderr for the user: each but an error fits the terminal, and few of a kind are printed in a minute.

Where stderr is a terminal or a notebook, a status is one line that is updated in place and erased at its end; elsewhere
it is printed once. The full text of what was shortened is in `spmd.metrics.report()`.
"""

import contextlib
import os
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TextIO

from . import counters, forking
from .config import config, is_terminal

MOST = 3  # lines of a kind in a minute
_MINUTE = 60.0
_WIDTH = 120  # columns, where none are known: in a file or a pipe
_EVERY = 0.5  # seconds between two updates of a status
_EVERY_IN_A_FILE = 30.0  # the same, where each is a line
_SHORTEST = 0.2  # seconds of a status that is shown
_START = "spmd: "
_END = "..."

_lock = forking.survives_fork(threading.RLock())
_printed: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST))  # the times of the last lines
_held_back: Counter[str] = Counter()
_busy: dict[str, tuple[float, float]] = {}  # since when statuses of a kind follow each other, and the last one's end
_open: "list[Callable[[], str]]" = []  # the statuses that are shown, the newest last


def say(text: str, kind: str, full: str = "", *, is_error: bool = False) -> None:
    """Prints one line, shortened to the terminal's width, unless a minute has had `MOST` of its kind: then the next one
    says how many were held back. full: a longer text, for the report. is_error: prints the whole text, however long, as
    the process may end before a report is printed.
    """
    if full or len(_line(text)) > width():
        counters.add_note(full or text)
    _print(text, kind, is_error)


def _line(text: str) -> str:
    return _START + " ".join(text.split())


def _print(text: str, kind: str, is_whole: bool = False) -> None:
    now = time.monotonic()
    with _lock:
        times = _printed[kind]
        if len(times) == MOST and now - times[0] < _MINUTE:
            _held_back[kind] += 1
            return
        times.append(now)
        held = _held_back.pop(kind, 0)
        more = f" ({held} more held back)" if held else ""
        line = _line(text)
        line = line if is_whole else shortened(line, width() - len(more))
        print(f"{line}{more}", file=sys.stderr, flush=True)


def forget() -> None:
    """Forgets what was printed."""
    with _lock:
        _printed.clear()
        _held_back.clear()
        _busy.clear()


def width() -> int:
    """The columns of a line: the terminal's, or COLUMNS."""
    columns = shutil.get_terminal_size((0, 0)).columns  # COLUMNS, else stdout's terminal
    if not columns and is_terminal(sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # no file of the system
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return columns or _WIDTH


def shortened(text: str, room: int) -> str:
    """Returns a text of at most so many characters, cut between words where it has several.

    >>> shortened("a long line", 9), shortened("a long line", 8)
    ('a long...', 'a...')
    """
    if len(text) <= room:
        return text
    cut = max(room - len(_END), 0)
    return (text[:cut] if text[cut] == " " else text[:cut].rpartition(" ")[0] or text[:cut]) + _END


@contextlib.contextmanager
def status(kind: str, describe: Callable[[], str], *, together: bool = False) -> Iterator[None]:
    """Shows what is done inside, from `config.slow_compile_seconds` on; nothing where that is 0.

    describe: called by another thread, again and again where the line is updated in place. together: statuses that
    follow each other count as one, so that many programs of a second each are not compiled in silence.
    """
    if not config.slow_compile_seconds:
        yield
        return
    ended, began = threading.Event(), time.monotonic()
    since, until = _busy.get(kind, (began, began))
    since = since if together and began - until < config.slow_compile_seconds else began
    after = max(since + config.slow_compile_seconds - began, _SHORTEST)
    shown = threading.Thread(target=_show, args=(kind, describe, after, ended), name="spmd-status", daemon=True)
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()
        _busy[kind] = since, time.monotonic()


def _show(kind: str, describe: Callable[[], str], after: float, ended: threading.Event) -> None:
    if ended.wait(after):
        return
    if not _is_in_place(sys.stderr):
        _print(describe(), kind)
        while not ended.wait(_EVERY_IN_A_FILE):
            _print(describe(), kind)
        return
    with _lock:
        _open.append(describe)
    drawn = 0
    while not ended.wait(_EVERY if drawn else 0):
        with _lock:
            if _open[-1] is describe:  # of several threads the newest is shown
                drawn = _draw(describe(), drawn)
    with _lock:
        _open.remove(describe)
        _erase(drawn)


def _draw(text: str, drawn: int) -> int:
    """Writes a line over the one before, which had `drawn` characters; blanks erase in a notebook, too."""
    line = shortened(_line(text), width() - 1)
    print(f"\r{line:{drawn}}", end="", file=sys.stderr, flush=True)
    return len(line)


def _erase(drawn: int) -> None:
    if drawn:
        print(f"\r{'':{drawn}}\r", end="", file=sys.stderr, flush=True)


def _is_in_place(file: TextIO) -> bool:
    """True for a notebook, and for a terminal that nothing has wrapped: a live display prints whole lines above it."""
    is_notebook = type(file).__module__.startswith("ipykernel")
    return is_notebook or (sys.stderr is sys.__stderr__ and is_terminal(file))
