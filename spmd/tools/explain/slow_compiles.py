"""The status line of a compilation that takes long: the number of the program, its size, the user's line, the cause."""

import contextlib
import time
from collections.abc import Iterator

from ...core import counters
from ...core.extend import Line, executables
from .difference import is_of_shapes
from .status import status

# The number of ops from which a program counts as long.
_LONG = 2_000


@contextlib.contextmanager
def while_compiling(num_ops: int, line: Line, cause: str) -> Iterator[None]:
    """Shows, after `config.slow_compile_seconds`, the compilation inside as one line: the number of the program in this
    process, its place among those of its sync, how many were loaded, its ops, seconds and cause."""
    count = counters.counter("programs_compiled") + counters.num_loaded() + 1
    number, parts = executables.part()
    facts = [f"{number:,} of {parts:,}"] if parts > 1 else []
    facts += [f"{counters.num_loaded():,} from disk"] if counters.num_loaded() else []
    of = f" ({'; '.join(facts)})" if facts else ""
    head = f"compiling program {count:,}{of}, {num_ops:,} ops"
    started = time.monotonic()

    def describe() -> str:
        why = f"{line.short()}: {executables.short(cause)}{_advice(num_ops, cause)}"
        seconds = time.monotonic() - started
        return f"{head}, {seconds:.0f} s, {why}" if seconds >= 1 else f"{head}, {why}"

    with status("compiling", describe, together=True):
        yield


def _advice(num_ops: int, cause: str) -> str:
    if is_of_shapes(cause):
        return " (a program per shape: pad)"
    return " (spmd.sync() in the middle makes shorter programs)" if num_ops > _LONG else ""
