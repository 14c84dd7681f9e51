"""The status of what takes long: one line that is updated in place in a terminal or a notebook, and
erased at its end.

Elsewhere it is printed once.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from ...core import cache, config, counters, messages, variables
from ...core.extend import Line, log_entry
from .difference import is_of_shapes

_EVERY = 0.5  # seconds between two updates of a status
_EVERY_IN_A_FILE = 30.0  # the same, where each is a line
_SHORTEST = 0.2  # seconds of a status that is shown
_LONG = 2_000  # ops from which a program counts as long

# since when statuses of a kind follow each other, and the last one's end
_busy: dict[str, tuple[float, float]] = {}
_open: list[Callable[[], str]] = []  # the statuses that are shown, the newest last
_outputs: set[str] = set()  # one for each cell of a notebook that has shown a status


@contextlib.contextmanager
def status(kind: str, describe: Callable[[], str], *, together: bool = False) -> Iterator[None]:
    """Shows what is done inside, from `config.slow_compile_seconds` on; nothing where that is 0.

    describe: called by another thread, again and again where the line is updated in place.
    together: statuses that follow each other count as one, so that many programs of a second each
    are not compiled in silence.
    """
    if not config.slow_compile_seconds:
        yield
        return
    ended, began = threading.Event(), time.monotonic()
    since, until = _busy.get(kind, (began, began))
    since = since if together and began - until < config.slow_compile_seconds else began
    after = max(since + config.slow_compile_seconds - began, _SHORTEST)
    shown = threading.Thread(
        target=_show, args=(kind, describe, after, ended), name="spmd-status", daemon=True
    )
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()
        _busy[kind] = since, time.monotonic()


@contextlib.contextmanager
def while_compiling(num_ops: int, line: Line, cause: str) -> Iterator[None]:
    """Shows, after `config.slow_compile_seconds`, the compilation inside as one line: the number of
    the program in this process, its place among those of its sync, how many were loaded, its ops,
    seconds and cause."""
    count = counters.counter("programs_compiled") + counters.num_loaded() + 1
    number, parts = cache.part.value
    facts = [f"{number:,} of {parts:,}"] if parts > 1 else []
    facts += [f"{counters.num_loaded():,} from disk"] if counters.num_loaded() else []
    of = f" ({'; '.join(facts)})" if facts else ""
    head = f"compiling program {count:,}{of}, {num_ops:,} ops"
    started = time.monotonic()

    def describe() -> str:
        why = f"{line.short()}: {log_entry.short(cause)}{_advice(num_ops, cause)}"
        seconds = time.monotonic() - started
        return f"{head}, {seconds:.0f} s, {why}" if seconds >= 1 else f"{head}, {why}"

    with status("compiling", describe, together=True):
        yield


def _advice(num_ops: int, cause: str) -> str:
    if is_of_shapes(cause):
        return " (a program per shape: pad)"
    return " (spmd.sync() in the middle makes shorter programs)" if num_ops > _LONG else ""


def forget() -> None:
    """Forgets which statuses followed each other."""
    _busy.clear()


def _show(kind: str, describe: Callable[[], str], after: float, ended: threading.Event) -> None:
    if ended.wait(after):
        return
    if not _is_in_place(sys.stderr):
        messages.print_line(describe(), kind)
        while not ended.wait(_EVERY_IN_A_FILE):
            messages.print_line(describe(), kind)
        return
    with messages.LOCK:
        _open.append(describe)
    drawn = ""
    while not ended.wait(_EVERY if drawn else 0):
        with messages.LOCK:
            if _open[-1] is describe:  # of several threads the newest is shown
                drawn = _draw(messages.fitted(describe(), 1), drawn)
    with messages.LOCK:
        _open.remove(describe)
        _draw("", drawn)


def _draw(line: str, drawn: str) -> str:
    """Writes a line, or "", in place of the one before, `drawn`; returns it.

    As the file of a notebook keeps each line that is printed, a cell of a notebook has one output,
    which ends empty.
    """
    if _is_notebook(sys.stderr):
        ipython, data = sys.modules["IPython"], {"text/plain": line} if line else {}
        name = f"spmd-{id(_outputs)}-{ipython.get_ipython().execution_count}"
        ipython.display.display(
            data, raw=True, display_id=name, update=not line or name in _outputs
        )
        if line:
            _outputs.add(name)
    else:
        print(f"\r{line:{len(drawn)}}", end="" if line else "\r", file=sys.stderr, flush=True)
    return line


def _is_notebook(file: TextIO) -> bool:
    return type(file).__module__.startswith("ipykernel")


def _is_in_place(file: TextIO) -> bool:
    """True for a notebook, and for a terminal that nothing has wrapped: a live display prints whole
    lines above it."""
    return _is_notebook(file) or (sys.stderr is sys.__stderr__ and variables.is_terminal(file))
