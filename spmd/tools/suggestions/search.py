"""The search of spmd.suggest: candidate meshes and layouts of a step, compiled and ranked, with the reasons."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch

from ...core import topology
from ...core.extend import Line, LoweringError, Target
from ...mesh.mesh import Mesh
from ..planning.chips import CHIPS, Chip, chip_of
from ..planning.planner import ApplyRules, planned
from ..planning.progress import stage
from ..planning.report import Plan
from .candidates import Layout, Model, Unfit, layouts, rules_of
from .estimates import Estimates, Rates
from .kept_plans import KeptPlans
from .shortened import (
    Figures,
    can_be_shortened,
    extrapolated,
    ops_of_short_programs,
    short_counts,
    shortened,
    words_of,
)  # fmt: skip
from .suggestion import Trial


@dataclass(frozen=True)
class Variant:
    """One choice of what a layout is for: devices, their number, rows of the batch, precision, price of a device for an
    hour, keywords of the step."""

    target: Target
    count: int
    rows: int
    mp_policy: Any
    price: float | None
    keywords: Mapping[str, Any]


class Search:
    """The search over the layouts of one step, on given devices with a given batch and precision.

    For each mesh an integer program chooses what is saved of the blocks, from estimates that every compiled layout
    corrects; it chooses again where a plan is other than expected. Where a program with all layers would lower more ops
    than those with one and two of each kind, the former is extrapolated from the latter, and only the best three are
    compiled.
    """

    def __init__(self, step: Any, arguments: Any, variant: Variant, model: Model, kept: KeptPlans, line: Line):
        self.step, self.variant, self.line = step, variant, line
        self.args, self.kwargs = arguments
        self.target, self.count, self.model, self.kept = variant.target, variant.count, model, kept
        self.how = {} if variant.mp_policy is None else {"mp_policy": variant.mp_policy}
        self.chip = chip_of(topology.all_devices(self.target)[0])
        width = getattr(variant.mp_policy, "param_dtype", None) or torch.float32
        chip = self.rates
        # A TPU's memory is some 4.5 times as fast as its links.
        memory = 0.0 if self.chip is None else chip.bandwidth or 4.5 * chip.link_bytes
        rates = Rates(chip.peak_flops, chip.link_bytes, width.itemsize, memory, not chip.is_gpu, chip.host_bytes)
        self.estimates = Estimates(model, rates)
        self.memory = None if self.chip is None else self.chip.usable_bytes
        self.found: list[Trial] = []
        self.done: set[Layout] = set()
        self.refused: list[Layout] = []
        self.num_compiled = 0
        self.is_extrapolated = False
        # The seconds of the slowest plan so far, of a model with fewer blocks (True) and with all.
        self.slowest = {True: 0.0, False: 0.0}
        self.short: dict[tuple[Layout, str], list[Figures]] = {}

    @property
    def rates(self) -> Chip:
        """The rates of the chip; of a v5p for an unknown one, as only their ratios matter."""
        return self.chip or CHIPS["TPU v5"]

    @property
    def measure(self) -> str:
        if self.chip is not None:
            return f"the estimated time ({self.chip.source})"
        rates = self.rates
        return (
            f"max(operations / {rates.peak_flops:.3g}, bytes moved / {rates.link_bytes:.3g} a second), the rates of a "
            "v5p, as there are none of this device"
        )

    def seconds(self, plan: Plan) -> float:
        """The time of a step: the plan's, or of an unknown device the least one, with computation and collectives
        overlapped."""
        if plan.seconds is not None:
            return plan.seconds
        return max(plan.flops / self.rates.peak_flops, plan.moved_bytes / self.rates.link_bytes)

    def run(self, until: float, most: int) -> list[Trial]:
        """Compiles the most promising layouts, at first one of each family."""
        for layout in self._in_order(self._placements()):
            self._explore(layout, until, most)
        for layout in self._in_doubt():
            self._explore(layout, until, most)
        for trial in self._best_extrapolated():
            self._finish(trial)
        return self.found

    def _placements(self) -> list[Layout]:
        """The placements that the model goes with; the others become trials with their reasons."""
        open_ = []
        for layout in layouts(self.model, self.count):
            try:
                rules_of(layout, self.model)
                open_.append(layout)
            except Unfit as error:
                self.found.append(Trial(str(layout), layout.family, None, None, None, None, str(error), **self._of()))
        if not open_:
            raise ValueError(f"suggest: no layout over {self.count} devices goes with the step: {self.found[0].reason}")
        return open_

    def _in_order(self, placements: Sequence[Layout]) -> Iterator[Layout]:
        """Yields the most promising layout, plain data parallel (as written by hand) and the one of least memory; then
        the most promising of each mesh's kind, alternating with those of each family; then the others."""
        estimates, memory = self.estimates, self.memory

        def promise(layout: Layout) -> tuple[bool, float]:
            return memory is not None and estimates.peak(layout) > memory, estimates.seconds(layout)

        ordered = sorted((estimates.chosen(one, self._budget) for one in placements), key=promise)
        plain = [one for one in ordered if one.family == "data"][:1]
        least = min((estimates.uniform(one, "nothing") for one in placements), key=estimates.peak)
        kinds = _first_of(ordered, lambda layout: (layout.family, layout.tensor))
        families = _first_of(ordered, lambda layout: layout.family.rpartition(" x ")[2])
        alternating = [one for pair in zip_longest(kinds, families) for one in pair if one is not None]
        first = (ordered[0], *plain, *([least] if memory is not None else []))
        for number, layout in enumerate(dict.fromkeys((*first, *alternating, *ordered))):
            # What is saved is chosen again, as estimates have been corrected meanwhile.
            yield layout if number < len(first) else estimates.chosen(layout.placement, self._budget)

    def _in_doubt(self) -> Iterator[Layout]:
        """Yields layouts that are expected to be faster than the fastest one, of the placements that fit, the fastest
        first, and to need somewhat more memory than there is: what the compiler allocates is no sum of parts."""
        if self.memory is None or not self.model.kinds:
            return
        fitting = sorted((trial for trial in self.found if trial.fits), key=lambda trial: trial.rate)
        for placement in dict.fromkeys(trial.layout.placement for trial in fitting if trial.layout is not None):
            for layout in (self.estimates.uniform(placement, word) for word in self.estimates.words):
                is_faster = self.estimates.seconds(layout) < self._best_seconds()
                if is_faster and self.estimates.peak(layout) < _DOUBT * self.memory:
                    yield layout

    @property
    def _budget(self) -> float | None:
        """The bytes that a layout may be expected to take."""
        return None if self.memory is None else 0.97 * self.memory

    def _explore(self, layout: Layout, until: float, most: int) -> None:
        """Compiles a layout, and its placement again with what the figures then say is best saved."""
        tried: list[Layout] = []
        while layout not in self.done:
            self.done.add(layout)
            expected = self.estimates.seconds(layout)
            reason = self._why_not_compiled(layout, until, most)
            plan, figures = None, None
            if not reason:
                self.num_compiled += 1
                figures, plan, reason = self._figures(layout)
            self.found.append(self._trial(layout, plan, reason, expected, figures))
            if figures is None:
                return
            fits = self.memory is None or figures.peak <= self.memory
            is_timed = plan is None or not plan.verdict
            self.estimates.learn(layout, figures.seconds if is_timed else None, figures.peak)
            if not fits:
                self.refused.append(layout)
            tried.append(layout)
            better = self.estimates.chosen(layout.placement, self._budget)
            is_faster = self.estimates.seconds(better) < 0.995 * min(figures.seconds, 1.15 * self._best_seconds())
            if len(tried) == _TRIES or (fits and not is_faster):
                return
            layout = better

    def _best_seconds(self) -> float:
        fitting = [trial.seconds for trial in self.found if trial.fits and trial.seconds is not None]
        return min(fitting, default=float("inf"))

    def _why_not_compiled(self, layout: Layout, until: float, most: int) -> str:
        """The reason why a layout is not compiled; empty where it is."""
        state = self.estimates.state(layout)
        if self.memory is not None and state > self.memory:
            return f"does not fit: parameters and optimizer take {state / 2**30:,.1f} GiB of each device"
        worse = next((other for other in self.refused if layout.needs_no_less_than(other)), None)
        if worse is not None:
            return f"not compiled: needs no less memory than {worse}, which does not fit"
        if self.num_compiled and (self.num_compiled >= most or time.monotonic() + self._seconds_to_go() > until):
            return "not compiled: the budget is spent"
        return ""

    def _seconds_to_go(self) -> float:
        """The seconds from here to the end of the search if one more layout is compiled."""
        if not self.is_extrapolated:
            return self.slowest[False]
        return _FINALISTS * self.slowest[False] + len(short_counts(self.model)) * self.slowest[True]

    def _figures(self, layout: Layout) -> tuple[Figures | None, Plan | None, str]:
        """The figures of a layout, its plan where it was compiled with all layers, and why it does not fit or has
        neither."""
        if self.is_extrapolated:
            return self._extrapolated(layout)
        plan, reason = self._plan(layout)
        if plan is None:
            return None, None, reason
        short = ops_of_short_programs(self.model, plan.num_ops)
        self.is_extrapolated = can_be_shortened(self.model) and plan.num_lowered > short
        return Figures(self.seconds(plan), plan.peak), plan, reason

    def _extrapolated(self, layout: Layout) -> tuple[Figures | None, Plan | None, str]:
        words = words_of(layout.saved) or ["everything"]
        for word in words:
            key = layout.placement, word
            if key in self.short:
                continue
            rows = []
            for counts in short_counts(self.model):
                with shortened(self.model, counts):
                    plan, reason = self._plan(self.estimates.uniform(layout.placement, word), counts)
                if plan is None or plan.verdict:
                    return None, plan, reason
                rows.append(Figures(self.seconds(plan), plan.peak))
            self.short[key] = rows
        found = extrapolated(layout, self.model, {word: self.short[layout.placement, word] for word in words})
        return found, None, f"extrapolated from one and two layers: {_said(found)}"

    def _best_extrapolated(self) -> list[Trial]:
        """The best three trials that were extrapolated and not compiled with all layers."""
        fitting = [
            trial
            for trial in self.found
            if trial.extrapolated is not None and (self.memory is None or trial.extrapolated.peak <= self.memory)
        ]
        return sorted(fitting, key=lambda trial: trial.extrapolated.seconds if trial.extrapolated else 0.0)[:_FINALISTS]

    def _finish(self, trial: Trial) -> None:
        """Compiles an extrapolated trial with all layers."""
        assert trial.layout is not None and trial.extrapolated is not None
        plan, reason = self._plan(trial.layout)
        place = self.found.index(trial)
        self.found[place] = self._trial(trial.layout, plan, reason, trial.expected, trial.extrapolated)

    def _trial(
        self, layout: Layout, plan: Plan | None, reason: str, expected: float | None, figures: Figures | None
    ) -> Trial:
        seconds = None if plan is None else self.seconds(plan)
        rules, mesh = rules_of(layout, self.model), self._mesh(layout)
        short = figures if self.is_extrapolated and layout.placement in {one for one, _ in self.short} else None
        return Trial(
            str(layout), layout.family, mesh, rules, plan, seconds, reason, expected, **self._of(), layout=layout,
            extrapolated=short,
        )  # fmt: skip

    def _of(self) -> dict[str, Any]:
        one = self.variant
        return {
            "target": one.target, "chips": one.count, "rows": one.rows, "precision": one.mp_policy, "price": one.price,
            "keywords": one.keywords,
        }  # fmt: skip

    def _mesh(self, layout: Layout) -> Mesh:
        return Mesh(range(self.count), tuple(layout.axes.values()), tuple(layout.axes), target=self.target)

    def _plan(self, layout: Layout, counts: Mapping[str, int] | None = None) -> tuple[Plan | None, str]:
        """The plan of a layout, and why it does not fit or, without a plan, does not compile. counts: of the blocks,
        where the model has fewer."""
        one = self.variant
        short = f"; {counts}" if counts else ""
        key = f"{self.target}; {self.count}; {one.rows} rows; {self.how}; {one.keywords}; {layout}{short}"
        plan = self.kept.plan(key)
        if plan is not None:
            return plan, _why_not(plan)
        lay = ApplyRules(rules_of(layout, self.model), self._mesh(layout), self.how, self.model.flow.model)
        started, is_short = time.monotonic(), counts is not None
        with stage(f"{self.num_compiled}, {layout}{short}"):
            try:
                plan = planned(self.step, self.args, self.kwargs, self.target, lay, self.line)
            except LoweringError as error:  # a kernel with this layout's shapes: others are still to be compiled
                return None, f"does not compile: {error}"
            finally:
                gc.collect()  # units of the previous trial are found by their modules
                self.slowest[is_short] = max(self.slowest[is_short], time.monotonic() - started)
        self.kept.keep(key, plan)
        return plan, _why_not(plan)


