"""The computation of a layer of experts for each choice, as data: steps on rows, one row for each
choice of a token.

A row has the values of its token, its own values (a router's weight), those of its expert; sorting
and moving rows are no steps, so that any device may compute any rows. Results are the sum over a
token's choices, a value for each choice, and sums over the rows of each expert: the gradients of
its weights.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..core import dense_meta
from ..core.extend import OpSpec, grouped

# A shape with ROWS in the place of the dim of rows.
ROWS = -1
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RowStep:
    """A value of each row.

    kind: "token", "choice" and "expert" take the row's value of an operand of the op, whose place
    is in `sources`; "shared" takes an operand as it is; "base" is one that a sum over a token's
    choices is added to; "ids" is the row's expert; "op" is an op on earlier values; "reshape" and
    "expand" give a value another shape; "product" is the product with the matrix of the row's
    expert: sources are the value and the place of the operand. shape: with ROWS.
    """

    kind: str
    sources: tuple[int, ...]
    shape: Shape
    dtype: torch.dtype
    op: OpSpec | None = None
    is_transposed: bool = False
    precision: str | None = None

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return (
            int(np.prod([size for size in self.shape if size != ROWS], dtype=np.int64))
            * self.dtype.itemsize
        )


@dataclass(frozen=True, slots=True)
class RowResult:
    """A result of the op: the steps that it is made of, by kind.

    "token": the sum over each token's choices, added to a second step where there is one. "choice":
    a value for each. "expert": the sum over an expert's rows, of the outer products of two values
    where there are two. shape, dtype: of the result.
    """

    kind: str
    sources: tuple[int, ...]
    shape: Shape
    dtype: torch.dtype


class ExchangedSteps(NamedTuple):
    """The division of a body's steps where rows go to their experts' devices and come back.

    sent: entries that are read there. returned: values that come back. away: the steps computed
    there.
    """

    sent: tuple[int, ...]
    returned: tuple[int, ...]
    away: frozenset[int]


@dataclass(frozen=True)
class RowBody:
    """The steps in order, and the results."""

    steps: tuple[RowStep, ...]
    exits: tuple[RowResult, ...]

    @property
    def encoded(self) -> str:
        return repr([(step, step.op and step.op.encoded) for step in self.steps] + list(self.exits))

    @cached_property
    def readers(self) -> list[set[int]]:
        """The steps that read each step."""
        readers: list[set[int]] = [set() for _ in self.steps]
        for index, step in enumerate(self.steps):
            for source in self.values_of(step):
                readers[source].add(index)
        return readers

    @staticmethod
    def values_of(step: RowStep) -> tuple[int, ...]:
        """The earlier steps that a step reads."""
        if step.kind in ("op", "reshape", "expand"):
            return step.sources
        return step.sources[:1] if step.kind == "product" else ()

    def uncast(self, index: int) -> int:
        """The step that a value is a cast of."""
        while _is(self.steps[index], "aten._to_copy"):
            index = self.steps[index].sources[0]
        return index

    def scaled(self, index: int, product: int, gradient: int) -> int | None:
        """Of a product of the gradient, times a number for each row, with the transposed weight of
        another product: the step that multiplies it. None for another step."""
        step, product_step = self.steps[index], self.steps[product]
        if (
            step.kind != "product"
            or product_step.kind != "product"
            or step.sources[1] != product_step.sources[1]
        ):
            return None
        times = self.uncast(step.sources[0])
        factors = self.steps[times].sources
        is_row = [self.steps[source].shape == (ROWS, 1) for source in factors if source != gradient]
        is_scaled = _is(self.steps[times], "aten.mul") and gradient in factors and is_row == [True]
        return times if is_scaled and step.is_transposed != product_step.is_transposed else None

    def renumbered(self, step: RowStep, number_of: Mapping[int, int]) -> RowStep:
        """A step of a body in which steps have other numbers."""
        read = self.values_of(step)
        sources = (*(number_of.get(source, -1) for source in read), *step.sources[len(read) :])
        return dataclasses.replace(step, sources=sources)

    @cached_property
    def of_experts(self) -> frozenset[int]:
        """The steps that depend on weights of experts."""
        dependent: set[int] = set()
        for index, step in enumerate(self.steps):
            if step.kind in ("product", "expert") or not dependent.isdisjoint(self.values_of(step)):
                dependent.add(index)
        return frozenset(dependent)

    @cached_property
    def before_experts(self) -> frozenset[int]:
        """The steps that a product with weights of experts, or a sum over an expert's rows,
        reads."""
        sources = [source for end in self.exits if end.kind == "expert" for source in end.sources]
        sources += [step.sources[0] for step in self.steps if step.kind == "product"]
        return self.upstream(sources)

    def upstream(self, targets: Iterable[int], boundary: Iterable[int] = ()) -> frozenset[int]:
        """The steps that these need, up to the boundary."""
        needed, stack, ends = set[int](), list(targets), frozenset(boundary)
        while stack:
            index = stack.pop()
            if index not in needed and index not in ends:
                needed.add(index)
                stack.extend(self.values_of(self.steps[index]))
        return frozenset(needed)

    @cached_property
    def exchanged(self) -> ExchangedSteps:
        """The steps where rows travel: what returns are the results, or values of fewer bytes that
        they are made of."""
        returned: dict[int, None] = {}
        for end in self.exits:
            if end.kind == "expert":
                continue
            source = end.sources[0]
            returned |= dict.fromkeys(self._cut(source))
        sums = [source for end in self.exits if end.kind == "expert" for source in end.sources]
        away = self.upstream([*returned, *sums])
        sent = tuple(
            index for index in sorted(away) if self.steps[index].kind in ("token", "choice")
        )
        return ExchangedSteps(sent, tuple(returned), away)

    def _cut(self, source: int) -> list[int]:
        """The values that come back for a result: itself, or those after the last weights, if they
        have fewer bytes."""
        if source not in self.of_experts:
            return []
        cut, stack, visited = list[int](), [source], set[int]()
        while stack:
            index = stack.pop()
            if index in visited or index not in self.of_experts:
                continue
            visited.add(index)
            step = self.steps[index]
            if step.kind in ("product", "expert") or index in self.before_experts:
                cut.append(index)
            else:
                stack.extend(self.values_of(step))
        return (
            cut
            if sum(self.steps[index].width for index in cut) < self.steps[source].width
            else [source]
        )

    def run(
        self,
        targets: Iterable[int],
        known_values: Mapping[int, jax.Array],
        num_rows: int,
        group: "SortedRows",
    ) -> dict[int, jax.Array]:
        """The values of steps, from known ones, of so many rows. group: operands of the rows'
        experts."""
        values = dict(known_values)
        for index in sorted(self.upstream(targets, values)):
            values[index] = self._value(index, values, num_rows, group)
        return values

    def _value(
        self, index: int, values: Mapping[int, jax.Array], num_rows: int, group: "SortedRows"
    ) -> jax.Array:
        step = self.steps[index]
        shape = of_rows(step.shape, num_rows)
        if step.kind == "shared":
            return group.shared[step.sources[0]]
        if step.kind == "ids":
            return group.numbered.astype(dense_meta((), step.dtype).struct.dtype)
        if step.kind == "expert":
            return group.rows_of(step.sources[0])
        if step.kind == "reshape":
            return values[step.sources[0]].reshape(shape)
        if step.kind == "expand":
            return jnp.broadcast_to(values[step.sources[0]], shape)
        if step.kind == "product":
            return group.product(values[step.sources[0]], step)
        assert step.op is not None, f"a step of kind {step.kind!r} has no value"
        return self._called(index, [values[source] for source in step.sources], num_rows, group)

    def _called(
        self, index: int, operands: Sequence[jax.Array], num_rows: int, group: "SortedRows"
    ) -> jax.Array:
        """The result of an op whose operands and result have so many rows."""
        step = self.steps[index]
        op = step.op
        assert op is not None, f"a step of kind {step.kind!r} has no value"
        lowering, shape = op.lowering, of_rows(step.shape, num_rows)
        if "input_sizes" in dict(getattr(lowering, "arguments", ())):
            new_arguments = {"input_sizes": list(shape)}
            arguments = tuple((name, new_arguments.get(name, x)) for name, x in lowering.arguments)  # type: ignore[attr-defined]
            lowering = dataclasses.replace(lowering, arguments=arguments)  # type: ignore[call-arg]  # a `Call`
        read = [self.steps[source] for source in step.sources]
        metas = tuple(
            dense_meta(of_rows(source_step.shape, num_rows), source_step.dtype)
            for source_step in read
        )
        result = dense_meta(shape, step.dtype)
        call = OpSpec.of(
            op.name, lowering, (result,), metas, numbers=op.numbers, constant=op.constant
        )
        with jax.default_matmul_precision(step.precision):
            return lowering.lower(
                call, operands, group.numbers.get(index, ()), [None] * len(operands)
            )[0]


def reassociated(body: RowBody) -> RowBody:
    """The body with the gradient of a router's weight, the sum of g * (h @ w), as that of h * (g @
    w^T).

    The second product is one of backward, of g times that weight; here it is taken before it is
    multiplied. So an expert's result, the first product, is not computed again.
    """
    for end in body.exits:
        source = end.sources[0]
        while end.kind == "choice" and body.steps[source].kind == "reshape":
            source = body.steps[source].sources[0]
        step = body.steps[source]
        if end.kind == "choice" and step.op is not None and step.op.name == "aten.sum.dim_IntList":
            body = _with_one_product(body, step.sources[0])
    return body


def _with_one_product(body: RowBody, times: int) -> RowBody:
    """The same for one product of elements, g * (h @ w); the body as it is where that is no such
    product."""
    steps = body.steps
    for result, gradient in (
        (steps[times].sources, steps[times].sources[::-1]) if _is(steps[times], "aten.mul") else ()
    ):
        product = body.uncast(result)
        scaled = [
            (index, of)
            for index in range(len(steps))
            if (of := body.scaled(index, product, gradient)) is not None
        ]
        if steps[product].kind != "product" or len(body.readers[product]) > 1 or not scaled:
            continue
        (second, weighing), (hidden, matrix) = scaled[0], steps[product].sources
        casts = [
            index for index in (steps[second].sources[0],) if _is(steps[index], "aten._to_copy")
        ]
        new, number_of = list[RowStep](), dict[int, int]()
        first = -1
        for index, step in enumerate(steps):
            if index == second:
                sources = [
                    first if source == gradient else number_of[source]
                    for source in steps[weighing].sources
                ]
                step = dataclasses.replace(
                    step, kind="op", op=steps[weighing].op, sources=tuple(sources)
                )
            elif index == times:
                shape = steps[second].shape
                step = dataclasses.replace(step, sources=(number_of[hidden], first), shape=shape)
            else:
                step = body.renumbered(step, number_of)
            if index != product or len(body.readers[result]) > 1:
                number_of[index] = len(new)
                new.append(step)
            if index == gradient:
                first = number_of[index]
                for cast in casts:
                    new.append(dataclasses.replace(steps[cast], sources=(first,)))
                    first = len(new) - 1
                new.append(dataclasses.replace(steps[second], sources=(first, matrix)))
                first = len(new) - 1
        ends = [
            dataclasses.replace(end, sources=tuple(map(number_of.__getitem__, end.sources)))
            for end in body.exits
        ]
        return RowBody(tuple(new), tuple(ends))
    return body


def _is(step: RowStep, name: str) -> bool:
    return step.op is not None and step.op.name.startswith(name) and not step.op.numbers


def of_rows(shape: Shape, num_rows: int) -> Shape:
    return tuple(num_rows if size == ROWS else size for size in shape)


@dataclass(frozen=True)
class SortedRows:
    """Operands of rows that are sorted by expert.

    ids: of each row, the number of experts for a row of none, which are the last. numbered: the
    same among those of all devices. sizes: the rows of each expert.
    stacks [experts, ...] and shared operands: by their places. numbers: scalar arguments by the
    index of a step. computed: the rows that products compute if the router is balanced.
    """

    ids: jax.Array
    numbered: jax.Array
    sizes: jax.Array
    stacks: Mapping[int, jax.Array]
    shared: Mapping[int, jax.Array]
    numbers: Mapping[int, Sequence[jax.Array]]
    computed: int

    def rows_of(self, stack_index: int) -> jax.Array:
        """The value of each row's expert."""
        stack = self.stacks[stack_index]
        return stack[jnp.minimum(self.ids, len(stack) - 1)]

    def product(self, x: jax.Array, step: RowStep) -> jax.Array:
        """The product of each row with its expert's matrix."""
        stack, dtype = self.stacks[step.sources[1]], dense_meta((), step.dtype).struct.dtype
        with jax.default_matmul_precision(step.precision):
            result = grouped.of_rows(
                x.reshape(len(x), -1),
                stack,
                self.sizes,
                dtype,
                is_transposed=step.is_transposed,
                computed=self.computed,
            )
        return result.reshape(of_rows(step.shape, len(x)))

    def added(self, so_far: jax.Array | None, values: Sequence[jax.Array], dtype: Any) -> jax.Array:
        """The sums of each expert's rows, of outer products where there are two values, added to
        those so far."""
        if len(values) == 1:
            (x,) = values
            zeros = jnp.zeros((len(self.sizes), *x.shape[1:]), dtype)
            return (
                (zeros if so_far is None else so_far).at[self.ids].add(x.astype(dtype), mode="drop")
            )
        lhs, rhs = (x.reshape(len(x), -1) for x in values)
        with jax.default_matmul_precision(None if lhs.dtype.itemsize < 4 else "highest"):
            return grouped.of_groups(lhs.T, rhs, self.sizes, dtype, so_far, computed=self.computed)
