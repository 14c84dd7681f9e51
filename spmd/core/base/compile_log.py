"""The compile log: a record of each compiled or loaded program. Also the functions that clear or
restore the log together with the counters."""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from types import CodeType

from . import counters
from .compile_record import CompileRecord as CompileRecord

_log: deque[CompileRecord] = deque(maxlen=10_000)
_num_at_clear = 0


def add(record: CompileRecord) -> None:
    """Writes a line of the compile log."""
    if not counters.is_silent.value:
        counters.add_sample("CompileTime", record.seconds * 1e9)
        with counters.LOCK:
            _log.append(record)


def last() -> CompileRecord | None:
    """Returns the last line of the compile log."""
    with counters.LOCK:
        return _log[-1] if _log else None


def since(record: CompileRecord | None) -> tuple[CompileRecord, ...]:
    """Returns the lines of the compile log after this one, oldest first."""
    with counters.LOCK:
        return tuple(itertools.takewhile(lambda line: line is not record, reversed(_log)))[::-1]


def compiles() -> list[CompileRecord]:
    """The compile log, oldest first.

    >>> import torch, spmd
    >>> spmd.metrics.clear()
    >>> (torch.ones(29, device="xla") + 1).sum().item()
    58.0
    >>> [record.nodes > 0 for record in spmd.metrics.compiles()]
    [True]
    """
    return list(_log)


def clear() -> None:
    """Empties counters, timers, samples, compile log, and the tables of packages.

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.compiles()
    []
    """
    with counters.LOCK:
        _log.clear()
    counters.clear_all()
    clear_counters()
    for forget in counters.when_cleared:
        forget()


def clear_counters() -> None:
    """Empties the counters alone."""
    global _num_at_clear
    counters.clear_counters()
    _num_at_clear = len(_log)


def num_since_clear() -> int:
    """The programs in the compile log since counters were cleared."""
    return len(_log) - _num_at_clear


def place_of_code(code: CodeType) -> str:
    """Returns the text by which `CompileRecord.functions` names a function."""
    return f"{code.co_filename}:{code.co_firstlineno}"


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Restores counters, timers, compile log and fallbacks at the end."""
    records = list(_log)
    with counters.unchanged():
        try:
            yield
        finally:
            with counters.LOCK:
                _log.clear()
                _log.extend(records)


def report() -> str:
    """Returns counters, timers, the compile log, and the full text of messages that were shortened.

    >>> import spmd
    >>> print(spmd.metrics.report().splitlines()[0])
    compiled: ..., loaded from disk: ...
    """
    return "\n".join([*counters.lines(), *map(str, _log), *counters.notes()])
