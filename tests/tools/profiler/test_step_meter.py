"""The step meter: all time belongs to one kind, and the figures follow from it."""

import pytest
import torch

import spmd
from spmd.core import counters


class Clock:
    """A clock that stands until it is moved, and a compiler that takes time of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = self.compiled = 0.0
        monkeypatch.setattr(counters, "now", lambda: self.time)
        monkeypatch.setattr(
            counters, "timer", lambda name: self.compiled if name == "compile" else 0.0
        )

    def move(self, seconds: float, *, compiling: float = 0.0) -> None:
        """Lets time pass, of which the compiler has a part."""
        self.time += seconds
        self.compiled += compiling


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock of the test's own."""
    return Clock(monkeypatch)


class TestFigures:
    """By a clock that the test moves."""

    def test_kinds(self, clock: Clock) -> None:
        meter = spmd.profiler.StepMeter(items_per_step=100, unit="rows")

        def loader():
            for _ in range(3):
                clock.move(0.5)
                yield None

        for number, _ in enumerate(meter.batches(loader())):
            with meter.step():
                clock.move(2.0 if number else 4.0, compiling=0.0 if number else 3.0)
            clock.move(0.25)
        with meter.spent("checkpoint"):
            clock.move(1.0)
        assert meter.seconds == {
            "other": 0.75,
            "compile": 3.0,
            "data": 1.5,
            "step": 5.0,
            "checkpoint": 1.0,
        }
        assert meter.elapsed == clock.time and meter.num_steps == 3 and meter.step_seconds == 2.0
        assert meter.goodput == pytest.approx(5 / 11.25)
        assert meter.items_per_second == pytest.approx(300 / 11.25)
        line = str(meter)
        assert line.startswith(
            "3 steps of 2,000.000 ms | 27 rows/s | goodput 44.4% (compile 26.7%, data 13.3%, "
        )

    def test_utilisation(self, clock: Clock) -> None:
        meter = spmd.profiler.StepMeter(flops=4e12, peak_flops=10e12)
        for _ in range(2):
            with meter.step():
                clock.move(0.8)
        assert meter.mfu == pytest.approx(0.5) and "MFU 50.0%" in str(meter)
        assert set(meter.figures()) == {"steps", "step_seconds", "goodput", "mfu"}

    def test_without_a_peak(self, clock: Clock) -> None:
        meter = spmd.profiler.StepMeter(flops=3e9)
        with meter.step():
            clock.move(1.5)
        assert (
            meter.mfu is None
            and "2e+09 operations/s a device (peak_flops= gives the MFU)" in str(meter)
        )

    def test_nothing_yet(self) -> None:
        meter = spmd.profiler.StepMeter(10)
        assert (
            str(meter) == "0 steps, none without a compilation | 0 tokens/s | goodput 0.0%"
            and meter.shares() == {}
        )

    def test_a_step_that_raises_is_none(self, clock: Clock) -> None:
        meter = spmd.profiler.StepMeter()
        with pytest.raises(ZeroDivisionError), meter.step():
            clock.move(1.0)
            1 / 0  # noqa: B018
        assert meter.num_steps == 0


class TestLoop:
    """By the clock, over a loop that compiles once."""

    def test_plan_and_compile(self) -> None:
        model = torch.nn.Linear(11, 13).to("xla")
        x = torch.randn(7, 11).to("xla")

        def step(x: torch.Tensor) -> None:
            model(x).cosh().sum().backward()
            spmd.sync()

        plan = spmd.plan(step, x)
        meter = spmd.profiler.StepMeter(items_per_step=7, plan=plan)
        for _ in range(5):
            with meter.step():
                step(x)
        assert meter.flops == plan.flops > 0 and meter.num_steps == 5
        assert meter.seconds["compile"] > 0 and sum(meter.shares().values()) == pytest.approx(1)
        assert 0 < meter.step_seconds < meter.elapsed
