"""spmd.suggest: the sensible meshes and layouts of a step, each asked of the compiler, ranked, with the reasons."""

import contextlib
import gc
import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from ..annotate import get_sharding
from ..core.compile.lower import LoweringError
from ..core.engine import abstract
from ..core.engine.barrier import sync
from ..core.ir.source import Line, user_line
from ..core.lazy.threads import enter_thread
from ..core.pjrt.devices import devices
from ..core.sharding.topology import Target, all_devices, num_devices
from ..mesh import Mesh
from ..partition_spec import PartitionSpec
from .chips import CHIPS, Chip, chip_of
from .layout import roots_of, tensors_of
from .layouts import Expected, Layout, Model, Unfit, expected, layouts, model_of, rules_of
from .names import Roles
from .planner import Lay, bytes_of, planned
from .progress import silent, stage
from .reach import Reached
from .report import Plan
from .rules import ShardingRules
from .standing import kept, without_data
from .uses import Flow


@dataclass(frozen=True)
class Trial:
    """One layout that was thought of.

    Attributes:
        name: its mesh and what else it does. family: "data", "fsdp", "hybrid", "tensor", "tensor + sequence", or two.
        mesh, rules: what it is; None where the model does not go with it. plan: what the compiler says; None where it
            was not asked. seconds: by the measure of the search; None without a plan. reason: why it is not the first.
        expected: seconds by the simple sums that chose what to compile; None where the model does not go with it.
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
    """What `spmd.suggest` found.

    Attributes:
        trials: those that fit, best first, then those that do not or were not asked of the compiler. measure: what
            they are ranked by, in words. spent: seconds of the search.
    """

    trials: tuple[Trial, ...]
    measure: str
    spent: float = field(compare=False)

    @property
    def best(self) -> Trial:
        """The first. Raises ValueError where none fits, and says what the nearest one lacks."""
        first = self.trials[0]
        if first.plan is None or not first.plan.fits:
            nearest = min((one for one in self.trials if one.plan), key=lambda one: one.plan.peak, default=first)  # type: ignore[union-attr]
            raise ValueError(f"suggest: no layout was found to fit; the nearest is {nearest.name}: {nearest.reason}")
        return first

    @property
    def least_memory(self) -> Trial:
        """The one of those compiled that fit whose peak is the least: the best itself, or what it could be traded for.

        Raises ValueError where none fits.
        """
        fitting = [trial for trial in self.trials if trial.plan is not None and trial.plan.fits]
        return min(fitting, key=lambda trial: trial.plan.peak) if fitting else self.best  # type: ignore[union-attr]

    @property
    def mesh(self) -> Mesh:
        """The mesh of the best one."""
        assert self.best.mesh is not None
        return self.best.mesh

    @property
    def rules(self) -> ShardingRules:
        """The rules of the best one: to be read, edited, saved and applied."""
        assert self.best.rules is not None
        return self.best.rules

    @property
    def plan(self) -> Plan:
        """The plan of the best one."""
        assert self.best.plan is not None
        return self.best.plan

    def __rich__(self) -> Any:
        return importlib.import_module("spmd.planning.table").ranked(self)

    def __str__(self) -> str:
        return str(importlib.import_module("spmd.planning.table").text_of(self))


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
    """Finds a mesh and rules for a step, by asking the compiler of the devices about the layouts that make sense.

    Data parallel, FSDP, both (hybrid), tensor parallel with and without residuals split along the sequence, and all of
    these together; parameters kept or gathered again for backward; none, half or all of the blocks checkpointed. What
    can be split over a tensor axis follows from one forward pass that is watched: products that read what others made,
    heads, tables of embeddings, whatever they are called. Simple sums choose what is compiled first; what cannot fit is
    not. Nothing is run or allocated, and model and optimizer are afterwards what they were.

    A layout is ranked by max(cycles / clock, bytes moved / bandwidth of the links), the compiler's cycles, as the
    compiler knows nothing of links and collectives can overlap with computation. Where there are no cycles (the CPU),
    by max(operations / peak, bytes moved / bandwidth), with both of a v5p.

    Args:
        step: the function as a run on one device calls it, without meshes and marks; args, kwargs: its arguments, as
            in `spmd.plan`. target: the devices, as there; None: those here.
        model: the module to lay out; None: the one that the step reaches.
        mp_policy: the `fsdp.MixedPrecisionPolicy` that the rules will be applied with.
        budget: seconds after which nothing more is compiled; max_trials: how much is at most.
        progress: show what is being compiled, where stderr is a terminal.

    Raises ValueError where the step reaches no module, or several without saying which, or one that has a layout
    already, and what `spmd.plan` raises but for a kernel that does not compile: the reason of its layout.

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
        with stage("watching the model"):
            known = _known(step, args, kwargs, model)
        search = Search(step, args, kwargs, target, count, known, mp_policy, line)
        trials = search.run(started + budget, max_trials)
    return Suggestion(tuple(search.ranked(trials)), search.measure, time.monotonic() - started)


