"""Constants of a TPU's clock, fitted to the published steps of the one half.

`python -m recipes.benchmarks.published_steps --fit` calls it. The programs of the plans are kept, so that no step is
compiled again for other constants.
"""

import dataclasses
import gzip
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from spmd.core.checks.hlo import Module
from spmd.tools.planning import figures
from spmd.tools.planning.chips import CHIPS
from spmd.tools.planning.clock import WAITING
from spmd.tools.planning.tpu_clock import BEST, EXPECTED, WORST, TpuClock, TpuRates


@dataclass(frozen=True)
class Kept:
    """A program of a plan. slices, places: of each of its devices, the slice and the coordinates."""

    text: str
    kind: str
    slices: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]


class Keeper:
    """A context that keeps the programs of the plans for TPUs that are made in it."""

    def __init__(self) -> None:
        self.programs: list[Kept] = []

    def __enter__(self) -> "Keeper":
        self._before = figures.Module, figures.terms_of
        texts: list[str] = []

        class Read(Module):
            @classmethod
            def of(cls, executable: Any) -> Module:
                texts.append(executable.as_text())
                return Module.of(executable)

        def terms_of(module: Module, chip: Any, slices: tuple[int, ...], devices: Sequence[Any]) -> Any:
            if not chip.is_gpu:
                places = tuple(tuple(device.coords) for device in devices)
                self.programs.append(Kept(texts[-1], devices[0].device_kind, slices, places))
            return self._before[1](module, chip, slices, devices)

        figures.Module, figures.terms_of = Read, terms_of
        return self

    def __exit__(self, *_: object) -> None:
        figures.Module, figures.terms_of = self._before


def keep(programs: Sequence[Kept], path: Path) -> None:
    path.write_bytes(gzip.compress(pickle.dumps([*programs])))


@dataclass(frozen=True)
class Step:
    """A published step with the programs of its plan. is_open: its source does not say what is recomputed, and the plan
    recomputes all layers."""

    name: str
    seconds: float
    is_open: bool
    programs: Sequence[tuple[Module, Kept]]


def step_of(name: str, seconds: float, is_open: bool, path: Path) -> Step:
    programs = pickle.loads(gzip.decompress(path.read_bytes()))
    return Step(name, seconds, is_open, [(Module(one.text), one) for one in programs])


@dataclass(frozen=True)
class Fitted:
    """Constants of the clock, and the part of an open step's recomputation that its source is assumed to have had."""

    rates: TpuRates
    recomputed: float

    def seconds(self, step: Step) -> float:
        found = [
            TpuClock(module, CHIPS[one.kind], one.slices, one.places, self.rates).run() for module, one in step.programs
        ]
        waiting = sum(spent[name] for spent in found for name in {*WAITING.values()})
        computed = sum(sum(spent.values()) for spent in found) - waiting
        # Forward once more is a quarter of forward, backward and recomputation.
        return waiting + computed * (1 - (1 - self.recomputed) / 4 * step.is_open)


# The constants that are fitted: the value before any fit, and the factor by which it may be wrong.
FIRST = {"cycles": (1.0, 1.1), "attention": (0.45, 1.35), "kernels": (0.45, 1.35), "link": (0.75, 1.25)}
BEFORE = dataclasses.replace(EXPECTED, **{name: value for name, (value, _) in FIRST.items()})
_ERROR = 0.15  # the expected error of a step, relative


def fit(steps: Sequence[Step]) -> Fitted:
    """The most probable constants: least squares of the logarithms, in which an outlier counts linearly (pseudo-Huber),
    within the range that a plan states."""
    start = [math.log(value) for value, _ in FIRST.values()]
    ends = [sorted(math.log(getattr(rates, name)) for rates in (BEST, WORST)) for name in FIRST]

    def residuals(point: np.ndarray) -> list[float]:
        found = _at(point)
        errors = [math.log(found.seconds(step) / step.seconds) / _ERROR for step in steps]
        limited = [math.copysign(math.sqrt(2 * (math.hypot(1, error) - 1)), error) for error in errors]
        spreads = [math.log(spread) for _, spread in FIRST.values()]
        return [*limited, *((at - of) / by for at, of, by in zip(point, start, spreads, strict=False))]

    low, high = ([*side, one] for side, one in zip(zip(*ends, strict=True), (0.0, 1.0), strict=True))
    return _at(least_squares(residuals, [*start, 0.5], bounds=(low, high), diff_step=1e-2).x)


def _at(point: Sequence[float]) -> Fitted:
    named = {name: float(np.exp(at)) for name, at in zip(FIRST, point, strict=False)}
    return Fitted(dataclasses.replace(BEFORE, **named), float(point[-1]))
