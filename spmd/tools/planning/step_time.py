"""The estimated time of a step on a GPU or TPU: its parts, each with a range and a source.

A range is that of the constants in `gpu_clock.py` and `tpu_clock.py`: at best, each unit reaches nearly its peak.
"""

import dataclasses
import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from ...core.extend import Module
from .chips import Chip, calibrated
from .clock import Clock


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step's time. seconds: expected; low, high: the range. source: "measured" where its constants are
    (`python -m spmd calibrate`), "compiler", from its own cycles, or "analytic", from counts and the chip's data
    sheet."""

    name: str
    seconds: float
    low: float
    high: float
    source: str


# A measured constant's own spread.
_SPREAD = 0.1


def terms_of(
    module: Module, chip: Chip, slices: tuple[int, ...], devices: Sequence[Any]
) -> tuple[tuple[Term, ...], Clock]:
    """The parts of the time of one run of a program, and the clock with the expected times of its collectives.

    slices, devices: of the program, in its order: the slice (node) of each, and jax's own. Constants are measured ones
    where `python -m spmd calibrate` has measured this kind of device.
    """
    measured = calibrated(devices[0].device_kind) if devices else {}
    if chip.is_gpu:  # a plan for CPU devices imports neither clock
        rates = import_module("spmd.tools.planning.gpu_clock")
        clock = partial(rates.GpuClock, module, chip, slices)
    else:
        rates = import_module("spmd.tools.planning.tpu_clock")
        clock = partial(rates.TpuClock, module, chip, slices, [tuple(device.coords) for device in devices])
    clocks = [clock(each) for each in _with(measured, rates.EXPECTED, rates.BEST, rates.WORST)]
    expected, best, worst = (clock.run() for clock in clocks)
    terms = tuple(
        Term(name, seconds, best[name], worst[name], _source(clocks[0].constants[name], measured))
        for name, seconds in expected.items()
        if seconds or worst[name]
    )
    return terms, clocks[0]


def _source(constants: Sequence[str], measured: Container[str]) -> str:
    if constants and all(one in measured for one in constants):
        return "measured"
    return "compiler" if "cycles" in constants else "analytic"


# The constants that are seconds or a factor of them: less is better; the others are parts of a peak.
_SECONDS = {"launch", "latency", "hop", "cycles"}

_Rates = TypeVar("_Rates", bound=Any)


def _with(measured: Mapping[str, float], expected: _Rates, best: _Rates, worst: _Rates) -> tuple[_Rates, ...]:
    """The constants, with the measured ones in place of those of the library."""
    found = {one.name: measured[one.name] for one in dataclasses.fields(expected) if one.name in measured}
    change = {name: 1 - _SPREAD if name in _SECONDS else 1 + _SPREAD for name in found}
    return (
        dataclasses.replace(expected, **found),
        dataclasses.replace(best, **{name: value * change[name] for name, value in found.items()}),
        dataclasses.replace(worst, **{name: value / change[name] for name, value in found.items()}),
    )


def summed(programs: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    """The terms of several programs, one after the other."""
    sums: dict[str, Term] = {}
    for term in itertools.chain.from_iterable(programs):
        before = sums.get(term.name, Term(term.name, 0.0, 0.0, 0.0, term.source))
        seconds, low, high = before.seconds + term.seconds, before.low + term.low, before.high + term.high
        sums[term.name] = Term(term.name, seconds, low, high, term.source)
    return tuple(sums.values())
