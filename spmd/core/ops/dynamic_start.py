"""Ops with a static position, computed with a dynamic one: the start of a slice, as a loop's index, or the end of
random integers, as the current length of a buffer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from .place import at
from .random import WIDE, integers

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Run:
    """`count` elements along `axis`, `step` apart; `is_select`: one element, whose dim is removed."""

    axis: int
    count: int
    step: int
    is_select: bool

    def read(self, base: jax.Array, start: jax.Array) -> jax.Array:
        """The run of `base` that begins at `start`."""
        if self.is_select:
            return jax.lax.dynamic_index_in_dim(base, start, self.axis, keepdims=False)
        found = jax.lax.dynamic_slice_in_dim(base, start, (self.count - 1) * self.step + 1, self.axis)
        return found if self.step == 1 else jax.lax.slice_in_dim(found, 0, found.shape[self.axis], self.step, self.axis)

    def write(self, base: jax.Array, new: jax.Array, start: jax.Array) -> jax.Array:
        """`base` with that run replaced by `new`."""
        new = jnp.expand_dims(new, self.axis) if self.is_select else new
        new = new.astype(base.dtype)
        if self.step == 1:
            return jax.lax.dynamic_update_slice_in_dim(base, new, start, self.axis)
        places = start + self.step * jnp.arange(self.count)
        return at(base, (slice(None),) * self.axis + (places,)).set(new)


@dataclass(frozen=True, slots=True)
class TakeRun:
    """The run of an array."""

    run: Run

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return self.run.read(operands[0], start)


@dataclass(frozen=True, slots=True)
class Write:
    """The first operand with the run replaced by the second."""

    run: Run

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return self.run.write(operands[0], operands[1], start)


@dataclass(frozen=True, slots=True)
class Gradient:
    """Zeros with the run replaced by the operand."""

    run: Run
    shape: tuple[int, ...]

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return self.run.write(jnp.zeros(self.shape, operands[0].dtype), operands[0], start)


@dataclass(frozen=True, slots=True)
class Arange:
    """Consecutive integers from a start on, `step` apart."""

    count: int
    dtype: np.dtype
    step: int

    def __call__(self, operands: Sequence[jax.Array], start: jax.Array) -> jax.Array:
        return (start + self.step * jnp.arange(self.count)).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Integers:
    """Random integers from `low` up to an end."""

    shape: tuple[int, ...]
    dtype: np.dtype
    low: int

    def __call__(self, operands: Sequence[jax.Array], end: jax.Array, draw: tuple[jax.Array, jax.Array]) -> jax.Array:
        return integers(draw, self.shape, self.low, end, self.dtype)


Move = TakeRun | Write | Gradient | Arange | Integers


def run_of(overload: Any, shape: tuple[int, ...], given: dict[str, Any]) -> tuple[Run, int] | None:
    """The run that a select or slice of an array of this shape takes, and its start; None where the start is fixed."""
    dim = given.get("dim", 0)
    axis = dim + len(shape) if dim < 0 else dim
    if overload in _SELECTS:
        index = given["index"]
        return Run(axis, 1, 1, True), index + shape[axis] if index < 0 else index
    step = given.get("step", 1)
    start, stop, _ = slice(given.get("start"), given.get("end")).indices(shape[axis])
    count = max(0, -(-(stop - start) // step))
    return None if count in (0, shape[axis]) else (Run(axis, count, step, False), start)


def move_of(
    overload: Any, given: dict[str, Any], shapes: Sequence[tuple[int, ...]], result: Any
) -> tuple[Move, int] | None:
    """The op with these arguments as a function of a dynamic position, and that position; None where it has none.

    given: the schema's arguments by name. shapes: of the tensor operands. result: shape and dtype of the result.
    """
    if overload in _ARANGES:
        start, step = given["start"], given.get("step", 1)
        if type(start) is not int or type(step) is not int or not jnp.issubdtype(result.dtype, jnp.integer):
            return None
        return Arange(result.shape[0], result.dtype, step), start
    if overload in _INTEGERS:
        low, high = given.get("from", 0), given["to"]
        if high is None or high - low >= WIDE:
            return None
        return Integers(result.shape, result.dtype, low), high
    if overload not in _SELECTS | _SLICES:
        return None
    is_gradient = overload in (aten.select_backward.default, aten.slice_backward.default)
    shape = tuple(given["input_sizes"]) if is_gradient else shapes[0]
    found = run_of(overload, shape, given)
    if found is None:
        return None
    run, start = found
    return Gradient(run, shape) if is_gradient else TakeRun(run) if overload in DYNAMIC_START_VIEWS else Write(
        run
    ), start


DYNAMIC_START_VIEWS = frozenset({aten.select.int, aten.slice.Tensor})
_INTEGERS = frozenset({getattr(aten.random, "from"), aten.random.to})
_ARANGES = frozenset({aten.arange.start, aten.arange.start_step})
_SELECTS = frozenset({aten.select.int, aten.select_backward.default, aten.select_scatter.default})
_SLICES = frozenset({aten.slice.Tensor, aten.slice_backward.default, aten.slice_scatter.default})
