"""The parts of the time of one run of a program, on a chip whose constants are known.

A range of the time is that of the constants in `gpu_clock.py` and `tpu_clock.py`: at best, each
unit reaches nearly its peak.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from ...core.extend import Module
from . import gpu_clock, tpu_clock
from .clock import Chip, Clock, calibrated
from .clock import chip_of as chip_of
from .layout import Term

# A measured constant's own spread.
_SPREAD = 0.1


def terms_of(
    module: Module, chip: Chip, slices: tuple[int, ...], devices: Sequence[Any]
) -> tuple[tuple[Term, ...], Clock]:
    """The parts of the time of one run of a program, and the clock with the expected times of its
    collectives.

    slices, devices: of the program, in its order: the slice (node) of each, and jax's own.
    Constants are measured ones where `python -m spmd calibrate` has measured this kind of device.
    """
    measured = calibrated(devices[0].device_kind) if devices else {}
    rates: Any = gpu_clock if chip.is_gpu else tpu_clock
    clock: Any = (
        partial(gpu_clock.GpuClock, module, chip, slices)
        if chip.is_gpu
        else partial(
            tpu_clock.TpuClock, module, chip, slices, [tuple(device.coords) for device in devices]
        )
    )
    kinds = (rates.EXPECTED, 0), (rates.BEST, 1), (rates.WORST, -1)
    clocks = [clock(_with(measured, constants, power)) for constants, power in kinds]
    expected, best, worst = (clock.run() for clock in clocks)
    terms = tuple(
        Term(name, seconds, best[name], worst[name], _source(clocks[0].constants[name], measured))
        for name, seconds in expected.items()
        if seconds or worst[name]
    )
    return terms, clocks[0]


def _source(constants: Sequence[str], measured: Container[str]) -> str:
    if constants and all(constant in measured for constant in constants):
        return "measured"
    return "compiler" if "cycles" in constants else "analytic"


# The constants that are seconds or a factor of them: less is better; the others are parts of a
# peak.
_SECONDS = {"launch", "latency", "hop", "cycles"}


def _with(measured: Mapping[str, float], constants: Any, power: int) -> Any:
    """The constants, with the measured ones in place of those of the library. power: of their
    spread, 1 at best."""
    change = {name: 1 - _SPREAD if name in _SECONDS else 1 + _SPREAD for name in measured}
    names = [
        constant_field.name
        for constant_field in fields(constants)
        if constant_field.name in measured
    ]
    return replace(constants, **{name: measured[name] * change[name] ** power for name in names})
