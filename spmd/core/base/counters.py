"""Counters, timers and the compile log: the library's work, and the causes of its compilations."""

import contextlib
import functools
import inspect
import itertools
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import jax

from . import samples
from .forking import survives_fork
from .move import Move
from .pace import pace
from .state import held


@dataclass(frozen=True, slots=True)
class Collective:
    """One row of a program's table of collectives.

    Attributes:
        kind: XLA's name of it: "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute", ...
        axes: the mesh axes of its devices. devices: the number that exchange data with each other.
        bytes: of the arrays that they gather, reduce or exchange, on one device: the gathered, the unreduced array.
        count: its number in one run; in a loop it counts once for each iteration.
        op: the recorded op that it came from; of collectives that XLA has combined the number of arrays and the op of
            the first, whose line it has; line: the user's line of that op; path: the module or parameter it
            belongs to, as `named_modules` names it ("" except in `spmd.plan`, which reads the modules).
        is_sliced: each device keeps only a slice of this all-reduce. The CPU, which has no other, implements a
            reduce-scatter so.
        link: its network, where the devices are several slices: "ici" inside of a slice, "dcn" between slices.
        is_async: it overlaps with computation, as the program is scheduled. core: "sparsecore" where these cores of a
            TPU run it, next to the others.
        seconds: of all counts together, by the clock of a plan (0 elsewhere); waiting: those that nothing covers.
    """

    kind: str
    axes: tuple[str, ...]
    devices: int
    bytes: int
    count: int
    op: str = ""
    line: str = ""
    path: str = ""
    is_sliced: bool = False
    link: str = ""
    is_async: bool = False
    core: str = ""
    seconds: float = 0.0
    waiting: float = 0.0

    @property
    def moved_bytes(self) -> int:
        """The bytes that each device sends in one run, all counts together, by a ring: (n - 1) / n of the bytes, of an
        all-reduce twice that, of a permutation all."""
        share = {"all-reduce": 2 * (self.devices - 1), "collective-permute": self.devices}
        return self.count * self.bytes * share.get(self.kind, self.devices - 1) // self.devices

    def __str__(self) -> str:
        kind = f"{self.kind} and slice" if self.is_sliced else self.kind
        overlap = " overlapped with other work" if self.is_async else ""
        where = f" | {self.path}" if self.path else ""
        link = f", {self.link}" if self.link else ""
        return (
            f"{self.count:,} x {kind} of {self.bytes:,} B over {' x '.join(self.axes)} ({self.devices}{link}), "
            f"moves {self.moved_bytes:,} B{overlap}{where} | {self.op}, {self.line}"
        )


@dataclass(frozen=True, slots=True)
class CompileRecord:
    """One compiled program: a line of the compile log. Bytes are per device.

    Attributes:
        name: "step", "init" or another name of the program. cause: the reason to compile it, or to load it from disk.
        line: the user's line whose sync needed it. seconds: tracing, lowering and XLA together, or loading.
        nodes: recorded ops in it. loops: (trip count, ops of an iteration) where isomorphic layers became a loop of the
            program, which were lowered once instead of once an iteration (`config.scan_layers`). flops: XLA's own
            count, per device, products in loops times their trip counts (0 where the backend gives none).
        collectives: kind -> number in the text of the optimized program. traffic: the same as a table, with mesh axes,
            bytes, counts and lines (see `Collective`); the most bytes come first. functions: the user's functions that
            recorded its ops or needed it, each as "file:first line". passes: (name, what it changed or why it did not)
            of the passes over its graph that had something to say. moves: the values that the partitioner moved and no
            annotation requests, those of more than `config.moves_above` bytes (see `Move`).
    """

    name: str
    cause: str
    line: str
    seconds: float
    nodes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    flops: float
    collectives: dict[str, int] = field(default_factory=dict)
    traffic: tuple[Collective, ...] = ()
    loops: tuple[tuple[int, int], ...] = ()
    functions: tuple[str, ...] = ()
    passes: tuple[tuple[str, str], ...] = ()
    moves: tuple[Move, ...] = ()

    @property
    def unused_axes(self) -> tuple[str, ...]:
        """Sentences on the mesh axes of a mark that an op cannot use."""
        return tuple(words for name, words in self.passes if name == "unused axis")

    def __str__(self) -> str:
        moved = ", ".join(f"{count} {kind}" for kind, count in sorted(self.collectives.items())) or "no collectives"
        if self.moves:
            sent = sum(move.bytes for move in self.moves)
            moved += f" ({len(self.moves)} moves of {sent:,} B that no annotation requests)"
        moved += "".join(f"; {words}" for words in self.unused_axes)
        iterations = ", ".join(f"{iterations} times {ops}" for iterations, ops in self.loops)
        spared = sum((iterations - 1) * ops for iterations, ops in self.loops)
        scanned = f" ({self.nodes - spared} lowered: {iterations} in loops)" if self.loops else ""
        return (
            f"{self.name}: {self.cause} | {self.line} | {self.seconds:.2f} s, {self.nodes} ops{scanned}, {moved} | "
            f"per device: arguments {self.argument_bytes:,} B, results {self.output_bytes:,} B "
            f"({self.alias_bytes:,} B in place), temporary {self.temp_bytes:,} B"
        )


