"""Rules of padded dims: how an op on operands with padding gives the same unpadded result.

A padded dim has a capacity, which is static, and a length, which is a scalar argument: the elements
before the length are the value, and those after it may be anything, NaN too. The rules (`shapes`,
`sums`, `padded_windows`) state for each op the dims of its result that are padded then, and the
steps that its operands need: usually none, or a fill after the length (zeros for a sum).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from torch._ops import OpOverload

from ...core import Meta, dense_meta
from ...core.extend import floats

Pads = dict[int, int]  # by dim, its capacity
# by dim, what it is: in operands and results the same dim has the same word
Words = Sequence[int | str]

LOW, HIGH = "low", "high"  # below and above every number


class FullBuffer(int):
    """The capacity of a slice for which the full buffer is taken: it may be many times the
    length."""


class Joined(int):
    """The capacity of a dim into which a reshape has joined a padded dim and those before it.

    period: the elements with padding of their own, the last ones of each `period`: the capacity of
    the padded dim.
    """

    period: int

    def __new__(cls, size: int, period: int) -> "Joined":
        result = super().__new__(cls, size)
        result.period = period
        return result


def key_of(pads: Pads) -> tuple[Any, ...]:
    """Returns padded dims as a hashable key."""
    return tuple(
        (dim, int(size), type(size), getattr(size, "period", 0)) for dim, size in pads.items()
    )


class NoRule(Exception):
    """An op has no rule for this padding; the message continues a sentence that begins with the
    op's name."""


class Unpadded(NoRule):
    """An op has an operand without padding in a dim where others have this capacity."""

    def __init__(self, operand: int, dim: int, size: int) -> None:
        super().__init__("meets a value of the same length that has no padding")
        self.operand, self.dim, self.size = operand, dim, size


@dataclass(frozen=True, slots=True)
class FillAfter:
    """Fills an operand after the length of a dim, or of each `period` elements of it."""

    operand: int
    dim: int
    value: float | str
    period: int | None = None

    def __call__(self, operands: list[jax.Array], length: jax.Array) -> list[jax.Array]:
        operands[self.operand] = filled(
            operands[self.operand], self.dim, length, self.value, self.period
        )
        return operands


def filled(
    array: jax.Array, dim: int, length: jax.Array, value: float | str, period: int | None = None
) -> jax.Array:
    """The array with this value after the length of a dim, or of each `period` elements of it."""
    counts = _counts(array.ndim, array.shape[dim], dim, length, period)
    return jnp.where(counts, array, _number(value, array.dtype))


def _counts(
    rank: int, size: int, dim: int, length: jax.Array, period: int | None = None
) -> jax.Array:
    """A mask of the places of a dim before the length, which broadcasts over the other dims."""
    places = jnp.arange(size) if period is None else jnp.arange(size) % period
    return (places < length).reshape([size if axis == dim else 1 for axis in range(rank)])


def _number(value: float | str, dtype: Any) -> jax.Array:
    if value not in (LOW, HIGH):
        return jnp.asarray(value, dtype)
    if dtype == jnp.bool_:
        return jnp.asarray(value == HIGH)
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.asarray(jnp.iinfo(dtype).min if value == LOW else jnp.iinfo(dtype).max, dtype)
    return jnp.asarray(-jnp.inf if value == LOW else jnp.inf, dtype)


@dataclass(frozen=True, slots=True)
class FromBehind:
    """Makes negative indices into a dim count from its length."""

    operand: int

    def __call__(self, operands: list[jax.Array], length: jax.Array) -> list[jax.Array]:
        index = operands[self.operand]
        operands[self.operand] = jnp.where(index < 0, index + length.astype(index.dtype), index)
        return operands


