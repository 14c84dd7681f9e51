"""`torch_xla.test.test_utils`, which scripts report their steps by, and
`torch_xla.debug.metrics_compare_utils`."""

import functools
import importlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from . import xla_metrics


def now(format: str = "%H:%M:%S") -> str:
    """The time of day.

    >>> import spmd
    >>> len(spmd.torch_xla.training_log.now())
    8
    """
    return datetime.now().strftime(format)


def print_training_update(
    device: Any,
    step: int,
    loss: float,
    rate: float,
    global_rate: float,
    epoch: int | None = None,
    summary_writer: Any = None,
) -> None:
    """Prints a step's loss and its samples a second, and writes the latter to TensorBoard where
    there is a writer.

    >>> import spmd
    >>> spmd.torch_xla.training_log.print_training_update(
    ...     "xla:0", 3, 0.5, 100.0, 90.0
    ... )  # doctest: +ELLIPSIS
    | Training Device=xla:0/0 Step=3 Loss=0.50000 Rate=100.00 GlobalRate=90.00 Time=...
    """
    figures = f"Step={step} Loss={loss:.5f} Rate={rate:.2f} GlobalRate={global_rate:.2f}"
    _print("Training", device, "" if epoch is None else f"Epoch={epoch}", figures)
    write_to_summary(
        summary_writer, None, {"examples/sec": rate, "average_examples/sec": global_rate}
    )


def print_test_update(
    device: Any, accuracy: float | None, epoch: int | None = None, step: int | None = None
) -> None:
    """Prints an accuracy.

    >>> import spmd
    >>> spmd.torch_xla.training_log.print_test_update("xla:0", 97.5, epoch=1)  # doctest: +ELLIPSIS
    | Test Device=xla:0/0 Epoch=1 Accuracy=97.50 Time=...
    """
    parts = {
        "Step": step,
        "Epoch": epoch,
        "Accuracy": None if accuracy is None else f"{accuracy:.2f}",
    }
    _print(
        "Test", device, *(f"{name}={value}" for name, value in parts.items() if value is not None)
    )


def _print(kind: str, device: Any, *parts: str) -> None:
    print(
        " ".join(filter(None, (f"| {kind} Device={device}/0", *parts, f"Time={now()}"))), flush=True
    )


def get_summary_writer(logdir: str | None) -> Any:
    """TensorBoard's writer for a folder (torch's own; package tensorboard); None without a folder.

    >>> import spmd
    >>> spmd.torch_xla.training_log.get_summary_writer(None)
    """
    if not logdir:
        return None
    writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(log_dir=logdir)
    write_to_summary(writer, 0, {"TensorboardStartTimestamp": time.time()})
    return writer


def write_to_summary(
    summary_writer: Any,
    global_step: int | None = None,
    dict_to_write: Mapping[str, float] = {},
    write_xla_metrics: bool = False,
) -> None:
    """Writes scalars, and all metrics where they are wanted, to TensorBoard; nothing without a
    writer.

    >>> import spmd
    >>> spmd.torch_xla.training_log.write_to_summary(None, 1, {"loss": 0.5})
    """
    if summary_writer is None:
        return
    metrics = parse_metrics_report(xla_metrics.metrics_report()) if write_xla_metrics else {}
    fallbacks = (
        {"aten_ops_sum": sum(v for name, v in metrics.items() if name.startswith("aten::"))}
        if metrics
        else {}
    )
    for name, value in {**dict_to_write, **metrics, **fallbacks}.items():
        summary_writer.add_scalar(name, value, global_step)


def close_summary_writer(summary_writer: Any) -> None:
    """Closes a writer; nothing without one.

    >>> import spmd
    >>> spmd.torch_xla.training_log.close_summary_writer(None)
    """
    if summary_writer is not None:
        summary_writer.flush()
        summary_writer.close()


def mp_test(func: Callable[..., Any]) -> Callable[..., int]:
    """Runs a test in this process, whose program has all devices; the call returns 0, or raises as
    the test does.

    >>> import spmd
    >>> spmd.torch_xla.training_log.mp_test(print)("tested")
    tested
    0
    """

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> int:
        func(*args, **kwargs)
        return 0

    return call