class _Thread(threading.local):
    is_silent = False  # this thread's programs are not counted


_thread = _Thread()
_forgotten_ops = 0  # recorded before the last `clear`

_lock = survives_fork(threading.Lock())
_counters: Counter[str] = Counter()
_timers: defaultdict[str, float] = defaultdict(float)
_compile_log: deque[CompileRecord] = deque(maxlen=10_000)
_logged_before = 0  # the length of the log when counters were cleared
_fallbacks: Counter[str] = Counter()
_notes: deque[str] = deque(maxlen=100)


def add(name: str, amount: int = 1) -> None:
    """Adds to a counter."""
    if not _thread.is_silent:
        with _lock:
            _counters[name] += amount


def add_time(name: str, seconds: float) -> None:
    """Adds to a timer."""
    if not _thread.is_silent:
        with _lock:
            _timers[name] += seconds


def add_sample(name: str, value: float) -> None:
    """Adds a sample to a metric of PyTorch/XLA's (`spmd.torch_xla.xla_metrics`)."""
    if not _thread.is_silent:
        samples.add(name, value)


def add_fallback(op: str) -> None:
    """Counts an op without a rule that ran on the CPU (`config.fallback`)."""
    with _lock:
        _counters["fallbacks"] += 1
        _fallbacks[op] += 1


def fallback_ops() -> dict[str, int]:
    """The ops without a lowering rule that ran on the CPU, and how often (see `config.fallback`); most often first.

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.fallback_ops()
    {}
    """
    return dict(_fallbacks.most_common())


def record_compile(record: CompileRecord) -> None:
    """Writes a line of the compile log."""
    if not _thread.is_silent:
        samples.add("CompileTime", record.seconds * 1e9)
        with _lock:
            _compile_log.append(record)


def add_note(text: str) -> None:
    """Keeps the full text of a line that was shortened, for the report."""
    with _lock:
        _notes.append(text)


def last_compile() -> CompileRecord | None:
    """Returns the last line of the compile log."""
    with _lock:
        return _compile_log[-1] if _compile_log else None


def compiled_since(last: CompileRecord | None) -> tuple[CompileRecord, ...]:
    """Returns the lines of the compile log after this one, oldest first."""
    with _lock:
        return tuple(itertools.takewhile(lambda record: record is not last, reversed(_compile_log)))[::-1]


def counter(name: str) -> int:
    """The value of a counter, 0 when nothing was counted: "recorded_ops", "syncs", "runs", "host_reads", ..."""
    return pace.recorded_ops - _forgotten_ops if name == "recorded_ops" else _counters[name]


def counter_names() -> list[str]:
    """The names of the counters that are not zero."""
    return sorted([*_counters, "recorded_ops"])


def timer(name: str) -> float:
    """Total seconds of a timer: "key" (graph key at a sync), "dispatch" (handing a program to PJRT), "compile", of
    which "lower" (to StableHLO), "roll" (finding isomorphic layers), "load" (of programs kept on disk)."""
    return _timers[name]


def compiles() -> list[CompileRecord]:
    """The compile log, oldest first."""
    return list(_compile_log)


def num_compiles() -> int:
    """The number of compilations of XLA's backend in this process, counted by `jax.monitoring`, not by our own cache,
    without those of `spmd.plan`."""
    return _counters["backend_compiles"]