@dataclass(frozen=True)
class Known:
    """The module that is laid out, and what was seen of it."""

    module: nn.Module
    model: Model


def _known(step: Any, args: Any, kwargs: Any, module: nn.Module | None) -> Known:
    """Watches the model in one step."""
    enter_thread()
    reached = Reached(step, (args, kwargs))
    with abstract.recorded(abstract.Recording()), kept(reached), without_data(reached, (args, kwargs)):
        if module is None:
            roots = [root for root in roots_of(reached.modules) if any(True for _ in root.parameters())]
            if len(roots) != 1:
                names = ", ".join(type(root).__name__ for root in roots) or "none"
                raise ValueError(f"suggest: expected one model in reach of the step, got {names}; say which: model=...")
            module = roots[0]
        elif module not in reached.modules:
            raise ValueError(f"suggest: the step does not reach the {type(module).__name__} that was given as model")
        _refuse_laid_out(module)
        flow = Flow(module)
        with flow.watching():
            result = step(*args, **kwargs)
        sync()
        state = bytes_of(Roles(Reached(step, (args, kwargs))))
        del result
    if not flow.shapes:
        raise ValueError(f"suggest: the step does not call the {type(module).__name__}")
    return Known(module, model_of(module, flow, state["parameters"] + state["optimizer state"]))


def _refuse_laid_out(module: nn.Module) -> None:
    """Raises ValueError for a model that has a layout already."""
    for path, tensor, _ in tensors_of(module):
        sharding = get_sharding(tensor)
        if sharding is not None:
            raise ValueError(
                f"suggest: expected a model without a layout, and {path} of the {type(module).__name__} has "
                f"{PartitionSpec(*sharding.partition_spec(tensor.dim()))!r}; give suggest the model before FSDP, rules "
                "or marks, and apply the rules that it finds in their place"
            )


