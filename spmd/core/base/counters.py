"""Counters, timers and samples of the library's own work."""

import contextlib
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator

import jax

from .forking import survives_fork
from .pace import pace
from .state import PerThread

MOST_SAMPLES = 1024  # samples of a metric; their number and sum go on


class Metric:
    """The samples of one metric: their number, their sum, and the newest as (seconds since the
    epoch, value)."""

    __slots__ = ("count", "samples", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.samples: deque[tuple[float, float]] = deque(maxlen=MOST_SAMPLES)


when_cleared: list[Callable[[], None]] = []  # called by `clear`: tables of packages

is_silent = PerThread(False)  # this thread's programs are not counted
_forgotten_ops = 0  # recorded before the last `clear`

LOCK = survives_fork(threading.Lock())
_counters: Counter[str] = Counter()
_timers: defaultdict[str, float] = defaultdict(float)
_metrics: defaultdict[str, Metric] = defaultdict(Metric)
_fallbacks: Counter[str] = Counter()
_notes: deque[str] = deque(maxlen=100)


def add(name: str, amount: int = 1) -> None:
    """Adds to a counter."""
    if not is_silent.value:
        with LOCK:
            _counters[name] += amount


def add_time(name: str, seconds: float) -> None:
    """Adds to a timer."""
    if not is_silent.value:
        with LOCK:
            _timers[name] += seconds


def add_sample(name: str, value: float) -> None:
    """Adds a sample to a metric of PyTorch/XLA's (`spmd.torch_xla.xla_metrics`); times in ns, sizes
    in bytes."""
    if not is_silent.value:
        with LOCK:
            metric = _metrics[name]
            metric.count += 1
            metric.total += value
            metric.samples.append((time.time(), value))


class Transfer:
    """A context that adds its time to one metric and the bytes to another, unless it raises.

    Not a generator: an error raised through one leaves a reference cycle of frames in Python 3.13.
    """

    __slots__ = ("num_bytes", "size_metric", "started", "time_metric")

    def __init__(self, time_metric: str, size_metric: str, num_bytes: int):
        self.time_metric, self.size_metric, self.num_bytes = time_metric, size_metric, num_bytes

    def __enter__(self) -> None:
        self.started = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            add_sample(self.time_metric, time.perf_counter_ns() - self.started)
            add_sample(self.size_metric, self.num_bytes)


def add_fallback(op: str) -> None:
    """Counts an op without a rule that ran on the CPU (`config.fallback`)."""
    with LOCK:
        _counters["fallbacks"] += 1
        _fallbacks[op] += 1


def fallback_ops() -> dict[str, int]:
    """The ops without a lowering rule that ran on the CPU, and how often (see `config.fallback`);
    most often first.

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.fallback_ops()
    {}
    """
    return dict(_fallbacks.most_common())


def add_note(text: str) -> None:
    """Keeps the full text of a line that was shortened, for the report."""
    with LOCK:
        _notes.append(text)


def counter(name: str) -> int:
    """The value of a counter, 0 when nothing was counted: "recorded_ops", "syncs", "runs",
    "host_reads", ...

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
    """Total seconds of a timer: "key" (graph key at a sync), "dispatch" (handing a program to
    PJRT), "compile", of which "lower" (to StableHLO), "roll" (finding isomorphic layers), "load"
    (of programs kept on disk).

    >>> import torch, spmd
    >>> (torch.ones(2, device="xla") + 1).tolist()
    [2.0, 2.0]
    >>> spmd.metrics.timer("dispatch") > 0
    True
    """
    return _timers[name]


def num_compiles() -> int:
    """The number of compilations of XLA's backend in this process, counted by `jax.monitoring`, not
    by our own cache, without those of `spmd.plan`.

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
    """The number of programs that were taken from the disk and not compiled
    (`config.program_cache`).

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.metrics.num_compiles(), spmd.metrics.num_loaded()
    (0, 0)
    """
    return _counters["programs_loaded"]


def clear_metrics() -> None:
    """Drops the samples of metrics."""
    with LOCK:
        _metrics.clear()


def metric_names() -> list[str]:
    """The metrics that have samples."""
    return sorted(_metrics)


def metric(name: str) -> Metric | None:
    """The samples of a metric; None where it has none."""
    return _metrics.get(name)


def clear_counters() -> None:
    """Empties the counters alone."""
    global _forgotten_ops
    _forgotten_ops = pace.recorded_ops
    with LOCK:
        _counters.clear()
        _fallbacks.clear()


def clear_all() -> None:
    """Empties timers, samples and notes."""
    with LOCK:
        for table in (_timers, _metrics, _notes):
            table.clear()


@contextlib.contextmanager
def unchanged() -> Iterator[None]:
    """Restores counters, timers and fallbacks at the end."""
    copies = [(table, table.copy()) for table in (_counters, _timers, _fallbacks)]
    try:
        yield
    finally:
        with LOCK:
            for table, copy in copies:
                table.clear()
                table.update(copy)


def lines() -> list[str]:
    """The lines of the report: programs, counters, timers."""
    head = f"compiled: {num_compiles():,}, loaded from disk: {num_loaded():,}"
    counts = [f"{name}: {counter(name):,}" for name in counter_names()]
    return [
        head,
        *counts,
        *(f"{name}: {seconds:.4f} s" for name, seconds in sorted(_timers.items())),
    ]


def notes() -> list[str]:
    """The full text of messages that were shortened."""
    return [f"note: {text}" for text in _notes]


def silent() -> contextlib.AbstractContextManager[None]:
    """Excludes programs that this thread compiles inside from the counters and the compile log."""
    return is_silent.held(True)


def _on_duration(event: str, duration_secs: float, **_: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        add("backend_compiles")


jax.monitoring.register_event_duration_secs_listener(_on_duration)

now = time.perf_counter
