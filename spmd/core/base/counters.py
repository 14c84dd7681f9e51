"""Notes on the library's own work: counters, timers, samples, trace rows, the compile log, the pace of recording."""

import contextlib
import itertools
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import CodeType

import jax
import torch

from .compile_record import CompileRecord as CompileRecord
from .config import config
from .forking import survives_fork
from .state import PerThread, held

KEPT = 1024  # samples of a metric; their number and sum go on
PREFIX = "spmd::"  # of the names of trace rows


class Pace:
    """The number of recorded ops, and the number at which the recorder looks for ops that must run.

    Plain numbers: the recorder adds to them under its own lock. recorded_ops: since the start. synced_ops: their number
    at the last sync. look_at: the number at which the recorder looks. wait: from the last look to this one. longest: of
    the graphs that were synced: a step of this length has no loop in it. has_cut: whether finished iterations of a loop
    have run since the last sync. early: ops of two iterations of the loop found last, 0 since a look found none: so
    many may be the loop again.
    """

    __slots__ = ("early", "has_cut", "longest", "look_at", "recorded_ops", "synced_ops", "wait")

    def __init__(self) -> None:
        self.recorded_ops = self.synced_ops = self.look_at = self.wait = self.longest = self.early = 0
        self.has_cut = False

    def look_after(self, num_ops: int) -> None:
        """Has the recorder look again after so many ops, at the latest `config.max_pending_ops` after the last sync."""
        self.wait = num_ops
        limit = self.synced_ops + config.max_pending_ops
        self.look_at = min(self.recorded_ops + num_ops, limit) if config.loop_search_ops else limit

    def rest(self, num_ops: int, *, had_loop: bool) -> None:
        """Resets the counts after a sync over the first `num_ops` ops. A step is as long as the longest so far; only
        one of three times that length may have a loop in it."""
        self.has_cut = False
        if not had_loop:
            self.longest = max(self.longest, num_ops - self.synced_ops)
        self.synced_ops = num_ops
        self.look_after(self.early or max(config.loop_search_ops, 3 * self.longest))

    def unchanged(self) -> AbstractContextManager[None]:
        """Restores the counts at the end."""
        return held(self, **{name: getattr(self, name) for name in self.__slots__})


