"""Programs of plans, kept as text, their times by the constants of a clock, and constants fitted to
published steps.

`python -m recipes.benchmarks.published_steps` calls it: no step is compiled again for other
constants.
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

from recipes.benchmarks import published_rows as rows
from spmd.core.programs.hlo import Module, text_of
from spmd.mesh.gpus import GPUS
from spmd.tools.planning import figures, gpu_clock, step_time, tpu_clock
from spmd.tools.planning.clock import CHIPS, describe_gpu
from spmd.tools.planning.tpu_clock import BEST, EXPECTED, WORST, TpuRates


def _describe() -> None:
    """Adds the GPU of published steps that the library does not have."""
    h100 = GPUS["h100"]
    gpu = dataclasses.replace(
        h100,
        kind="NVIDIA H100 96GB HBM2e",
        memory_bytes=rows.H100_HBM2E_MEMORY,
        bandwidth=rows.H100_HBM2E_BANDWIDTH,
    )
    link, network = CHIPS[h100.kind].link_bytes, CHIPS[h100.kind].network_bytes
    describe_gpu(
        rows.H100_HBM2E,
        gpu.description,
        peak_flops=rows.H100_HBM2E_PEAK,
        link_bytes=link,
        network_bytes=network,
    )


_describe()


@dataclass(frozen=True)
class Kept:
    """A program of a plan. slices, places: of each of its devices, the slice (node) and a TPU's
    coordinates."""

    text: str
    kind: str
    slices: tuple[int, ...]
    places: tuple[tuple[int, ...], ...]


Programs = Sequence[tuple[Module, Kept]]


class Keeper:
    """A context that keeps the programs of the plans that are made in it."""

    def __init__(self) -> None:
        self.programs: list[Kept] = []

    def __enter__(self) -> "Keeper":
        self._before = figures.Module, step_time.terms_of
        texts: list[str] = []

        class Read(Module):
            @classmethod
            def of(cls, executable: Any) -> Module:
                texts.append(text_of(executable))
                return Module.of(executable)

        def terms_of(
            module: Module, chip: Any, slices: tuple[int, ...], devices: Sequence[Any]
        ) -> Any:
            places = () if chip.is_gpu else tuple(tuple(device.coords) for device in devices)
            self.programs.append(Kept(texts[-1], devices[0].device_kind, slices, places))
            return self._before[1](module, chip, slices, devices)

        figures.Module, step_time.terms_of = Read, terms_of
        return self

    def __exit__(self, *_: object) -> None:
        figures.Module, step_time.terms_of = self._before


def keep(programs: Sequence[Kept], path: Path) -> None:
    path.write_bytes(gzip.compress(pickle.dumps([*programs])))


def read(path: Path) -> Programs:
    return [(Module(kept.text), kept) for kept in pickle.loads(gzip.decompress(path.read_bytes()))]


def seconds_by_term(programs: Programs, rates: Any) -> dict[str, float]:
    """The seconds of programs, one after the other, by what they are spent on. rates: of the chip's
    clock."""
    sums: dict[str, float] = {}
    for module, kept in programs:
        chip = CHIPS[kept.kind]
        clock = (
            gpu_clock.GpuClock(module, chip, kept.slices, rates)
            if chip.is_gpu
            else tpu_clock.TpuClock(module, chip, kept.slices, kept.places, rates)
        )
        for name, seconds in clock.run().items():
            sums[name] = sums.get(name, 0.0) + seconds
    return sums


def seconds_of(programs: Programs, rates: Any) -> float:
    return sum(seconds_by_term(programs, rates).values())


def times(programs: Programs) -> tuple[float, float, float]:
    """The seconds of programs: expected, at best and at worst."""
    clock = gpu_clock if programs and CHIPS[programs[0][1].kind].is_gpu else tpu_clock
    expected, low, high = (
        seconds_of(programs, rates) for rates in (clock.EXPECTED, clock.BEST, clock.WORST)
    )
    return expected, low, high


@dataclass(frozen=True)
class Step:
    """A published step with the programs of its plan."""

    name: str
    seconds: float
    programs: Programs


# The constants that are fitted: the value before any fit, and the factor by which it may be wrong.
FIRST = {
    "cycles": (1.0, 1.1),
    "attention": (0.45, 1.35),
    "kernels": (0.85, 1.15),
    "link": (0.75, 1.25),
}
_ERROR = 0.15  # the expected error of a step, relative


def fit(steps: Sequence[Step]) -> TpuRates:
    """The most probable constants: least squares of the logarithms, in which an outlier counts
    linearly (pseudo-Huber), within the range that a plan states."""
    start = [math.log(value) for value, _ in FIRST.values()]
    ends = [sorted(math.log(getattr(rates, name)) for rates in (BEST, WORST)) for name in FIRST]

    def residuals(point: np.ndarray) -> list[float]:
        rates = _at(point)
        errors = [
            math.log(seconds_of(step.programs, rates) / step.seconds) / _ERROR for step in steps
        ]
        limited = [
            math.copysign(math.sqrt(2 * (math.hypot(1, error) - 1)), error) for error in errors
        ]
        spreads = [math.log(spread) for _, spread in FIRST.values()]
        return [
            *limited,
            *((at - of) / by for at, of, by in zip(point, start, spreads, strict=True)),
        ]

    return _at(
        least_squares(residuals, start, bounds=tuple(zip(*ends, strict=True)), diff_step=1e-2).x
    )


def _at(point: Sequence[float]) -> TpuRates:
    named = {name: float(np.exp(at)) for name, at in zip(FIRST, point, strict=True)}
    return dataclasses.replace(EXPECTED, **named)