_UNITS = {
    "d": 86400,
    "h": 3600,
    "m": 60,
    "s": 1,
    "ms": 1e-3,
    "us": 1e-6,
    "B": 1e-6,
    "KB": 1e-3,
    "MB": 1,
    "GB": 1e3,
    "TB": 1e6,
    "PB": 1e9,
}
_METRIC = re.compile(
    r"Metric: (\S+)\n  TotalSamples: (\d+)\n  Accumulator: (\S+)\n(?:  [VR].*\n)*  Percentiles: "
    r"(.*)"
)
_COUNTER = re.compile(r"Counter: (\S+)\n  Value: (\d+)")


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """The numbers of a metrics report by name: times in seconds, sizes in MB; with their texts for
    dehumanize=False.

    >>> import spmd
    >>> spmd.torch_xla.training_log.parse_metrics_report("Counter: MarkStep\\n  Value: 3")
    {'MarkStep__Value': 3}
    """
    parsed: dict[str, Any] = {}
    for name, count, total, percentiles in _METRIC.findall(report):
        shares = dict(part.split("%=") for part in percentiles.split("; "))
        texts = {
            "TotalSamples": count,
            "Accumulator": total,
            **{f"Percentile_{p}": v for p, v in shares.items()},
        }
        for key, text in texts.items():
            value, unit = _number(text)
            parsed[f"{name}__{key}{unit}"] = value if dehumanize else (value, text)
    return {**parsed, **{f"{name}__Value": int(value) for name, value in _COUNTER.findall(report)}}


def _number(text: str) -> tuple[float, str]:
    parts = re.findall(r"([\d.]+)([a-zA-Z]+)", text)
    unit = "_mb" if text.endswith("B") else "_sec" if parts else ""
    return (
        sum(float(digits) * _UNITS[name] for digits, name in parts) if parts else float(text)
    ), unit


def get_data_points_from_metrics_reports(
    metrics_reports: Sequence[str],
) -> dict[str, list[float | None]]:
    """The numbers of several reports by name, one a report; None where a report lacks the name.

    >>> import spmd
    >>> reports = ["Counter: MarkStep\\n  Value: 3", ""]
    >>> spmd.torch_xla.training_log.get_data_points_from_metrics_reports(reports)
    {'MarkStep__Value': [3, None]}
    """
    parsed = [parse_metrics_report(report) for report in metrics_reports]
    return {name: [numbers.get(name) for numbers in parsed] for report in parsed for name in report}


_USUAL = "v <= v_mean + (v_stddev * 2.0)"


def compare_metrics(
    data_points: Mapping[str, Sequence[float | None]],
    metrics_report: str,
    config: Mapping[str, str] = {"base_expression": _USUAL},
) -> str:
    """A line for each number of a report that fails its check against earlier ones, and for each op
    that newly ran on the CPU.

    data_points: of `get_data_points_from_metrics_reports`. config: Python expressions of `v`,
    `v_mean` and `v_stddev`, of a number under its name and "_expression", of all others under
    "base_expression".

    >>> import spmd
    >>> found = {"MarkStep__Value": [3, 3]}
    >>> report = "Counter: MarkStep\\n  Value: 9"
    >>> spmd.torch_xla.training_log.compare_metrics(found, report)[:39]
    'MarkStep__Value failed its expression c'
    """
    lines = []
    for name, value in sorted(parse_metrics_report(metrics_report).items()):
        earlier = [number for number in data_points.get(name, ()) if number is not None]
        if not earlier:
            lines += [f"Found new aten counter: {name}: {value}\n"] * name.startswith("aten::")
            continue
        mean, stddev = np.mean(earlier), np.std(earlier)
        expression = config.get(f"{name}_expression", config["base_expression"])
        if not eval(expression, None, {"v": value, "v_mean": mean, "v_stddev": stddev}):
            lines.append(
                f"{name} failed its expression check. Expression: {expression}.  Mean: {mean}.  "
                f"Stddev: {stddev}.  Actual Value: {value}\n"
            )
    return "".join(lines)
