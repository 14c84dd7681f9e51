"""The cycles that the TPU compiler estimates for a program."""

import re

from .hlo import Module

_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


def cycles(module: Module) -> tuple[int, int]:
    """The estimated cycles of a run, and the same with each loop's body counted once; 0 where the compiler gives none."""
    total = once = 0
    for computation in module.computations.values():
        if computation.is_inner or not computation.count:
            continue
        own = sum(int(found[1]) for line in computation.lines if (found := _CYCLES.search(line.rest)))
        total += computation.count * own
        once += own
    return total, once
