"""Metrics by PyTorch/XLA's names and in its form, and its variables of the environment."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import spmd
from spmd.core.base.config import Config
from spmd.torch_xla import execution_time, training_log, xla_metrics

ALL = {
    "CompileTime",
    "DispatchTime",
    "ExecuteTime",
    "InboundData",
    "InputOutputAliasCount",
    "OutboundData",
    "TensorsGraphSize",
    "TransferFromDeviceTime",
    "TransferToDeviceTime",
}


class _Running:
    """A result of a program that runs until it may end."""

    def __init__(self, *, is_overwritten: bool = False) -> None:
        self.is_overwritten, self.is_waited_for, self.may_end = (
            is_overwritten,
            threading.Event(),
            threading.Event(),
        )

    def block_until_ready(self) -> None:
        if self.is_overwritten:
            raise RuntimeError("Array has been deleted")
        self.is_waited_for.set()
        self.may_end.wait()

    def is_deleted(self) -> bool:
        return self.is_overwritten


class TestSamples:
    """Each metric is sampled where its event happens."""

    def test_a_step(self) -> None:
        xla_metrics.clear_all()
        x = torch.ones(3, 5).to("xla")
        w = torch.randn(3, 5).to("xla")
        for _ in range(4):
            w.mul_(1.5).add_(x)
            spmd.sync()
        value = w.cpu()
        assert value.shape == (3, 5) and set(xla_metrics.metric_names()) == ALL
        data = {name: xla_metrics.metric_data(name) for name in ALL}
        assert data["OutboundData"][:2] == (2, 2 * value.nbytes)
        assert data["InboundData"][:2] == (1, value.nbytes)
        assert data["TensorsGraphSize"][:2] == (4, 8)
        assert data["InputOutputAliasCount"][:2] == (1, 1)  # w takes the memory of w
        assert (
            data["ExecuteTime"][0]
            == data["DispatchTime"][0]
            == xla_metrics.counter_value("MarkStep")
            == 4
        )
        runs = zip(data["ExecuteTime"][2], data["DispatchTime"][2], strict=True)
        assert all(executed >= dispatched for (_, executed), (_, dispatched) in runs)
        assert (
            xla_metrics.counter_value("CachedCompile") == 3
            and xla_metrics.counter_value("UncachedCompile") == 1
        )
        seconds = {name: found[1] / 1e9 for name, found in data.items() if name.endswith("Time")}
        assert all(0 < one < 60 for one in seconds.values())
        # the clock
        assert data["CompileTime"][2][0][0] == pytest.approx(data["ExecuteTime"][2][0][0], abs=60)

    def test_execution_lasts_to_the_end(self) -> None:
        """A program has its sample once it has ended; one whose result was overwritten, once the
        next has."""
        added: list[float] = []
        ends, running = execution_time._Ends(added.append), _Running()
        ends.note(0.0, _Running(is_overwritten=True))
        ends.note(1.0, running)
        running.is_waited_for.wait()
        assert added == []
        running.may_end.set()
        ends.settle()
        assert len(added) == 2 and added[0] == pytest.approx(added[1] + 1e9)

    def test_a_plan_counts_nothing(self) -> None:
        model = torch.nn.Linear(3, 7).to("xla")
        xla_metrics.clear_all()
        spmd.plan(lambda x: model(x).sum(), torch.ones(2, 3, device="meta"))
        assert (
            not {"CompileTime", "ExecuteTime", "TensorsGraphSize"} & set(xla_metrics.metric_names())
            and xla_metrics.counter_value("MarkStep") is None
        )

    def test_newest_are_kept(self) -> None:
        spmd.metrics.clear()
        for value in range(1500):
            spmd.core.base.counters.add_sample("Some", value)
        count, total, newest = xla_metrics.metric_data("Some")
        assert (count, total) == (1500, sum(range(1500))) and [value for _, value in newest] == [
            *range(476, 1500)
        ]
        spmd.metrics.clear()


class TestReport:
    """The form that scripts parse."""

    @pytest.mark.parametrize(
        ("nanoseconds", "text"),
        [
            (1.5e3, "001.500us"),
            (12_032_778.0, "012ms032.778us"),
            (61e9 + 1e6, "01m01s001ms000.000us"),
            (90_061e9, "01d01h01m01s000ms000.000us"),
        ],
    )
    def test_time(self, nanoseconds: float, text: str) -> None:
        assert xla_metrics._time(nanoseconds) == text

    def test_bytes(self) -> None:
        assert [xla_metrics._bytes(count) for count in (3, 2048, 5 << 40)] == [
            "3.00B",
            "2.00KB",
            "5.00TB",
        ]

    def test_percentiles(self) -> None:
        spmd.metrics.clear()
        for value in np.random.default_rng(0).permutation(100):
            spmd.core.base.counters.add_sample("Some", float(value))
        report = xla_metrics.short_metrics_report([], ["Some"]).splitlines()
        assert report[:3] == ["Metric: Some", "  TotalSamples: 100", "  Accumulator: 4950.00"]
        parts = (
            "1%=1.00; 5%=5.00; 10%=10.00; 20%=20.00; 50%=50.00; 80%=80.00; 90%=90.00; 95%=95.00; "
            "99%=99.00"
        )
        assert report[-1] == f"  Percentiles: {parts}"
        spmd.metrics.clear()

    def test_short_report_keeps_what_is_not_named(self) -> None:
        spmd.metrics.clear()
        spmd.core.base.counters.add_sample("CompileTime", 1.0)
        spmd.core.base.counters.add_sample("Some", 1.0)
        (torch.ones(2, device="xla") + 1).cpu()
        report = xla_metrics.short_metrics_report(counter_names=["recorded_ops"])
        assert "Metric: CompileTime" in report and "Counter: recorded_ops" in report
        assert "MarkStep" not in report and "Metric: Some" not in report
        report = xla_metrics.short_metrics_report(metric_names=["Some"])
        assert "Metric: Some" in report and "Counter: MarkStep" in report
        assert "CompileTime" not in report
        spmd.metrics.clear()

    def test_compared(self) -> None:
        old = [
            "Counter: MarkStep\n  Value: 3",
            "Counter: MarkStep\n  Value: 5\nCounter: X\n  Value: 1",
        ]
        points = training_log.get_data_points_from_metrics_reports(old)
        assert points == {"MarkStep__Value": [3, 5], "X__Value": [None, 1]}
        new = "Counter: MarkStep\n  Value: 7\nCounter: aten::sort\n  Value: 2"
        report = training_log.compare_metrics(points, new).splitlines()
        assert report[0].startswith("MarkStep__Value failed its expression check. Expression: v <=")
        assert report[0].endswith("Mean: 4.0.  Stddev: 1.0.  Actual Value: 7")
        assert report[1] == "Found new aten counter: aten::sort__Value: 2"
        loose = {"base_expression": "False", "MarkStep__Value_expression": "v < 9"}
        assert training_log.compare_metrics(points, new, loose) == report[1] + "\n"


class TestVariables:
    """PyTorch/XLA's variables set flags of ours, unless these have variables of their own set."""

    @pytest.mark.parametrize(
        ("variables", "flag", "value"),
        [
            ({"PT_XLA_DEBUG": "1"}, "hints", 1),
            ({"PT_XLA_DEBUG": "true"}, "hints", 1),
            ({"PT_XLA_DEBUG_LEVEL": "100"}, "hints", 2),
            ({"PT_XLA_DEBUG": "1", "SPMD_HINTS": "0"}, "hints", 0),
            ({"XLA_IR_DEBUG": "1"}, "module_paths", True),
            ({"XLA_HLO_DEBUG": "1"}, "module_paths", True),
            ({"XLA_SAVE_TENSORS_FILE": "graphs.txt"}, "graphs_file", "graphs.txt"),
            ({}, "hints", 0),
        ],
    )
    def test_set(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], flag: str, value: object
    ) -> None:
        for name, text in variables.items():
            monkeypatch.setenv(name, text)
        assert getattr(Config(), flag) == value

    def test_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PT_XLA_DEBUG", "very")
        with pytest.raises(ValueError, match="PT_XLA_DEBUG='very'"):
            Config()

    def test_graphs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spmd.config, "graphs_file", str(tmp_path / "graphs.txt"))
        for _ in range(2):
            (torch.randn(4, 3).to("xla").erfinv() * torch.tensor(2.5)).sum().item()
        text = (tmp_path / "graphs.txt").read_text()
        assert text.count("= aten.erfinv(") == 1 and f"step at {__file__}" in text
        assert "aten.scalar_tensor(" in text and "unknown line" not in text

    @pytest.mark.long
    def test_hints_of_a_script(self) -> None:
        script = "import torch, spmd\nfor _ in range(3): torch.rand(2, device='xla').sum().item()"
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            env={**os.environ, "PT_XLA_DEBUG": "1"},
        )
        assert (
            "spmd hint: step compiled in" in done.stderr
            and "waits for the device 3 times" in done.stderr
        )
