"""The search of spmd.suggest: candidate meshes and layouts of a step, compiled and ranked, with the reasons."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import torch

from ..core.ir.source import Line
from ..core.lower.lower import LoweringError
from ..core.sharding.topology import Target, all_devices
from ..mesh.mesh import Mesh
from ..planning.chips import CHIPS, Chip, chip_of
from ..planning.planner import ApplyRules, planned
from ..planning.progress import stage
from ..planning.report import Plan
from ..rules.rules import ShardingRules
from .candidates import Expected, Layout, Model, Unfit, expected, layouts, rules_of
from .kept_plans import KeptPlans
from .suggestion import Trial


@dataclass(frozen=True)
class Variant:
    """One choice of what a layout is for: devices, their number, rows of the batch, precision, price of a device for an
    hour."""

    target: Target
    count: int
    rows: int
    mp_policy: Any
    price: float | None


class Search:
    """The search over the layouts of one step, on given devices with a given batch and precision."""

    def __init__(self, step: Any, arguments: Any, variant: Variant, model: Model, kept: KeptPlans, line: Line):
        self.step, self.variant, self.line = step, variant, line
        self.args, self.kwargs = arguments
        self.target, self.count, self.model, self.kept = variant.target, variant.count, model, kept
        self.how = {} if variant.mp_policy is None else {"mp_policy": variant.mp_policy}
        self.chip = chip_of(all_devices(self.target)[0])
        self.width = getattr(variant.mp_policy, "param_dtype", None) or torch.float32

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
        found, open_ = self._candidates()
        memory = None if self.chip is None else self.chip.memory_bytes
        refused: list[Layout] = []
        num_compiled = 0
        for layout, rules, hope in self._in_order(open_, memory):
            mesh, plan = self._mesh(layout), None
            worse = next((other for other in refused if layout.needs_no_less_than(other)), None)
            if memory is not None and hope.state > memory:
                reason = f"does not fit: parameters and optimizer take {hope.state / 2**30:,.1f} GiB of each device"
            elif worse is not None:
                reason = f"not compiled: needs no less memory than {worse}, which does not fit"
            elif num_compiled and (num_compiled >= most or time.monotonic() > until):
                reason = "not compiled: the budget is spent"
            else:
                num_compiled += 1
                key = f"{self.target}; {self.count}; {self.variant.rows} rows; {self.how}; {layout}"
                plan = self.kept.plan(key)
                if plan is None:
                    with stage(f"{num_compiled}, {layout}"):
                        plan, reason = self._compiled(mesh, rules)
                    self.kept.keep(key, plan)
                else:
                    reason = _why_not(plan)
                if plan is not None and not plan.fits:
                    refused.append(layout)
            found.append(self._trial(layout, mesh, rules, plan, reason, hope.seconds))
        return found

    def _trial(
        self,
        layout: Layout,
        mesh: Mesh | None,
        rules: ShardingRules | None,
        plan: Plan | None,
        reason: str,
        hope: float | None = None,
    ) -> Trial:
        seconds, one = None if plan is None else self.seconds(plan), self.variant
        return Trial(
            str(layout), layout.family, mesh, rules, plan, seconds, reason, hope, one.target, one.count, one.rows,
            one.mp_policy, one.price,
        )  # fmt: skip

    def _candidates(self) -> tuple[list[Trial], list[tuple[Layout, ShardingRules]]]:
        """The layouts that the model does not go with, as trials, and the others with their rules."""
        found, open_ = [], []
        for layout in layouts(self.model, self.count):
            try:
                open_.append((layout, rules_of(layout, self.model)))
            except Unfit as error:
                found.append(self._trial(layout, None, None, None, str(error)))
        if not open_:
            raise ValueError(f"suggest: no layout over {self.count} devices goes with the step: {found[0].reason}")
        return found, open_

    def _in_order(
        self, open_: "Sequence[tuple[Layout, ShardingRules]]", memory: int | None
    ) -> "list[tuple[Layout, ShardingRules, Expected]]":
        rates: dict[str, Any] = {
            "peak_flops": self.rates.peak_flops,
            "link_bytes": self.rates.link_bytes,
            "width": self.width.itemsize,
            "has_memory": self.chip is not None,
        }
        hopes = [(layout, rules, expected(layout, self.model, **rates)) for layout, rules in open_]

        def promise(one: Any) -> tuple[bool, float]:
            hope = one[2]
            return memory is not None and hope.state + hope.activations > memory, hope.seconds

        # First the most promising, plain data parallel (as written by hand) and the least memory; then the most
        # promising of each mesh's kind, alternating with those of each family; then the others.
        ordered = sorted(hopes, key=promise)
        plain = [one for one in ordered if one[0].family == "data"][:1]
        least = min(ordered, key=lambda one: one[2].state + one[2].activations)
        kinds = _first_of(ordered, lambda layout: (layout.family, layout.tensor))
        families = _first_of(ordered, lambda layout: layout.family.rpartition(" x ")[2])
        alternating = [one for pair in zip_longest(kinds, families) for one in pair if one is not None]
        return [*{id(one): one for one in (ordered[0], *plain, least, *alternating, *ordered)}.values()]

    def _mesh(self, layout: Layout) -> Mesh:
        return Mesh(range(self.count), tuple(layout.axes.values()), tuple(layout.axes), target=self.target)

    def _compiled(self, mesh: Mesh, rules: ShardingRules) -> tuple[Plan | None, str]:
        """The plan of a layout, and why it does not fit or, without a plan, does not compile."""
        lay = ApplyRules(rules, mesh, self.how, self.model.flow.model)
        try:
            plan = planned(self.step, self.args, self.kwargs, self.target, lay, self.line)
        except LoweringError as error:  # a kernel with this layout's shapes: the other layouts are still to be compiled
            return None, f"does not compile: {error}"
        finally:
            gc.collect()  # units of the previous trial are found by their modules
        return plan, _why_not(plan)


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


def _first_of(ordered: "Sequence[Any]", key: Callable[[Layout], object]) -> list[Any]:
    """The first layout of each key."""
    found: dict[object, Any] = {}
    for one in ordered:
        found.setdefault(key(one[0]), one)
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
