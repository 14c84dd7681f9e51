"""`SmallProgram`: a program that no recorded graph names, such as a move between devices or a row of a stack."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

Operand = jax.Array | np.generic
Kind = tuple[Hashable, ...]  # the shapes, dtypes and shardings of operands


class SmallProgram:
    """A function of arrays as programs, one for each kind of operands.

    The function is determined by `text`, which is the same in every process, and by this package's source: a program
    that is kept in a file is named by both, so that nothing is traced at a second start.

    Args:
        function: of arrays. facts: plain values that determine it, with a `repr` that is the same in every process.
        options: of `jax.jit`.
    """

    __slots__ = ("jitted", "programs", "text")

    def __init__(self, function: Callable[..., jax.Array], *facts: object, **options: Any):
        self.text = f"{function.__module__}.{function.__qualname__} {facts!r} {options!r}"
        self.jitted = jax.jit(function, **options)
        self.programs: dict[Kind, jax.stages.Compiled] = {}  # of those that are kept in files

    def __call__(self, *arrays: Operand) -> jax.Array:
        """Runs the program on arrays of one set of devices, and on numpy's numbers."""
        return run_by[-1](self, arrays)


def _jitted(program: SmallProgram, arrays: Sequence[Operand]) -> jax.Array:
    return program.jitted(*arrays)


# What runs a small program: jax, or what keeps programs in files. The last one is called.
run_by: list[Callable[[SmallProgram, Sequence[Operand]], jax.Array]] = [_jitted]
