"""The functions of `torch_xla.debug.metrics` (met), of this library's counters and compile log."""

from collections.abc import Sequence

from ..core.base import counters

# PyTorch/XLA's counters that count the same.
_COUNTERS = {"MarkStep": "syncs", "UncachedCompile": "programs_compiled", "PersistentCacheHit": "programs_loaded"}
_COMPILE_TIME = "CompileTime"

Samples = tuple[tuple[float, float], ...]


def counter_names() -> list[str]:
    """The names of the counters that are not zero: this library's, and PyTorch/XLA's where they count the same.

    >>> import spmd
    >>> "recorded_ops" in spmd.torch_xla.xla_metrics.counter_names()
    True
    """
    theirs = [name for name, ours in _COUNTERS.items() if counters.counter(ours)]
    return sorted([*counters.counter_names(), *theirs, *executed_fallback_ops()])


def counter_value(name: str) -> int | None:
    """The value of a counter; None where nothing was counted. A fallback to the CPU counts as its op, "aten::name".

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.counter_value("NeverCounted")
    """
    if name in executed_fallback_ops():
        return sum(count for op, count in counters.fallback_ops().items() if _aten(op) == name)
    return counters.counter(_COUNTERS.get(name, name)) or None


def metric_names() -> list[str]:
    """The metrics that have samples: "CompileTime".

    >>> import spmd
    >>> set(spmd.torch_xla.xla_metrics.metric_names()) <= {"CompileTime"}
    True
    """
    return [_COMPILE_TIME] if counters.compiles() else []


def metric_data(name: str) -> tuple[int, float, Samples] | None:
    """The number of samples of a metric, their sum, and (0, value) of each; None where there is none.

    "CompileTime": the nanoseconds of each program, tracing, lowering and XLA together.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.metric_data("NeverMeasured")
    """
    if name not in metric_names():
        return None
    values = [record.seconds * 1e9 for record in counters.compiles()]
    return len(values), sum(values), tuple((0.0, value) for value in values)


def clear_all() -> None:
    """Empties counters, timers and compile log, as do `clear_counters` and `clear_metrics` here.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.clear_all()
    """
    counters.clear()


def metrics_report() -> str:
    """The counters, timers and the compile log as text (`spmd.metrics.report`).

    >>> import spmd
    >>> "recorded_ops" in spmd.torch_xla.xla_metrics.metrics_report()
    True
    """
    return counters.report()


def short_metrics_report(counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None) -> str:
    """The named counters and metrics as text, a line each; without names compiles, runs and syncs.

    >>> import spmd
    >>> spmd.torch_xla.xla_metrics.clear_all()
    >>> spmd.torch_xla.xla_metrics.short_metrics_report(["syncs"], [])
    'syncs: 0'
    """
    shown = ("UncachedCompile", "runs", "MarkStep") if counter_names is None else counter_names
    lines = [f"{name}: {counter_value(name) or 0:,}" for name in shown]
    for name in (_COMPILE_TIME,) if metric_names is None else metric_names:
        count, total, _ = metric_data(name) or (0, 0.0, ())
        lines.append(f"{name}: {count:,} samples, {total / 1e9:.3f} s")
    return "\n".join(lines)


def executed_fallback_ops() -> list[str]:
    """The ops without a rule that ran on the CPU (`spmd.config.fallback`), as "aten::name".

    >>> import spmd
    >>> spmd.metrics.clear()
    >>> spmd.torch_xla.xla_metrics.executed_fallback_ops()
    []
    """
    return sorted({_aten(op) for op in counters.fallback_ops()})


def _aten(op: str) -> str:
    """An op in the notation of PyTorch/XLA's counters: "aten::nonzero" of "aten.nonzero.default"."""
    return "::".join(op.split(".")[:2])
