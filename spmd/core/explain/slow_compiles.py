"""The status line of a compilation that takes long: the number of the program, its size, the user's line, the cause."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ..base import counters, messages
from ..base.state import held
from ..ir.source import Line
from .difference import is_of_shapes

# The number of ops from which a program counts as long.
_LONG = 2_000
# In a cause: what stands behind the first statement, and the lines of the user.
_REST = re.compile(r"; .*| at \S+:\d+ in .*", re.DOTALL)


class _Thread(threading.local):
    part = (1, 1)  # the number of the program that is compiled among those of its sync, and how many these are


_thread = _Thread()


def part(number: int, count: int) -> contextlib.AbstractContextManager[None]:
    """States which of the programs of its sync is compiled inside."""
    return held(_thread, part=(number, count))


@contextlib.contextmanager
def while_compiling(num_ops: int, line: Line, cause: str) -> Iterator[None]:
    """Shows, after `config.slow_compile_seconds`, the compilation inside as one line: the number of the program in this
    process, its place among those of its sync, how many were loaded, its ops, seconds and cause."""
    count = counters.counter("programs_compiled") + counters.num_loaded() + 1
    number, parts = _thread.part
    known = [f"{number:,} of {parts:,}"] if parts > 1 else []
    known += [f"{counters.num_loaded():,} from disk"] if counters.num_loaded() else []
    of = f" ({'; '.join(known)})" if known else ""
    what = f"compiling program {count:,}{of}, {num_ops:,} ops"
    why = f"{place(line)}: {short(cause)}{_advice(num_ops, cause)}"
    started = time.monotonic()

    def describe() -> str:
        seconds = time.monotonic() - started
        return f"{what}, {seconds:.0f} s, {why}" if seconds >= 1 else f"{what}, {why}"

    with messages.status("compiling", describe, together=True):
        yield


def place(line: Line) -> str:
    """Returns the file and the number of a user's line, in short; the compile log has all of it."""
    return "no line of yours" if line.code is None else f"{Path(line.code.co_filename).name}:{line.number}"


def short(cause: str) -> str:
    """Returns the first statement of a cause, without the user's line.

    >>> short("an input is now float32[5], before float32[8]; aten.mm reads it at a.py:3 in step: x @ w")
    'an input is now float32[5], before float32[8]'
    """
    return _REST.sub("", cause)


def _advice(num_ops: int, cause: str) -> str:
    if is_of_shapes(cause):
        return " (a program per shape: pad)"
    return " (spmd.sync() in the middle makes shorter programs)" if num_ops > _LONG else ""