class Metric:
    """The samples of one metric: their number, their sum, and the newest as (seconds since the epoch, value)."""

    __slots__ = ("count", "samples", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.samples: deque[tuple[float, float]] = deque(maxlen=KEPT)


pace = Pace()
when_cleared: list[Callable[[], None]] = []  # called by `clear`: tables of packages

_is_silent = PerThread(False)  # this thread's programs are not counted
_forgotten_ops = 0  # recorded before the last `clear`

_lock = survives_fork(threading.Lock())
_counters: Counter[str] = Counter()
_timers: defaultdict[str, float] = defaultdict(float)
_metrics: defaultdict[str, Metric] = defaultdict(Metric)
_compile_log: deque[CompileRecord] = deque(maxlen=10_000)
_num_logged_at_clear = 0
_fallbacks: Counter[str] = Counter()
_notes: deque[str] = deque(maxlen=100)


def add(name: str, amount: int = 1) -> None:
    """Adds to a counter."""
    if not _is_silent.value:
        with _lock:
            _counters[name] += amount


def add_time(name: str, seconds: float) -> None:
    """Adds to a timer."""
    if not _is_silent.value:
        with _lock:
            _timers[name] += seconds


def add_sample(name: str, value: float) -> None:
    """Adds a sample to a metric of PyTorch/XLA's (`spmd.torch_xla.xla_metrics`); times in ns, sizes in bytes."""
    if not _is_silent.value:
        with _lock:
            metric = _metrics[name]
            metric.count += 1
            metric.total += value
            metric.samples.append((time.time(), value))


class Transfer:
    """A context that adds its time to a metric, and the bytes to another; nothing where it raises.

    No generator: raised through one, an error's frames hold each other in Python 3.13.
    """

    __slots__ = ("data", "metric", "num_bytes", "started")

    def __init__(self, metric: str, data: str, num_bytes: int):
        self.metric, self.data, self.num_bytes = metric, data, num_bytes

    def __enter__(self) -> None:
        self.started = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            add_sample(self.metric, time.perf_counter_ns() - self.started)
            add_sample(self.data, self.num_bytes)


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
    if not _is_silent.value:
        add_sample("CompileTime", record.seconds * 1e9)
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
    """The value of a counter, 0 when nothing was counted: "recorded_ops", "syncs", "runs", "host_reads", ...

    >>> import torch, spmd
    >>> before = spmd.metrics.counter("syncs")
    >>> (torch.ones(2, device="xla") + 1).tolist()
    [2.0, 2.0]
    >>> spmd.metrics.counter("syncs") - before
    1
    """
    return pace.recorded_ops - _forgotten_ops if name == "recorded_ops" else _counters[name]


def counter_names() -> list[str]:
    """The names of the counters that are not zero.

    >>> import torch, spmd
    >>> (torch.ones(2, device="xla") + 1).tolist()
    [2.0, 2.0]
    >>> "syncs" in spmd.metrics.counter_names()
    True
    """
    return sorted([*_counters, "recorded_ops"])


def timer(name: str) -> float:
    """Total seconds of a timer: "key" (graph key at a sync), "dispatch" (handing a program to PJRT), "compile", of
    which "lower" (to StableHLO), "roll" (finding isomorphic layers), "load" (of programs kept on disk).

    >>> import torch, spmd
    >>> (torch.ones(2, device="xla") + 1).tolist()
    [2.0, 2.0]
    >>> spmd.metrics.timer("dispatch") > 0
    True
    """
    return _timers[name]


def compiles() -> list[CompileRecord]:
    """The compile log, oldest first.

    >>> import torch, spmd
    >>> spmd.metrics.clear()
    >>> (torch.ones(29, device="xla") + 1).sum().item()
    58.0
    >>> [record.nodes > 0 for record in spmd.metrics.compiles()]
    [True]
    """
    return list(_compile_log)


def num_compiles() -> int:
    """The number of compilations of XLA's backend in this process, counted by `jax.monitoring`, not by our own cache,
    without those of `spmd.plan`.

    >>> import torch, spmd
    >>> x = torch.ones(4, device="xla")
    >>> for step in range(5):
    ...     x = x + 1
    ...     spmd.sync()
    ...     if step == 2:
    ...         before = spmd.metrics.num_compiles()
    >>> spmd.metrics.num_compiles() - before
    0
    """
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
    """Empties counters, timers, samples, compile log, and the tables of packages.

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.compiles()
    []
    """
    with _lock:
        for table in (_timers, _metrics, _compile_log, _notes):
            table.clear()
    clear_counters()
    for forget in when_cleared:
        forget()


def clear_metrics() -> None:
    """Drops the samples of metrics."""
    with _lock:
        _metrics.clear()


def metric_names() -> list[str]:
    """The metrics that have samples."""
    return sorted(_metrics)


def metric(name: str) -> Metric | None:
    """The samples of a metric; None where it has none."""
    return _metrics.get(name)


def clear_counters() -> None:
    """Empties the counters alone."""
    global _forgotten_ops, _num_logged_at_clear
    _forgotten_ops = pace.recorded_ops
    with _lock:
        _num_logged_at_clear = len(_compile_log)
        _counters.clear()
        _fallbacks.clear()


def num_logged() -> int:
    """The programs in the compile log since counters were cleared."""
    return len(_compile_log) - _num_logged_at_clear


def place_of_code(code: CodeType) -> str:
    """Returns the name of a function in `CompileRecord.functions`."""
    return f"{code.co_filename}:{code.co_firstlineno}"


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Restores counters, timers, compile log and fallbacks at the end."""
    copies = [(table, table.copy()) for table in (_counters, _timers, _fallbacks)]
    records = list(_compile_log)
    try:
        yield
    finally:
        with _lock:
            for table, copy in copies:
                table.clear()
                table.update(copy)
            _compile_log.clear()
            _compile_log.extend(records)


def report() -> str:
    """Returns counters, timers, the compile log, and the full text of messages that were shortened.

    >>> import spmd
    >>> print(spmd.metrics.report().splitlines()[0])
    compiled: ..., loaded from disk: ...
    """
    lines = [f"compiled: {num_compiles():,}, loaded from disk: {num_loaded():,}"]
    lines += [f"{name}: {counter(name):,}" for name in counter_names()]
    lines += [f"{name}: {seconds:.4f} s" for name, seconds in sorted(_timers.items())]
    lines += [str(record) for record in _compile_log]
    lines += [f"note: {text}" for text in _notes]
    return "\n".join(lines)


def silent() -> contextlib.AbstractContextManager[None]:
    """Excludes programs that this thread compiles inside from the counters and the compile log."""
    return _is_silent.held(True)


def _on_duration(event: str, duration_secs: float, **_: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        add("backend_compiles")


jax.monitoring.register_event_duration_secs_listener(_on_duration)

now = time.perf_counter


# --- trace rows: spans of the host's work in jax's traces and in torch.profiler's; nothing where neither is on -------

_NOTHING: AbstractContextManager[object] = contextlib.nullcontext()
_is_jax_on = jax.profiler.TraceAnnotation.is_enabled
_is_torch_on = torch.autograd._profiler_enabled


def span(name: str, about: Callable[[], dict[str, str]] = dict) -> AbstractContextManager[object]:
    """A context that is a row of the traces that are on. about: makes its arguments, only where it is one."""
    if not _is_jax_on():
        return torch.profiler.record_function(PREFIX + name) if _is_torch_on() else _NOTHING
    stack = contextlib.ExitStack()
    stack.enter_context(jax.profiler.TraceAnnotation(PREFIX + name, **about()))
    if _is_torch_on():
        stack.enter_context(torch.profiler.record_function(PREFIX + name))
    return stack


# The row of a thread's recording that is open, since the first op after a sync.
_recording = PerThread[jax.profiler.TraceAnnotation | None](None)


def note_op() -> None:
    """Opens the row of this thread's recording, unless it is open."""
    if _recording.value is None and _is_jax_on():
        _recording.value = jax.profiler.TraceAnnotation(f"{PREFIX}record")
        _recording.value.__enter__()


def end_recording() -> None:
    """Closes the row of this thread's recording: a sync begins."""
    if _recording.value is not None:
        _recording.value.__exit__(None, None, None)
        _recording.value = None
