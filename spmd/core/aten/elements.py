"""Lowering of a list op: its element's op for every element, once for all those that are rows of one array."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import torch

from ..graph.meta import Meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec, Part
from ..lower.stack_rows import Made, StackRow, StackRows, fetched, plain, rows
from ..ops.floats import cast
from ..sharding.buckets import EvenCut, cut_of, sums_of_squares
from ..sharding.constrain import near


class _ElementGroup(NamedTuple):
    """Elements (by index) that are the same op on neighbouring rows, or a single element."""

    elements: list[int]
    part: Part
    metas: tuple[Meta, ...]


@dataclass(frozen=True, slots=True)
class Each(Lowering):
    """The lowering of a list op: the element's op for every element."""

    parts: tuple[Part, ...]

    @property
    def elements(self) -> tuple[Part, ...]:
        return self.parts

    def lower(self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[Any, ...]:
        result: list[Any] = [None] * len(op.metas)
        for group in self._groups(op, operands):
            self._lower_group(group, operands, numbers, layouts, result)
        return tuple(result)

    def _lower_group(
        self, group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts, made: list[Any]
    ) -> None:
        """Sets the results of a group's elements among those of all."""
        if len(group.elements) == 1:
            for place, array in zip(group.part.results, _one(group, operands, numbers, layouts), strict=True):
                made[place] = array
            return
        stacks = _together(self.parts, group, operands, numbers, layouts)
        for row, i in enumerate(group.elements):
            for place, stack in zip(self.parts[i].results, stacks, strict=True):
                made[place] = StackRow(stack, row)

    def _groups(self, op: OpSpec, operands: Sequence[Made]) -> Iterator[_ElementGroup]:
        """The groups of elements: those of the same op on the same stacks together, row by row."""
        by_op: dict[Any, list[int]] = {}
        for i, part in enumerate(self.parts):
            metas = tuple([op.metas[place] for place in part.results])
            taken = [operands[place] for place in part.operands]
            stacks = tuple([id(one.stack if isinstance(one, StackRow) else one) for one in taken])
            by_op.setdefault((part.op, metas, stacks, len(part.numbers)), []).append(i)
        for (_, metas, _, _), members in by_op.items():
            at = {i: _rows_read(self.parts[i], operands) for i in members}
            members.sort(key=lambda i: at[i])
            start = 0
            for end in range(1, len(members) + 1):
                if end < len(members) and at[members[end]] and _is_next(at[members[end - 1]], at[members[end]]):
                    continue
                yield _ElementGroup(members[start:end], self.parts[members[start]], metas)
                start = end


def _rows_read(part: Part, operands: Sequence[Made]) -> list[int]:
    return [one.index for place in part.operands if isinstance(one := operands[place], StackRow)]


def _is_next(some: list[int], others: list[int]) -> bool:
    return all(b == a + 1 for a, b in zip(some, others, strict=True))


def _one(group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
    part = group.part
    result = part.op.lower(
        [plain(operands[place]) for place in part.operands],
        [numbers[place] for place in part.numbers],
        [layouts[place] for place in part.operands],
    )
    return _cast(result, group)


def _cast(arrays: Arrays, group: _ElementGroup) -> tuple[jax.Array, ...]:
    return tuple([cast(array, meta.struct.dtype) for array, meta in zip(arrays, group.metas, strict=True)])


def _together(
    parts: Sequence[Part], group: _ElementGroup, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
) -> tuple[jax.Array, ...]:
    """The results of all elements of a group: one stack for each result of the element's op."""
    count, part = len(group.elements), group.part
    arrays = [_taken(operands[place], count) for place in part.operands]
    axes = [0 if isinstance(operands[place], StackRow) else None for place in part.operands]
    scalar_args = [_numbers(numbers, [parts[i].numbers[k] for i in group.elements]) for k in range(len(part.numbers))]
    known = [layouts[place] for place in part.operands]

    def element(arrays: list[jax.Array], scalar_args: list[jax.Array]) -> tuple[jax.Array, ...]:
        return _cast(part.op.lower(arrays, scalar_args, known), group)

    return jax.vmap(element, (axes, [number.ndim - 1 if number.ndim else None for number in scalar_args]))(
        arrays, scalar_args
    )


def _taken(one: Made, count: int) -> jax.Array:
    """The operand of a group of `count` elements: as many rows from this one on, or the array that they share."""
    return rows(StackRows(one.stack, one.index, 1), count) if isinstance(one, StackRow) and count > 1 else plain(one)


def _numbers(numbers: Arrays, places: list[int]) -> jax.Array:
    """The scalar arguments at these places as one array, or the only one where the places are one."""
    return numbers[places[0]] if len(set(places)) == 1 else jnp.stack([numbers[place] for place in places])


@dataclass(frozen=True, slots=True)
class Norms(Each):
    """The lowering of the 2-norms of many tensors: those that the mesh cuts in the same way share one all-reduce."""

    any_memory: ClassVar[bool] = True

    def lower(self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts) -> tuple[Any, ...]:
        result: list[Any] = [None] * len(self.parts)
        shared: dict[object, list[tuple[_ElementGroup, EvenCut]]] = {}
        for group in self._groups(op, operands):
            places = [self.parts[i].operands[0] for i in group.elements]
            meta = op.operands[places[0]]
            shardings = [layouts[place] for place in places]
            cuts = {cut_of(meta.shape, None if sharding is None else near(sharding)) for sharding in shardings}
            cut = cuts.pop() if len(cuts) == 1 else None
            if cut is not None and meta.dtype in (torch.float32, torch.float64):
                shared.setdefault((cut.rows, meta.dtype), []).append((group, cut))
            else:
                self._lower_group(group, fetched(operands, places, layouts), numbers, layouts, result)
        for members in shared.values():
            arrays = [_taken(operands[group.part.operands[0]], len(group.elements)) for group, _ in members]
            squares = sums_of_squares(arrays, [cut for _, cut in members])
            norms = jnp.sqrt(squares)
            for place, i in enumerate(itertools.chain.from_iterable(group.elements for group, _ in members)):
                result[i] = StackRow(norms, place)
        return tuple(result)