_TRIES = 3  # of what is saved, at one placement
_FINALISTS = 3  # that are compiled with all layers
_DOUBT = 1.5  # of the memory: with less than this expected, a layout may fit


def _said(figures: Figures) -> str:
    return f"{figures.seconds * 1e3:,.4g} ms, {figures.peak / 2**30:,.2f} GiB"


def ranked(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yields the trials, best first, with the reason of each but the first."""

    def rank(trial: Trial) -> tuple[Any, ...]:
        plan = trial.plan
        if plan is None:
            return 2 if trial.mesh is not None else 3, trial.expected or 0, 0, 0
        return 0 if plan.fits else 1, trial.rate, plan.moved_bytes, plan.peak

    ordered = sorted(trials, key=rank)
    best = ordered[0]
    for trial in ordered:
        yield trial if trial is best or trial.reason else _behind(trial, best)


def _why_not(plan: Plan) -> str:
    """The reason why a plan does not fit; empty where it does."""
    if plan.fits:
        return ""
    if plan.memory is None:
        return f"does not fit: {plan.verdict}"
    return f"does not fit: needs {plan.peak / 2**30:,.1f} GiB of {plan.memory / 2**30:,.1f}"


def _first_of(ordered: Sequence[Layout], key: Callable[[Layout], object]) -> list[Layout]:
    """The first layout of each key."""
    found: dict[object, Layout] = {}
    for one in ordered:
        found.setdefault(key(one), one)
    return [*found.values()]


def _behind(trial: Trial, best: Trial) -> Trial:
    """The trial with its reason: the figures in which it exceeds the best one."""
    one, two = trial.plan, best.plan
    assert one is not None and two is not None
    slower = trial.rate / best.rate - 1 if best.rate else 0.0
    figures = {
        "cycles": (one.cycles, two.cycles), "operations": (one.flops, two.flops),
        "bytes moved": (one.moved_bytes, two.moved_bytes), "peak memory": (one.peak, two.peak),
    }  # fmt: skip
    more = [
        f"{after / before - 1:+.0%} {name}"
        for name, (after, before) in figures.items()
        if before and after > 1.005 * before
    ]
    more += [f"{name} where the first has none" for name, (after, before) in figures.items() if after and not before]
    said = f"{slower:+.1%} time{'' if trial.rows == best.rows else ' a row'}" if slower >= 0.0005 else "the same time"
    return replace(trial, reason=f"{said}: {', '.join(more) or 'nothing else'}")
