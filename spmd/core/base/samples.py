"""Samples of metrics, as PyTorch/XLA keeps them, and what the host did again and again, by the user's line."""

import threading
import time
from collections import Counter, deque
from typing import NamedTuple

from .forking import survives_fork

KEPT = 1024  # samples of a metric; their number and sum go on


class Metric:
    """The samples of one metric: their number, their sum, and the newest as (seconds since the epoch, value)."""

    __slots__ = ("count", "samples", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.samples: deque[tuple[float, float]] = deque(maxlen=KEPT)


class CostlyPlace(NamedTuple):
    """A line of the user's that did something: its kind ("read", "fallback"), the call, the line."""

    kind: str
    call: str
    line: str


_lock = survives_fork(threading.Lock())
_metrics: dict[str, Metric] = {}
_counts: Counter[CostlyPlace] = Counter()
_seconds: Counter[CostlyPlace] = Counter()


def add(name: str, value: float) -> None:
    """Adds a sample to a metric. Times are in nanoseconds, sizes in bytes."""
    with _lock:
        metric = _metrics.get(name)
        if metric is None:
            metric = _metrics[name] = Metric()
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
            add(self.metric, time.perf_counter_ns() - self.started)
            add(self.data, self.num_bytes)


def note(place: CostlyPlace, seconds: float) -> int:
    """Counts what a line did, and its seconds; returns the count."""
    with _lock:
        _counts[place] += 1
        _seconds[place] += int(seconds * 1e9)
        return _counts[place]


def places() -> list[tuple[CostlyPlace, int, float]]:
    """Each line with the count and the seconds of what it did; the longest first."""
    with _lock:
        return [(place, _counts[place], seconds / 1e9) for place, seconds in _seconds.most_common()]


def names() -> list[str]:
    """The metrics that have samples."""
    return sorted(_metrics)


def metric(name: str) -> Metric | None:
    """The samples of a metric; None where it has none."""
    return _metrics.get(name)


def clear_metrics() -> None:
    """Drops the samples of metrics."""
    with _lock:
        _metrics.clear()


def clear() -> None:
    """Drops all samples."""
    clear_metrics()
    with _lock:
        _counts.clear()
        _seconds.clear()
