"""The estimated time of a step on a GPU or TPU: its parts, each with a range and a source.

A range is that of the constants in `gpu_clock.py` and `tpu_clock.py`: at best, each unit reaches nearly its peak.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.hlo.hlo import Module
from . import gpu_clock, tpu_clock
from .chips import Chip


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a step's time. seconds: expected; low, high: the range. source: "compiler", from its own cycles, or
    "analytic", from counts and the chip's constants."""

    name: str
    seconds: float
    low: float
    high: float
    source: str


def terms_of(module: Module, chip: Chip, slices: tuple[int, ...], devices: Sequence[Any]) -> tuple[Term, ...]:
    """The parts of the time of one run of a program; none where a TPU's compiler gave no cycles.

    slices, devices: of the program, in its order: the slice (node) of each, and jax's own.
    """
    if chip.is_gpu:
        rates = gpu_clock.EXPECTED, gpu_clock.BEST, gpu_clock.WORST
        runs = [gpu_clock.GpuClock(module, chip, slices, rate).run() for rate in rates]
    else:
        places = [tuple(device.coords) for device in devices]
        rates_of = tpu_clock.EXPECTED, tpu_clock.BEST, tpu_clock.WORST
        runs = [tpu_clock.TpuClock(module, chip, slices, places, rate).run() for rate in rates_of]
    expected, best, worst = runs
    return tuple(
        Term(name, seconds, best[name], worst[name], "compiler" if name == tpu_clock.CYCLES else "analytic")
        for name, seconds in expected.items()
        if seconds or worst[name]
    )


def summed(programs: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    """The terms of several programs, one after the other."""
    found: dict[str, Term] = {}
    for term in (term for terms in programs for term in terms):
        one = found.get(term.name)
        found[term.name] = (
            term
            if one is None
            else Term(term.name, one.seconds + term.seconds, one.low + term.low, one.high + term.high, term.source)
        )
    return tuple(found.values())
