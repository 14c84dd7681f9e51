"""spmd.suggest: candidate meshes and layouts of a step, compiled and ranked, with the reasons."""

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from ..core.engine.syncs import sync
from ..core.ir.source import Line, user_line
from ..core.lower.lower import LoweringError
from ..core.pjrt.devices import devices
from ..core.sharding.topology import Target, all_devices, num_devices
from ..mesh.mesh import Mesh
from ..mesh.partition_spec import PartitionSpec
from ..planning.chips import CHIPS, Chip, chip_of
from ..planning.layout import roots_of, tensors_of
from ..planning.names import Roles
from ..planning.planner import ApplyRules, bytes_of, planned
from ..planning.progress import silent, stage
from ..planning.reachable import Reachable
from ..planning.report import Plan, view
from ..planning.saved_state import abstractly
from ..rules.rules import ShardingRules
from ..tensors.annotate import get_sharding
from .candidates import Expected, Layout, Model, Unfit, expected, layouts, model_of, rules_of
from .uses import Flow


@dataclass(frozen=True)
class Trial:
    """One candidate layout.

    Attributes:
        name: its mesh and options. family: "data", "fsdp", "hybrid", "tensor", "tensor + sequence", or two of these.
        mesh, rules: of the layout; None where the model does not go with it. plan: the compiler's figures; None if it
            was not compiled. seconds: by the measure of the search; None without a plan. reason: why it is not the
            first. expected: seconds by the simple estimate that chose what to compile; None where the model does not go
            with it.
    """

    name: str
    family: str
    mesh: Mesh | None
    rules: ShardingRules | None
    plan: Plan | None
    seconds: float | None
    reason: str
    expected: float | None = None


@dataclass(frozen=True)
class Suggestion:
    """The result of `spmd.suggest`.

    Attributes:
        trials: those that fit, best first, then those that do not fit or were not compiled. measure: the formula that
            ranks them. spent: seconds of the search.
    """

    trials: tuple[Trial, ...]
    measure: str
    spent: float = field(compare=False)

    @property
    def best(self) -> Trial:
        """The first trial. Raises ValueError where none fits, with the reason of the nearest one."""
        first = self.trials[0]
        if first.plan is None or not first.plan.fits:
            nearest = min((one for one in self.trials if one.plan), key=lambda one: one.plan.peak, default=first)  # type: ignore[union-attr]
            raise ValueError(f"suggest: no layout was found to fit; the nearest is {nearest.name}: {nearest.reason}")
        return first

    @property
    def least_memory(self) -> Trial:
        """The compiled trial that fits with the least peak memory: the best itself, or an alternative to it.

        Raises ValueError where none fits.
        """
        fitting = [trial for trial in self.trials if trial.plan is not None and trial.plan.fits]
        return min(fitting, key=lambda trial: trial.plan.peak) if fitting else self.best  # type: ignore[union-attr]

    @property
    def mesh(self) -> Mesh:
        """The mesh of the best trial."""
        assert self.best.mesh is not None
        return self.best.mesh

    @property
    def rules(self) -> ShardingRules:
        """The rules of the best trial, to be read, edited, saved and applied."""
        assert self.best.rules is not None
        return self.best.rules

    @property
    def plan(self) -> Plan:
        """The plan of the best trial."""
        assert self.best.plan is not None
        return self.best.plan

    def __rich__(self) -> Any:
        return view("table").ranked(self)

    def __str__(self) -> str:
        return str(view("table").text_of(self))


def suggest(
    step: Callable[..., Any],
    *args: Any,
    target: str | None = None,
    model: nn.Module | None = None,
    mp_policy: Any = None,
    budget: float = 600.0,
    max_trials: int = 24,
    progress: bool = True,
    **kwargs: Any,
) -> Suggestion:
    """Finds a mesh and rules for a step, by compiling it for the devices with candidate layouts.

    The candidates are data parallel, FSDP, both (hybrid), tensor parallel with and without residuals sharded along the
    sequence, and all of these together; parameters kept or gathered again for backward; none, half or all of the blocks
    recomputed. The parameters that a tensor axis can shard follow from one observed forward pass: products that read
    the results of others, heads, embedding tables, under any names. A simple estimate chooses the layouts to compile
    first; those that cannot fit are not compiled. Nothing is run or allocated, and model and optimizer are restored.

    A layout is ranked by max(cycles / clock, bytes moved / bandwidth of the links), with the compiler's cycles, as
    these do not include the links and collectives can overlap with computation. Where there are no cycles (the CPU), it
    is ranked by max(operations / peak, bytes moved / bandwidth), with both of a v5p.

    Args:
        step: the function as a run on one device calls it, without meshes and annotations; args, kwargs: its arguments,
            as in `spmd.plan`. target: the devices, as in `spmd.plan`; None: those here.
        model: the module to shard; None: the one that is reachable from the step.
        mp_policy: the `fsdp.MixedPrecisionPolicy` that the rules will be applied with.
        budget: seconds after which no further layout is compiled; max_trials: the most layouts to compile.
        progress: say on stderr which layout is compiled, in place where that is a terminal.

    Raises ValueError where the step reaches no module, or several and no `model` is given, or one that is sharded
    already; and as `spmd.plan` does, except for a kernel that does not compile, which is its trial's reason.

    >>> import torch, spmd
    >>> layers = (torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    >>> model = torch.nn.Sequential(*layers).to("meta")
    >>> step, batch = lambda x: model(x).square().mean().backward(), torch.empty(8, 64)
    >>> found = spmd.suggest(step, batch, target="cpu:2", progress=False)
    >>> found.mesh.size(), found.plan.fits, found.best.reason
    (2, True, '')
    """
    line, started = user_line(), time.monotonic()
    if not callable(step):
        raise TypeError(f"suggest: expected a function that does a step, got {type(step).__name__}")
    count = len(devices()) if target is None else num_devices(target)
    with contextlib.nullcontext() if progress else silent(), stage("suggest"):
        with stage("observing the model"):
            observed = _observed(step, args, kwargs, model)
        search = Search(step, args, kwargs, target, count, observed, mp_policy, line)
        trials = search.run(started + budget, max_trials)
    return Suggestion(tuple(search.ranked(trials)), search.measure, time.monotonic() - started)


