"""The speed of a training loop: items a second, utilisation of the devices, and the share of the
time that is steps."""

import statistics
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...core import counters, ends_at_user_line
from ..planning import Plan

Batch = TypeVar("Batch")
STEP, COMPILE, OTHER = "step", "compile", "other"
_NEWEST = 1_000  # steps that the median is of


@ends_at_user_line
class StepMeter:
    """A meter of a training loop; `print(meter)` is one line.

    All time from the first step's start on belongs to one kind: "step", "compile" (tracing, XLA and
    loading, wherever they happen), "data", "checkpoint" or another that you name, "other". Steps
    run asynchronously: one that starts while the devices are busy with those before it takes as
    long as it waits for them.

    Args:
        items_per_step: tokens, images or rows of one step, of the global batch. unit: their name.
            plan: of the step (`spmd.plan`), for its operations and the chip's peak. flops:
            operations of a step on one device, where there is no plan. peak_flops: operations per
            second of one device, where the plan has none (on a CPU).

    >>> import torch, spmd
    >>> meter = spmd.profiler.StepMeter(items_per_step=32, unit="rows")
    >>> for batch in meter.batches([torch.ones(32, 4)] * 3):
    ...     with meter.step():
    ...         y = (batch.to("xla") * 2).sum()
    ...         spmd.sync()
    >>> with meter.spent("checkpoint"):
    ...     pass
    >>> meter.num_steps
    3
    >>> round(sum(meter.shares().values()), 6)
    1.0
    """

    def __init__(
        self,
        items_per_step: float = 0,
        *,
        unit: str = "tokens",
        plan: Plan | None = None,
        flops: float | None = None,
        peak_flops: float | None = None,
    ):
        self.items_per_step, self.unit = items_per_step, unit
        self.flops = plan.flops if plan is not None and flops is None else flops
        self.peak_flops = plan.peak_flops if plan is not None and peak_flops is None else peak_flops
        self.num_steps = 0
        self.seconds: dict[str, float] = {}
        self._steps: deque[float] = deque(maxlen=_NEWEST)
        self._last: float | None = None  # the end of the last lap
        self._compiled = 0.0  # seconds, at that time

    def lap(self, kind: str) -> float:
        """Gives the time since the last lap, without what was compiled in it, to a kind; returns
        it. The first lap only starts the clock."""
        timestamp, compiled = counters.now(), counters.timer("compile") + counters.timer("load")
        net = 0.0
        if self._last is not None:
            whole = timestamp - self._last
            of_compiler = min(max(compiled - self._compiled, 0.0), whole)
            net = whole - of_compiler
            for name, seconds in ((kind, net), (COMPILE, of_compiler)):
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            if kind == STEP:
                self.num_steps += 1
                if not of_compiler:
                    self._steps.append(net)
        self._last, self._compiled = timestamp, compiled
        return net

    @contextmanager
    def step(self) -> Iterator[None]:
        """The block of one step: time since the last block is "other"."""
        self.lap(OTHER)
        yield
        self.lap(STEP)

    @contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """A block that is no step, as "checkpoint"."""
        self.lap(OTHER)
        yield
        self.lap(kind)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yields what a loader yields; the wait for it is "data"."""
        source = iter(loader)
        while True:
            self.lap(OTHER)
            try:
                batch = next(source)
            except StopIteration:
                return
            finally:
                self.lap("data")
            yield batch

    @property
    def elapsed(self) -> float:
        """The seconds from the first lap to the last."""
        return sum(self.seconds.values())

    @property
    def step_seconds(self) -> float:
        """The median of the newest steps in which nothing was compiled, in seconds; 0 before the
        first."""
        return statistics.median(self._steps) if self._steps else 0.0

    @property
    def items_per_second(self) -> float:
        """The items of all steps by all of the time."""
        return self.items_per_step * self.num_steps / self.elapsed if self.elapsed else 0.0

    @property
    def goodput(self) -> float:
        """The share of the time that is steps."""
        return self.shares().get(STEP, 0.0)

    @property
    def mfu(self) -> float | None:
        """The operations of a median step by what a device could do in that time; None where these
        are not known."""
        is_known = self.flops is not None and self.peak_flops is not None and self.step_seconds
        return self.flops / (self.step_seconds * self.peak_flops) if is_known else None  # type: ignore[operator]

    def shares(self) -> dict[str, float]:
        """The share of the time of each kind; the largest first."""
        total = self.elapsed
        order = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {kind: seconds / total for kind, seconds in order if total}

    def figures(self) -> dict[str, Any]:
        """The line's figures by name: "steps", "<unit>_per_second", "step_seconds", "goodput",
        "mfu"."""
        result = {
            "steps": self.num_steps,
            "step_seconds": self.step_seconds,
            "goodput": self.goodput,
        }
        if self.items_per_step:
            result[f"{self.unit}_per_second"] = self.items_per_second
        return result if self.mfu is None else {**result, "mfu": self.mfu}

    def __str__(self) -> str:
        timed = (
            f" of {self.step_seconds * 1e3:,.3f} ms"
            if self._steps
            else ", none without a compilation"
        )
        parts = [f"{self.num_steps:,} steps{timed}"]
        if self.items_per_step:
            parts.append(f"{self.items_per_second:,.0f} {self.unit}/s")
        if self.mfu is not None:
            parts.append(f"MFU {self.mfu:.1%}")
        elif self.flops and self.step_seconds:
            parts.append(
                f"{self.flops / self.step_seconds:.3g} operations/s a device (peak_flops= gives "
                "the MFU)"
            )
        shares_text = ", ".join(
            f"{kind} {share:.1%}" for kind, share in self.shares().items() if kind != STEP
        )
        return " | ".join(
            [*parts, f"goodput {self.goodput:.1%}" + (f" ({shares_text})" if shares_text else "")]
        )
