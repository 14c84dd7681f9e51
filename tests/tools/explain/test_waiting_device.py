"""The hint that the device waits for Python: said once, after enough steps in a row."""

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd.core import counters, in_flight
from spmd.core.graph.source import Line
from spmd.tools.explain import waiting_device

LINE = Line(None, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands; the function returned sets it forward by these seconds."""
    now = [100.0]
    monkeypatch.setattr(counters, "now", lambda: now[0])
    monkeypatch.setattr(in_flight, "is_idle", lambda: True)

    def pass_(seconds: float) -> None:
        now[0] += seconds

    return pass_


@functools.cache
def program_of(ops: int) -> Any:
    """A program of so many ops."""
    return types.SimpleNamespace(entries=[None] * ops, line=LINE)


def steps(
    clock: Callable[[float], None],
    number: int,
    *,
    record: float = 0.04,
    run: float = 0.0,
    ops: int = 300,
) -> None:
    """Steps of a program that takes `run` seconds, read at the end, and `record` seconds to
    record."""
    for _ in range(number):
        clock(record)
        waiting_device.note_run(program_of(ops))
        waiting_device.note_launched()
        if run:
            clock(run)
            waiting_device.note_read()


class TestSteps:
    """Steps that count, and steps that do not."""

    def test_recorded_for_longer_than_run(
        self, clock: Callable[[float], None], capsys: pytest.CaptureFixture[str]
    ) -> None:
        steps(clock, waiting_device.STEPS, run=0.01)
        assert not capsys.readouterr().err
        steps(clock, 100, run=0.01)
        error = capsys.readouterr().err
        assert (
            error
            == "spmd: the device waits 40 ms a step for Python: spmd.compile records a step once\n"
        )
        assert "300 ops, unknown line" in spmd.metrics.report()

    @pytest.mark.parametrize(
        ("record", "run", "ops"),
        [(0.04, 0.05, 300), (0.004, 0.0, 300), (0.04, 0.0, 99)],
        ids=["run for longer than recorded", "short", "few ops"],
    )
    def test_others(
        self,
        clock: Callable[[float], None],
        capsys: pytest.CaptureFixture[str],
        record: float,
        run: float,
        ops: int,
    ) -> None:
        steps(clock, 200, record=record, run=run, ops=ops)
        assert not capsys.readouterr().err

    def test_a_busy_device_ends_the_row(
        self,
        clock: Callable[[float], None],
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for _ in range(4):
            steps(clock, waiting_device.STEPS - 1)
            clock(1.0)
            with monkeypatch.context() as busy:
                busy.setattr(in_flight, "is_idle", lambda: False)
                waiting_device.note_run(program_of(300))
            waiting_device.note_launched()
        assert not capsys.readouterr().err


def test_a_training_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(in_flight, "is_idle", lambda: True)
    monkeypatch.setattr(waiting_device, "STEPS", 3)
    monkeypatch.setattr(waiting_device, "LEAST_SECONDS", 0.0)
    model = nn.Sequential(*(nn.Tanh() for _ in range(120)), nn.Linear(2, 2)).to("xla")
    for _ in range(6):
        loss = model(torch.ones(3, 2, device="xla")).sum()
        spmd.sync()
    assert "the device waits" in capsys.readouterr().err
    assert loss.isfinite()
    assert "test_waiting_device.py" in spmd.metrics.report()