@dataclass(frozen=True, slots=True)
class MaskKeys:
    """Masks attention's keys after the length: by a bias, an operand after the others where there
    is none, and by values that are zero there, as a weight of 0 does not hide a NaN (value: None
    where they are zero already)."""

    key: int
    bias: int | None
    value: int | None

    def __call__(self, operands: list[jax.Array], length: jax.Array) -> list[jax.Array]:
        key, rows = operands[self.key], operands[self.key].ndim - 2
        counts = _counts(key.ndim, key.shape[rows], rows + 1, length)
        if self.value is not None:
            operands[self.value] = filled(operands[self.value], rows, length, 0)
        if self.bias is None:
            return [*operands, counts]
        bias = operands[self.bias]
        if bias.dtype == jnp.bool_:
            operands[self.bias] = bias & counts
            return operands
        operands[self.bias] = jnp.where(counts, bias, jnp.asarray(-jnp.inf, bias.dtype))
        if self.value is not None:
            operands[self.key] = filled(key, rows, length, 0)
        return operands


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean over dims, one of which is padded: `num_unpadded` elements for each of its
    length."""

    dims: tuple[int, ...]
    keepdim: bool
    num_unpadded: int
    dtype: Any

    def __call__(self, operands: list[jax.Array], length: jax.Array) -> jax.Array:
        array = operands[0].astype(self.dtype)
        total = jnp.sum(
            array.astype(floats.wide(self.dtype)), axis=self.dims, keepdims=self.keepdim
        )
        return (total / (length * self.num_unpadded).astype(total.dtype)).astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Append:
    """The first operand with the others after its length in a dim, each at its start, over the
    padding of those before it."""

    dim: int
    capacity: int

    def __call__(self, operands: list[jax.Array], *starts: jax.Array) -> jax.Array:
        first, *parts = operands
        room = [
            (0, self.capacity - first.shape[dim] if dim == self.dim else 0)
            for dim in range(first.ndim)
        ]
        result = jnp.pad(first, room)
        for part, start in zip(parts, starts, strict=True):
            result = jax.lax.dynamic_update_slice_in_dim(result, part, start, self.dim)
        return result


@dataclass(frozen=True, slots=True)
class Rows:
    """The elements of a dim from a start on, as many as the capacity."""

    dim: int
    capacity: int

    def __call__(self, operands: list[jax.Array], start: jax.Array) -> jax.Array:
        return jnp.take(operands[0], start + jnp.arange(self.capacity), self.dim, mode="clip")


# The steps before the op take one scalar argument each, an integer; the replacement of the op its
# own, and those of the op.
Before = Callable[[list[jax.Array], jax.Array], list[jax.Array]]
Instead = Callable[..., jax.Array]


@dataclass(slots=True)
class Case:
    """An op, its operands and its results, as a rule reads them, and the fields that the rule sets.

    overload; arguments: by name, tensors as the index of their operand. shapes, kinds, pads: of the
    operands, without padding, their dtypes, and their padded dims. results: the shapes of the
    results without padding; dtypes: theirs. result_pads: the padded dims of the results. prologue,
    numbers: the steps on the operands before the op, each with a scalar argument. instead: the
    replacement of the op, with the last of the numbers.
    """

    overload: OpOverload
    arguments: dict[str, Any]
    shapes: Sequence[tuple[int, ...]]
    kinds: Sequence[Any]
    pads: list[Pads]
    results: Sequence[tuple[int, ...]]
    dtypes: Sequence[Any]
    result_pads: list[Pads]
    prologue: list[Before] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    instead: Instead | None = None

    def operand(self, name: str) -> int | None:
        """The index of the operand that an argument is."""
        value = self.arguments.get(name)
        return None if value is None else int(value)

    def length(self, operand: int, dim: int) -> int:
        """The length of a dim without its padding.

        Raises NoRule for a joined dim, whose padding is not at its end.
        """
        if type(self.pads[operand].get(dim)) is Joined:
            raise NoRule("has no rule for a padded dim that a reshape has joined to others")
        return self.shapes[operand][dim]

    def level(
        self,
        places: Sequence[tuple[int, int]],
        *results: tuple[int, int],
        fill: float | None = None,
        repeats: bool = False,
    ) -> int | None:
        """The capacity of a dim that several operands share, given as (operand, dim): the least, to
        which the others are cut; None where they are not padded. Dims of size 1 broadcast, to a
        length of 1 only with repeats. results: the same dim, as (result, dim). fill: what the
        operands are filled with after the length."""
        padded = [(operand, dim) for operand, dim in places if dim in self.pads[operand]]
        if not padded:
            return None
        (first, first_dim), *_ = padded
        for operand, dim in places:
            length, is_padded = self.shapes[operand][dim], dim in self.pads[operand]
            if length != self.shapes[first][first_dim] and (is_padded or length != 1):
                raise NoRule("repeats a padded dim of one element")
            if not is_padded and not (
                length == 1 and (repeats or length != self.shapes[first][first_dim])
            ):
                raise Unpadded(operand, dim, self.pads[first][first_dim])
        sizes = {
            key_of({0: self.pads[operand][dim]}): self.pads[operand][dim] for operand, dim in padded
        }
        if len(sizes) > 1 and any(type(size) is Joined for size in sizes.values()):
            raise NoRule("meets a value with other padding")
        least = min(sizes.values(), key=int)
        for operand, dim in padded:
            self.pads[operand][dim] = least
        for result, dim in results:
            self.result_pads[result][dim] = least
        if fill is not None:
            for operand, dim in padded:
                self.fill(operand, dim, fill)
        return least

    def share(
        self,
        operands: Mapping[int, Words],
        results: Sequence[Words] = (),
        fill: float | None = None,
        repeats: bool = False,
    ) -> None:
        """Levels the dims of operands that have a word in common, and pads those of results with
        that word.

        fill: what the operands are filled with after the length of a dim that a result lacks.
        """
        for word in dict.fromkeys(itertools.chain.from_iterable(operands.values())):
            places = [
                (operand, dims.index(word)) for operand, dims in operands.items() if word in dims
            ]
            result_dims = [
                (result, dims.index(word)) for result, dims in enumerate(results) if word in dims
            ]
            self.level(
                places,
                *result_dims,
                fill=None if len(result_dims) == len(results) else fill,
                repeats=repeats,
            )

    def fill(self, operand: int, dim: int, value: float | str) -> None:
        """Fills an operand after a dim's length before the op, where the dim is padded."""
        size, length = self.pads[operand].get(dim), self.shapes[operand][dim]
        if type(size) is Joined:
            self.first(FillAfter(operand, dim, value, size.period), length // (size // size.period))
        elif size is not None:
            self.first(FillAfter(operand, dim, value), length)

    def first(self, step: Before, number: int) -> None:
        """Adds a step before the op."""
        self.prologue.append(step)
        self.numbers.append(number)

    def do(self, instead: Instead, *numbers: int) -> None:
        """Replaces the op."""
        self.instead = instead
        self.numbers += numbers


Rule = Callable[[Case], None]
RULES: dict[OpOverload, Rule] = {}
# The overloads whose rules also hold for joined dims: an element's place in a dim is used for its
# padding alone.
JOINED: set[OpOverload] = set()


def padded(*overloads: OpOverload, joined: bool = False) -> Callable[[Rule], Rule]:
    """Registers the rule of one or more overloads; joined: the rule holds for joined dims, too."""

    def register(rule: Rule) -> Rule:
        JOINED.update(overloads if joined else ())
        for overload in overloads:
            if overload in RULES:
                raise ValueError(f"{overload} has two rules of padding")
            RULES[overload] = rule
        return rule

    return register


def physical(shape: Sequence[int], pads: Pads) -> tuple[int, ...]:
    """The shape with its padding."""
    return tuple(int(pads.get(dim, size)) for dim, size in enumerate(shape))


def padded_meta(meta: Meta, pads: Pads) -> Meta:
    """Returns the Meta whose dims in `pads` are as long as their capacity."""
    return dense_meta(physical(meta.shape, pads), meta.dtype) if pads else meta