def num_loaded() -> int:
    """The number of programs that were taken from the disk and not compiled (`config.program_cache`).

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.num_compiles(), spmd.metrics.num_loaded()
    (0, 0)
    """
    return _counters["programs_loaded"]


def clear() -> None:
    """Empties counters, timers and compile log."""
    samples.clear()
    with _lock:
        _timers.clear()
        _compile_log.clear()
        _notes.clear()
    clear_counters()


def clear_counters() -> None:
    """Empties the counters alone."""
    global _forgotten_ops, _logged_before
    _forgotten_ops = pace.recorded_ops
    with _lock:
        _logged_before = len(_compile_log)
        _counters.clear()
        _fallbacks.clear()


def num_logged() -> int:
    """The programs in the compile log since counters were cleared."""
    return len(_compile_log) - _logged_before


def explain(step: Callable[..., Any] | str | None = None, *, passes: bool = False) -> str:
    """Describes a program: its line of the compile log, then its collectives and the moves that no annotation
    requests (`Move`), a line each.

    Args:
        step: None: the program that was compiled last. A function (or method, module, partial): the last one that has
            ops recorded in it, or whose sync is called in it. A text: the last one whose name, cause or sync's line
            contains it.
        passes: a line more for each pass over its graph that changed it, or says why it did not.

    Raises TypeError for another step.

    >>> import torch, spmd
    >>> y = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    >>> "per device" in spmd.metrics.explain()
    True
    """
    records = compiles()
    if not records:
        return "nothing was compiled"
    if step is None:
        record: CompileRecord | None = records[-1]
    elif isinstance(step, str):
        texts = [(record, f"{record.name}: {record.cause} | {record.line}") for record in records]
        record = next((record for record, text in reversed(texts) if step in text), None)
    else:
        places = _places_of(step)
        record = next((record for record in reversed(records) if not places.isdisjoint(record.functions)), None)
    if record is None:
        what = repr(step) if isinstance(step, str) else " or ".join(sorted(places))
        return f"none of the {len(records):,} programs in the compile log is of {what}"
    said = [f"    pass {name}: {what}" for name, what in record.passes] if passes else []
    return "\n".join([str(record), *(f"    {row}" for row in (*record.traffic, *record.moves)), *said])


def place_of_code(code: CodeType) -> str:
    """Returns the name of a function in `CompileRecord.functions`."""
    return f"{code.co_filename}:{code.co_firstlineno}"


def _places_of(step: Any) -> set[str]:
    """The places of a function and of the functions defined inside it."""
    while isinstance(step, functools.partial):
        step = step.func
    function: Any = step
    if not inspect.isroutine(step):  # a module, or another object that is called
        function = getattr(step, "forward", None) or inspect.getattr_static(type(step), "__call__", None)
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(step) else None
    if code is None:
        raise TypeError(f"explain: expected a function written in Python, a text or None, got {step!r}")
    found, waiting = set(), [code]
    while waiting:
        code = waiting.pop()
        found.add(place_of_code(code))
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return found


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Restores counters, timers, compile log and fallbacks at the end."""
    kept = [(box, box.copy()) for box in (_counters, _timers, _fallbacks)]
    lines = list(_compile_log)
    try:
        yield
    finally:
        with _lock:
            for box, before in kept:
                box.clear()
                box.update(before)
            _compile_log.clear()
            _compile_log.extend(lines)


def report() -> str:
    """Returns counters, timers, the compile log, and the full text of messages that were shortened."""
    lines = [f"compiled: {num_compiles():,}, loaded from disk: {num_loaded():,}"]
    lines += [f"{name}: {counter(name):,}" for name in counter_names()]
    lines += [f"{name}: {seconds:.4f} s" for name, seconds in sorted(_timers.items())]
    lines += [str(record) for record in _compile_log]
    lines += [f"note: {text}" for text in _notes]
    return "\n".join(lines)


def silent() -> contextlib.AbstractContextManager[None]:
    """Excludes programs that this thread compiles inside from the counters and the compile log."""
    return held(_thread, is_silent=True)


def _on_duration(event: str, duration_secs: float, **_: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        add("backend_compiles")


jax.monitoring.register_event_duration_secs_listener(_on_duration)

now = time.perf_counter