class Search:
    """The layouts of one step, and what the compiler has said of them."""

    def __init__(
        self, step: Any, args: Any, kwargs: Any, target: Target, count: int, known: Known, mp_policy: Any, line: Line
    ):
        self.step, self.args, self.kwargs, self.target, self.line = step, args, kwargs, target, line
        self.count, self.known = count, known
        self.how = {} if mp_policy is None else {"mp_policy": mp_policy}
        self.chip = chip_of(all_devices(target)[0])
        self.width = getattr(mp_policy, "param_dtype", None) or torch.float32

    @property
    def rates(self) -> Chip:
        """Of the chip; where it is none that is known, of a v5p: what matters is how they compare."""
        return self.chip or CHIPS["TPU v5"]

    @property
    def measure(self) -> str:
        first = (
            f"cycles / {self.rates.clock / 1e9:.3f} GHz" if self.chip else f"operations / {self.rates.peak_flops:.3g}"
        )
        beside = "" if self.chip else ", the rates of a v5p, as the compiler gives no cycles here"
        return f"max({first}, bytes moved / {self.rates.link_bytes:.3g} a second){beside}"

    def seconds(self, plan: Plan) -> float:
        """The least time of a step: computation and collectives overlap at best."""
        cycles, rest = (plan.cycles, plan.kernel_flops) if self.chip else (0, plan.flops)
        compute = cycles / self.rates.clock + rest / self.rates.peak_flops
        return max(compute, plan.moved_bytes / self.rates.link_bytes)

    def run(self, until: float, most: int) -> "list[tuple[Layout, Trial]]":
        """Compiles the most promising, at first of each family one."""
        found, open_ = self._thought_of()
        memory = self.rates.memory_bytes if self.chip else None
        refused: list[Layout] = []
        asked = 0
        for layout, rules, hope in self._in_order(open_, memory):
            worse = next((other for other in refused if layout.needs_no_less_than(other)), None)
            if memory is not None and hope.state > memory:
                text = f"does not fit: parameters and optimizer take {hope.state / 2**30:,.1f} GiB of each device"
            elif worse is not None:
                text = f"not compiled: needs no less memory than {worse}, which does not fit"
            elif asked and (asked >= most or time.monotonic() > until):
                text = "not compiled: the budget is spent"
            else:
                asked += 1
                with stage(f"{asked}, {layout}"):
                    trial = replace(self._asked(layout, rules), expected=hope.seconds)
                found.append((layout, trial))
                if trial.plan is not None and not trial.plan.fits:
                    refused.append(layout)
                continue
            mesh = self._mesh(layout)
            found.append((layout, Trial(str(layout), layout.family, mesh, rules, None, None, text, hope.seconds)))
        return found

    def _thought_of(self) -> "tuple[list[tuple[Layout, Trial]], list[tuple[Layout, ShardingRules]]]":
        """Those that do not go, and those that do."""
        found, open_ = [], []
        for layout in layouts(self.known.model, self.count):
            try:
                open_.append((layout, rules_of(layout, self.known.model)))
            except Unfit as error:
                found.append((layout, Trial(str(layout), layout.family, None, None, None, None, str(error))))
        if not open_:
            raise ValueError(f"suggest: no layout over {self.count} devices goes with the step: {found[0][1].reason}")
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
        hopes = [(layout, rules, expected(layout, self.known.model, **rates)) for layout, rules in open_]

        def promise(one: Any) -> tuple[bool, float]:
            hope = one[2]
            return memory is not None and hope.state + hope.activations > memory, hope.seconds

        # First the most promising, what a user would write by hand (plain data parallel) and the least memory; then the
        # most promising of each mesh's kind, alternating with those of each family; then the others.
        ordered = sorted(hopes, key=promise)
        plain = [one for one in ordered if one[0].family == "data"][:1]
        least = min(ordered, key=lambda one: one[2].state + one[2].activations)
        kinds = _first_of(ordered, lambda layout: (layout.family, layout.tensor))
        families = _first_of(ordered, lambda layout: layout.family.rpartition(" x ")[2])
        turns = [one for pair in zip_longest(kinds, families) for one in pair if one is not None]
        return [*{id(one): one for one in (ordered[0], *plain, least, *turns, *ordered)}.values()]

    def _mesh(self, layout: Layout) -> Mesh:
        return Mesh(range(self.count), tuple(layout.axes.values()), tuple(layout.axes), target=self.target)

    def _asked(self, layout: Layout, rules: ShardingRules) -> Trial:
        mesh = self._mesh(layout)
        lay = Lay(rules, mesh, self.how, self.known.module)
        try:
            plan = planned(self.step, self.args, self.kwargs, self.target, lay, self.line)
        except LoweringError as error:  # a kernel with this layout's shapes: the others are still to be asked
            return Trial(str(layout), layout.family, mesh, rules, None, None, f"does not compile: {error}")
        finally:
            gc.collect()  # units of the trial before are found by their modules
        reason = "" if plan.fits else _too_much(plan)
        return Trial(str(layout), layout.family, mesh, rules, plan, self.seconds(plan), reason)

    def ranked(self, found: "list[tuple[Layout, Trial]]") -> Iterator[Trial]:
        """Best first, with the reason of each but the first."""
        trials = [trial for _, trial in found]

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
    """Of each key the first."""
    found: dict[object, Any] = {}
    for one in ordered:
        found.setdefault(key(one[0]), one)
    return [*found.values()]


def _too_much(plan: Plan) -> str:
    if plan.memory is None:
        return f"does not fit: {plan.verdict}"
    return f"does not fit: needs {plan.peak / 2**30:,.1f} GiB of {plan.memory / 2**30:,.1f}"


def _behind(trial: Trial, best: Trial) -> Trial:
    """The trial with what it has more of than the best one."""
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
