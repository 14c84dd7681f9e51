"""Hints: what costs a step time again and again, with cause, line and advice (as PyTorch/XLA's
PT_XLA_DEBUG)."""

import sys
import threading
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from ...core import CompileRecord, compile_log, config, ends_at_user_line, forking, points
from ...core.extend import Graph, Line, Program
from .difference import is_of_shapes

_FIRST = "first program of this sync"
_ADVICE = {
    "read": (
        "keep it on the device (torch.where, a sum), or read it every hundredth step or after the "
        "next sync"
    ),
    "fallback": "give the op a rule by spmd.register_lowering, or a JAX function by spmd.call_jax",
    "shape": "pad to a few sizes, or name the dim by spmd.mark_dynamic",
    "idle": "or take batches from spmd.DataLoader, or wrap the model by fsdp.fully_shard",
    "compile": "with spmd.no_recompile(): makes it an error",
}
_DONE = {
    "compile": "compiles again",
    "read": "waits for the device",
    "fallback": "runs on the CPU",
    "idle": "uses one device of several",
}
_READS = 3  # of one line, from which on they are said


class CostlyLine(NamedTuple):
    """A line of the user's that did something: its kind ("read", "fallback", "idle"), the call, the
    line."""

    kind: str
    call: str
    line: str


_lock = forking.survives_fork(threading.Lock())
_counts: Counter[CostlyLine] = Counter()
_seconds: Counter[CostlyLine] = Counter()  # in nanoseconds: whole numbers
points.when_cleared += [_counts.clear, _seconds.clear]


@dataclass(frozen=True, slots=True)
class Hint:
    """A line of yours that costs time again and again.

    Attributes:
        kind: "compile", "read" (of a value that the device computes), "fallback" (an op that runs
            on the CPU) or "idle" (steps on one device of several). line: yours. count, seconds: of
            all of them. cause: the difference from the nearest program, the call that reads, the
            op, the mark to write. advice: what to do.

    >>> import spmd
    >>> for hint in spmd.profiler.hints():
    ...     assert hint.count > 0 and hint.advice
    """

    kind: str
    line: str
    count: int
    seconds: float
    cause: str
    advice: str

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count:,} times"
        return (
            f"{_DONE[self.kind]} {times}, {self.seconds:.3f} s, at {self.line}: {self.cause}; "
            f"{self.advice}"
        )


@ends_at_user_line
def hints() -> list[Hint]:
    """The compilations after the first, the reads and the fallbacks of this process, by your line;
    the longest first.

    A line that reads less than three times is left out. `spmd.metrics.clear()` begins again.
    `spmd.config.hints = 1` (PT_XLA_DEBUG=1) prints them on stderr as they happen, 2 each run, too.

    >>> import torch, spmd
    >>> spmd.metrics.clear()
    >>> for _ in range(3):
    ...     _ = torch.rand(2, device="xla").sum().item()
    >>> [(hint.kind, hint.count) for hint in spmd.profiler.hints() if hint.kind == "read"]
    [('read', 3)]
    """
    result = [
        _of_line(costly)
        for costly, _ in _seconds.most_common()
        if costly.kind != "read" or _counts[costly] >= _READS
    ]
    later: dict[str, list[CompileRecord]] = {}
    for record in compile_log.compiles():
        if not _is_first(record):
            later.setdefault(record.line, []).append(record)
    result += [_of_compiles(line, records) for line, records in later.items()]
    return sorted(result, key=lambda hint: -hint.seconds)


def _is_first(record: CompileRecord) -> bool:
    return record.name != "step" or _FIRST in record.cause


def _of_line(costly: CostlyLine) -> Hint:
    kind, call, line = costly
    return Hint(kind, line, _counts[costly], _seconds[costly] / 1e9, call, _ADVICE[kind])


def _of_compiles(line: str, records: list[CompileRecord]) -> Hint:
    cause = records[-1].cause
    advice = _ADVICE[
        "shape" if is_of_shapes(cause) or "the length is no operand" in cause else "compile"
    ]
    return Hint(
        "compile", line, len(records), sum(record.seconds for record in records), cause, advice
    )


def note_read(call: str, line: Line, seconds: float) -> None:
    """Notes a read that waited so long for the device."""
    _note(CostlyLine("read", call, str(line)), seconds, _READS)


def note_fallback(op: str, line: Line, seconds: float) -> None:
    """Notes an op that ran on the CPU."""
    _note(CostlyLine("fallback", op, str(line)), seconds, 1)


def note_idle(cause: str, line: Line, steps: int) -> None:
    """Notes so many steps that used one device of several."""
    _note(CostlyLine("idle", cause, str(line)), 0.0, 0, steps)


def _note(costly: CostlyLine, seconds: float, first: int, times: int = 1) -> None:
    """Counts a costly line, and says its hint at the first count that matters and at each power of
    ten."""
    with _lock:
        _counts[costly] += times
        _seconds[costly] += int(seconds * 1e9)
    count = _counts[costly]
    if config.hints and (count == first or (count >= 10 and str(count).strip("0") == "1")):
        _say(str(_of_line(costly)))


def note_compile(program: Program, graph: Graph, head: str) -> None:
    """Says why a program was compiled."""
    record = program.record
    if record is not None:
        hint = _of_compiles(record.line, [record])
        size = f"{record.seconds:.3f} s, {record.nodes:,} ops"
        _say(f"{record.name} compiled in {size}, at {record.line}: {record.cause}")
        if not _is_first(record):
            _say(hint.advice)


def note_run(program: Program) -> None:
    """Says which program runs, if `config.hints` is 2."""
    if config.hints > 1:
        _say(
            f"runs the program of {program.line}: {len(program.entries):,} ops, "
            f"{len(program.inputs):,} inputs"
        )


def _say(text: str) -> None:
    print(f"spmd hint: {text}", file=sys.stderr, flush=True)
