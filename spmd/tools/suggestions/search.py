"""The search of spmd.suggest: candidate meshes and layouts of a step, compiled and ranked, with the
reasons."""

import gc
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxlib

from ...core import topology
from ...core.extend import Line, lowering
from ...mesh.mesh import Mesh
from ..planning.clock import CHIPS, chip_of
from ..planning.layout import stage
from ..planning.planner import ApplyRules, planned
from ..planning.report import Plan
from .candidates import OFFLOADED, SAVED, CandidateLayout, Model, Unfit, gib, placements, rules_of
from .suggestion import Trial


class KeptPlans:
    """Plan by candidate, in a JSON file; nothing is kept without one.

    Raises ValueError for a file of another search: of a model with other parameters, or other
    inputs, or another jaxlib.
    """

    def __init__(self, file: str | Path | None, model: Model):
        parameters = [
            (name, tuple(parameter.shape), str(parameter.dtype))
            for name, parameter in model.flow.model.named_parameters()
        ]
        facts = (parameters, model.rows, model.length, jaxlib.__version__)
        self.search = hashlib.sha256(repr(facts).encode()).hexdigest()
        self.path, self.plans = None if file is None else Path(file), dict[str, str]()
        if self.path is None or not self.path.exists():
            return
        try:
            content = json.loads(self.path.read_text())
            search, self.plans = content["search"], dict(content["plans"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"suggest: {self.path} is no file of a search ({error}); delete it"
            ) from error
        if search != self.search:
            raise ValueError(
                f"suggest: {self.path} is of another search: another model, batch or jaxlib; give "
                "another file"
            )

    def plan(self, key: str) -> Plan | None:
        """The plan of a candidate, if it was compiled before."""
        return Plan.from_json(self.plans[key]) if key in self.plans else None

    def keep(self, key: str, plan: Plan) -> None:
        """Adds a plan and writes the file."""
        if self.path is None:
            return
        self.plans[key] = plan.to_json()
        unfinished = self.path.with_name(self.path.name + ".new")
        unfinished.write_text(json.dumps({"search": self.search, "plans": self.plans}))
        unfinished.replace(self.path)


class Search:
    """The search over the layouts of one step, on given devices with a given batch and precision.

    It goes from placement (a layout without what is saved) to the nearest of the best so far. The
    level of a layout is the sum over its blocks of what is not saved of each: 0 (everything is), 1
    (but products) or 2 (nothing is).
    """

    def __init__(
        self,
        step: Any,
        arguments: tuple[Any, Any],
        of: Trial,
        model: Model,
        stored_plans: KeptPlans,
        line: Line,
    ):
        self.step, self.arguments, self.of, self.line = step, arguments, of, line
        self.model, self.stored_plans = model, stored_plans
        self.how = {} if of.precision is None else {"mp_policy": of.precision}
        chip = chip_of(topology.all_devices(of.target)[0])
        self.memory = None if chip is None else chip.usable_bytes
        self.chip = chip or CHIPS["TPU v5"]  # only the ratio of its rates matters
        self.measure = (
            f"the estimated time ({chip.source})" if chip is not None else _LEAST.format(self.chip)
        )
        self.words = ["everything", "dots", "nothing"]
        self.trials: dict[CandidateLayout, Trial] = {}
        self.refined: set[CandidateLayout] = set()
        self.num_compiled, self.most = 0, 0
        self.slowest, self.until = 0.0, 0.0

    def seconds(self, plan: Plan) -> float:
        """The time of a step: the plan's, or of an unknown device the least one, with computation
        and collectives overlapped."""
        if plan.seconds is not None:
            return plan.seconds
        return max(plan.flops / self.chip.peak_flops, plan.moved_bytes / self.chip.link_bytes)

    def run(self, until: float, most: int) -> list[Trial]:
        """Compiles layouts, the first placement of some families first, until the time or the
        number of plans."""
        self.until, self.most = until, most
        waiting = [*placements(self.model, self.of.chips)]
        families = {
            placement.family.removesuffix(" + sequence"): placement
            for placement in reversed(waiting)
        }
        for placement in [families[name] for name in _FIRST if name in families]:
            waiting.remove(placement)
            self._explore(placement)
        if self.memory is not None and "fsdp" in families:
            self._trial(self._at(families["fsdp"], 2 * self.model.num_saved))
        while waiting:
            self._refine()
            nearest = min(waiting, key=self._best().distance)
            waiting.remove(nearest)
            self._explore(nearest)
        self._refine()
        return [*self.trials.values()]

    def _best(self) -> CandidateLayout:
        return min(self.trials, key=lambda layout: rank(self.trials[layout]))

    def _explore(self, placement: CandidateLayout) -> None:
        """Compiles a placement at the level of the best layout; where that does not fit, with
        nothing saved."""
        for level in (self._level(self._best()) if self.trials else 0, 2 * self.model.num_saved):
            trial = self._trial(self._at(placement, level))
            if trial.fits or trial.mesh is None or self._is_over():
                return

    def _refine(self) -> None:
        """Compiles the placement of the best layout with as much saved as fits, by interpolation of
        the peaks; then with products in the host's memory in place of what is computed again."""
        best, size = self._best(), self.model.num_saved
        placement = self._at(best, 0)
        is_open = self.trials[best].fits and placement not in self.refined and not self._is_over()
        if not (self.memory and size and is_open):
            return
        self.refined.add(placement)
        for _ in range(_TRIES):
            peaks = {
                (self._level(layout), trial.fits): trial.plan.peak
                for layout, trial in self.trials.items()
                if trial.plan is not None and self._at(layout, 0) == placement
            }
            less = min(level for level, fits in peaks if fits)
            more = max((level for level, fits in peaks if not fits and level < less), default=-1)
            # the blocks between it and `less` are saved in the same two ways
            level = (less - 1) // size * size
            if more >= max(level, 0):
                over, spare = (
                    peaks[more, False] - 0.97 * self.memory,
                    peaks[more, False] - peaks[less, True],
                )
                level = more + math.ceil(over / max(spare, 1) * (less - more))
            if not more < level < less:
                break
            self._trial(self._at(placement, level))
        best, level = self._best(), self._level(self._best())
        if (
            self.chip.host_bytes
            and level > size
            and not any(OFFLOADED in layout.saved for layout in self.trials)
        ):
            self.words[-1] = OFFLOADED
            if rank(self._trial(self._at(placement, level))) > rank(self.trials[best]):
                self.words[-1] = "nothing"

    def _level(self, layout: CandidateLayout) -> int:
        return sum(min([*SAVED].index(word), 2) for word in layout.saved)

    def _at(self, layout: CandidateLayout, level: int) -> CandidateLayout:
        """The layout at another level: the last blocks save most, and equal ones follow each
        other."""
        size = self.model.num_saved
        return replace(
            layout,
            saved=tuple(self.words[(level + size - 1 - block) // size] for block in range(size)),
        )

    def _trial(self, layout: CandidateLayout) -> Trial:
        """The trial of a layout, which is compiled once."""
        if layout not in self.trials:
            trial, axes = replace(self.of, name=str(layout), family=layout.family), layout.axes
            try:
                rules = rules_of(layout, self.model, self.memory)
                mesh = Mesh(
                    range(self.of.chips), tuple(axes.values()), tuple(axes), target=self.of.target
                )
                trial = replace(trial, mesh=mesh, rules=rules, reason=self._why_not(layout))
            except Unfit as error:
                trial = replace(trial, reason=str(error))
            if not trial.reason:
                lay = ApplyRules(rules, mesh, self.how, self.model.flow.model)
                plan, reason = self._compiled(layout, lay)
                seconds = None if plan is None else self.seconds(plan)
                trial = replace(trial, plan=plan, reason=reason, seconds=seconds)
            self.trials[layout] = trial
        return self.trials[layout]

    def _why_not(self, layout: CandidateLayout) -> str:
        """The reason why a layout is not compiled; empty where it is."""
        for tried_layout, trial in self.trials.items():
            if (
                trial.plan is not None
                and not trial.fits
                and layout.needs_no_less_than(tried_layout)
            ):
                return f"not compiled: needs no less memory than {tried_layout}, which does not fit"
        return "not compiled: the budget is spent" if self._is_over() else ""

    def _is_over(self) -> bool:
        """True if no layout is compiled any more."""
        is_late = time.monotonic() + self.slowest > self.until
        return self.num_compiled > 0 and (is_late or self.num_compiled >= self.most)

    def _compiled(self, layout: CandidateLayout, lay: ApplyRules) -> tuple[Plan | None, str]:
        """The plan of a layout, and why it does not fit or, without a plan, does not compile."""
        self.num_compiled += 1
        key = (
            f"{self.of.target}; {self.of.chips}; {self.of.rows} rows; {self.how}; "
            f"{self.of.keywords}; {layout}"
        )
        plan = self.stored_plans.plan(key)
        if plan is None:
            started = time.monotonic()
            with stage(f"{self.num_compiled}, {layout}"):
                try:
                    plan = planned(self.step, *self.arguments, self.of.target, lay, self.line)
                except (
                    lowering.LoweringError
                ) as error:  # of a kernel with these shapes: others are still to be compiled
                    return None, f"does not compile: {error}"
                finally:
                    gc.collect()  # units of the previous trial are found by their modules
                    self.slowest = max(self.slowest, time.monotonic() - started)
            self.stored_plans.keep(key, plan)
        if plan.fits:
            return plan, ""
        needs = (
            plan.verdict
            if plan.memory is None
            else f"needs {gib(plan.peak)} GiB of {gib(plan.memory)}"
        )
        return plan, f"does not fit: {needs}"


# The measure for a device of unknown rates.
_LEAST = (
    "max(operations / {0.peak_flops:.3g}, bytes moved / {0.link_bytes:.3g} a second), the rates "
    "of a v5p"
)
# The families of which a placement is compiled first, with or without a split along the sequence.
_FIRST = ("data", "fsdp", "hybrid", "fsdp x tensor")
_TRIES = 3  # of what is saved, at the placement that is best


def rank(trial: Trial) -> tuple[float, ...]:
    """The order of trials: those that fit by time, those that do not by memory, those that were not
    compiled."""
    plan = trial.plan
    if plan is None:
        return (2 if trial.mesh is not None else 3,)
    return (0, trial.rate, plan.moved_bytes, plan.peak) if plan.fits else (1, plan.peak)


def ranked(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Yields the trials, best first, with the reason of each but the first."""
    ordered = sorted(trials, key=rank)
    for trial in ordered:
        yield trial if trial is ordered[0] or trial.reason else _behind(trial, ordered[0])


def _behind(trial: Trial, best: Trial) -> Trial:
    """The trial with its reason: the figures in which it exceeds the best one."""
    more = []
    for name, text in _FIGURES.items():
        figure, least = getattr(trial.plan, name), getattr(best.plan, name)
        if figure > 1.005 * least:
            more.append(
                f"{figure / least - 1:+.0%} {text}" if least else f"{text} where the first has none"
            )
    slower = trial.rate / best.rate - 1 if best.rate else 0.0
    time_text = (
        f"{slower:+.1%} time{'' if trial.rows == best.rows else ' a row'}"
        if slower >= 0.0005
        else "the same time"
    )
    return replace(trial, reason=f"{time_text}: {', '.join(more) or 'nothing else'}")


_FIGURES = {
    "cycles": "cycles",
    "flops": "operations",
    "moved_bytes": "bytes moved",
    "peak": "peak memory",
}
