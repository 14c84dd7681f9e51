"""The functions of `torch_xla.debug.metrics` (met), of this library's counters and samples."""

from collections.abc import Callable, Iterable, Sequence

from ...core import compile_log, counters
from . import execution_time

_PERCENTILES = (0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99)
# PyTorch/XLA's counters that count the same.
_COUNTERS: dict[str, Callable[[], int]] = {
    "MarkStep": lambda: counters.counter("syncs"),
    "UncachedCompile": lambda: counters.counter("programs_compiled"),
    "CachedCompile": lambda: max(counters.counter("runs") - compile_log.num_since_clear(), 0),
    "PersistentCacheHit": lambda: counters.counter("programs_loaded"),
}
# In a short report that names none.
_SHORT_COUNTERS = ("CachedCompile", "MarkStep", "UncachedCompile")
_SHORT_METRICS = ("CompileTime", "ExecuteTime", "TransferToDeviceTime", "TransferFromDeviceTime")


def counter_names() -> list[str]:
    """The names of the counters that are not zero: this library's, and PyTorch/XLA's where they
    count the same.

    >>> import spmd
    >>> "recorded_ops" in spmd.torch_xla.xla_metrics.counter_names()
    True
    """
    theirs = [name for name, count in _COUNTERS.items() if count()]
    return sorted([*counters.counter_names(), *theirs, *executed_fallback_ops()])


def counter_value(name: str) -> int | None:
    """The value of a counter; None where nothing was counted. A fallback to the CPU counts as its
    op, "aten::name".

    "MarkStep": syncs with something to run. "UncachedCompile": programs that were compiled,
    "PersistentCacheHit": taken from the disk, "CachedCompile": runs of a program that was there.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.counter_value("NeverCounted")
    """
    if name in executed_fallback_ops():
        return sum(count for op, count in counters.fallback_ops().items() if _aten(op) == name)
    return (_COUNTERS[name]() if name in _COUNTERS else counters.counter(name)) or None


def metric_names() -> list[str]:
    """The metrics that have samples: see `metric_data`.

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.torch_xla.xla_metrics.metric_names()
    []
    """
    execution_time.settle()
    return counters.metric_names()


def metric_data(name: str) -> tuple[int, float, tuple[tuple[float, float], ...]] | None:
    """The number of samples of a metric, their sum, and the newest 1,024 as (seconds since the
    epoch, value).

    None where there is none.

    Times are in nanoseconds. "CompileTime": of each program, tracing, lowering and XLA together, or
    loading. "DispatchTime": of handing a program to the device, which runs it asynchronously.
    "ExecuteTime": from there to its end, of programs launched after the first use of this module; a
    read waits for those that run. "TransferToDeviceTime" and "OutboundData" (bytes): host to
    device. "TransferFromDeviceTime" and "InboundData": device to host, the wait for the value
    included. "InputOutputAliasCount": inputs whose memory results of a compiled program take.
    "TensorsGraphSize": ops of a sync.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.metric_data("NeverMeasured")
    """
    execution_time.settle()
    metric = counters.metric(name)
    return None if metric is None else (metric.count, metric.total, tuple(metric.samples))


def clear_all() -> None:
    """Empties counters, samples, timers and compile log.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.clear_all()
    """
    execution_time.settle()
    compile_log.clear()


def clear_counters() -> None:
    """Empties the counters; metrics keep their samples.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.clear_counters()
    """
    compile_log.clear_counters()


def clear_metrics() -> None:
    """Drops the samples of all metrics; counters stay.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.clear_metrics()
    """
    execution_time.settle()
    counters.clear_metrics()


def metrics_report() -> str:
    """All metrics and counters as text, in PyTorch/XLA's form; `spmd.metrics.report` has the
    compile log, too.

    >>> import torch, spmd
    >>> y = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    >>> "Counter: recorded_ops" in spmd.torch_xla.xla_metrics.metrics_report()
    True
    """
    return _report(metric_names(), counter_names())


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """The named counters and metrics as text, with the ops that ran on the CPU; those without a
    value are left out. Without names of either kind: compiles and syncs, and the times of
    compiling, running and transfers.

    >>> import torch, spmd
    >>> spmd.torch_xla.xla_metrics.clear_all()
    >>> y = torch.ones(2, device="xla") + 1
    >>> spmd.sync()
    >>> print(spmd.torch_xla.xla_metrics.short_metrics_report(["MarkStep"], ["TensorsGraphSize"]))
    Metric: TensorsGraphSize
      TotalSamples: 1
      Accumulator: 2.00
      Percentiles: 1%=2.00; 5%=2.00; 10%=2.00; 20%=2.00; 50%=2.00; ...; 99%=2.00
    Counter: MarkStep
      Value: 1
    """
    counters_shown = [*(counter_names or _SHORT_COUNTERS), *executed_fallback_ops()]
    return _report(metric_names or _SHORT_METRICS, counters_shown)


def _report(metrics: Iterable[str], names: Iterable[str]) -> str:
    lines = [line for name in metrics for line in _metric_lines(name)]
    for name in names:
        value = counter_value(name)
        lines += [] if value is None else [f"Counter: {name}", f"  Value: {value}"]
    return "\n".join(lines)


def _metric_lines(name: str) -> list[str]:
    data = metric_data(name)
    if data is None:
        return []
    count, total, newest = data
    shown = _shown(name)
    lines = [f"Metric: {name}", f"  TotalSamples: {count}", f"  Accumulator: {shown(total)}"]
    seconds = newest[-1][0] - newest[0][0]
    if seconds > 0:
        lines.append(f"  ValueRate: {shown(sum(value for _, value in newest) / seconds)} / second")
        lines.append(f"  Rate: {len(newest) / seconds:g} / second")
    values = sorted(value for _, value in newest)
    parts = (f"{share:.0%}={shown(values[int(share * len(values))])}" for share in _PERCENTILES)
    return [*lines, f"  Percentiles: {'; '.join(parts)}"]


def _shown(name: str) -> Callable[[float], str]:
    """The text of a metric's values: times and bytes with units, in PyTorch/XLA's form."""
    if name.endswith("Time"):
        return _time
    return _bytes if name.endswith("Data") else "{:.2f}".format


_UNITS = (("d", 86_400e9, 2), ("h", 3_600e9, 2), ("m", 60e9, 2), ("s", 1e9, 2), ("ms", 1e6, 3))


def _time(nanoseconds: float) -> str:
    text = ""
    for unit, scale, width in _UNITS:
        whole, nanoseconds = divmod(nanoseconds, scale)
        if whole or text:
            text += f"{int(whole):0{width}d}{unit}"
    return f"{text}{nanoseconds / 1e3:07.3f}us"


def _bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.2f}{unit}"
        count /= 1024
    return f"{count:.2f}TB"


def executed_fallback_ops() -> list[str]:
    """The ops without a rule that ran on the CPU (`spmd.config.fallback`), as "aten::name".

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.torch_xla.xla_metrics.executed_fallback_ops()
    []
    """
    return sorted({_aten(op) for op in counters.fallback_ops()})


def _aten(op: str) -> str:
    """An op in the notation of PyTorch/XLA's counters: "aten::nonzero" of
    "aten.nonzero.default"."""
    return "::".join(op.split(".")[:2])