def _observed(step: Any, args: Any, kwargs: Any, module: nn.Module | None) -> Model:
    """The properties of the module to shard, observed in one step."""
    with abstractly(step, (args, kwargs)) as reachable:
        if module is None:
            roots = [root for root in roots_of(reachable.modules) if any(True for _ in root.parameters())]
            if len(roots) != 1:
                names = ", ".join(type(root).__name__ for root in roots) or "none"
                raise ValueError(f"suggest: expected the step to reach one model, got {names}; choose one by model=...")
            module = roots[0]
        elif module not in reachable.modules:
            raise ValueError(f"suggest: the step does not reach the {type(module).__name__} that was passed as model")
        _refuse_sharded(module)
        flow = Flow(module)
        with flow.watching():
            result = step(*args, **kwargs)
        sync()
        state = bytes_of(Roles(Reachable(step, (args, kwargs))))
        del result
    if not flow.shapes:
        raise ValueError(f"suggest: the step does not call the {type(module).__name__}")
    return model_of(module, flow, state["parameters"] + state["optimizer state"])


def _refuse_sharded(module: nn.Module) -> None:
    """Raises ValueError for a model that is sharded already."""
    for path, tensor, _ in tensors_of(module):
        sharding = get_sharding(tensor)
        if sharding is not None:
            raise ValueError(
                f"suggest: expected a model without shardings, but {path} of the {type(module).__name__} has "
                f"{PartitionSpec(*sharding.partition_spec(tensor.dim()))!r}; call suggest before FSDP, rules or "
                "annotations, and apply the rules that it finds instead"
            )


class Search:
    """The search over the layouts of one step."""

    def __init__(
        self, step: Any, args: Any, kwargs: Any, target: Target, count: int, model: Model, mp_policy: Any, line: Line
    ):
        self.step, self.args, self.kwargs, self.target, self.line = step, args, kwargs, target, line
        self.count, self.model = count, model
        self.how = {} if mp_policy is None else {"mp_policy": mp_policy}
        self.chip = chip_of(all_devices(target)[0])
        self.width = getattr(mp_policy, "param_dtype", None) or torch.float32

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
                with stage(f"{num_compiled}, {layout}"):
                    plan, reason = self._compiled(mesh, rules)
                if plan is not None and not plan.fits:
                    refused.append(layout)
            seconds = None if plan is None else self.seconds(plan)
            found.append(Trial(str(layout), layout.family, mesh, rules, plan, seconds, reason, hope.seconds))
        return found

    def _candidates(self) -> tuple[list[Trial], list[tuple[Layout, ShardingRules]]]:
        """The layouts that the model does not go with, as trials, and the others with their rules."""
        found, open_ = [], []
        for layout in layouts(self.model, self.count):
            try:
                open_.append((layout, rules_of(layout, self.model)))
            except Unfit as error:
                found.append(Trial(str(layout), layout.family, None, None, None, None, str(error)))
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
        if plan.fits:
            return plan, ""
        if plan.memory is None:
            return plan, f"does not fit: {plan.verdict}"
        return plan, f"does not fit: needs {plan.peak / 2**30:,.1f} GiB of {plan.memory / 2**30:,.1f}"

    def ranked(self, trials: list[Trial]) -> Iterator[Trial]:
        """Yields the trials, best first, with the reason of each but the first."""

        def rank(trial: Trial) -> tuple[Any, ...]:
            plan = trial.plan
            if plan is None or trial.seconds is None:
                return 2 if trial.mesh is not None else 3, trial.expected or 0, 0, 0
            return 0 if plan.fits else 1, trial.seconds, plan.moved_bytes, plan.peak

        ordered = sorted(trials, key=rank)
        best = ordered[0]
        for trial in ordered:
            yield trial if trial is best or trial.reason else _behind(trial, best)


def _first_of(ordered: "Sequence[Any]", key: Callable[[Layout], object]) -> list[Any]:
    """The first layout of each key."""
    found: dict[object, Any] = {}
    for one in ordered:
        found.setdefault(key(one[0]), one)
    return [*found.values()]


def _behind(trial: Trial, best: Trial) -> Trial:
    """The trial with its reason: the figures in which it exceeds the best one."""
    one, two = trial.plan, best.plan
    assert one is not None and two is not None and trial.seconds is not None and best.seconds is not None
    slower = trial.seconds / best.seconds - 1 if best.seconds else 0.0
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
    said = f"{slower:+.1%} time" if slower >= 0.0005 else "the same time"
    return replace(trial, reason=f"{said}: {', '.join(more) or 'nothing else'}")
