"""Ops with a body, a `Region`: a loop with a condition, branches, a call of a function that was
recorded once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..graph.graph import Node, Region, Value, walk
from ..graph.meta import Meta, dense_meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec, draws_of
from ..sharding.value import Sharding
from .lower import Vectors, lower_region

Step = TypeVar("Step")  # of a scalar argument, from iteration to iteration


@dataclass(frozen=True, slots=True)
class While(Lowering):
    """A loop that runs as long as a condition holds.

    Both regions take the constants and the carry; the condition returns one bool, the body the next
    carry. steps: as in `Loop`, without EACH, for the condition's scalar arguments and then the
    body's.
    """

    condition: Region
    body: Region
    num_constants: int
    steps: tuple[int, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.condition, self.body)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        constants, carry = operands[: self.num_constants], operands[self.num_constants :]
        steps = split_steps([*self.condition.nodes, *self.body.nodes], self.steps)
        initial = strong([jnp.zeros((), np.int64), *carry])

        def run(index: int, number: jax.Array, carry: Arrays) -> list[jax.Array]:
            """Returns the results of a region in the iteration with this number."""
            vectors = [
                vector + np.array(step, vector.dtype) * number.astype(vector.dtype)
                if any(step)
                else vector
                for vector, step in zip(numbers, steps, strict=True)
            ]
            region_numbers = numbers_by_region(vectors, self.regions)[index]
            return lower_region(
                self.regions[index], index, [*constants, *carry], region_numbers, layouts
            )

        def condition(state: Arrays) -> jax.Array:
            (result,) = run(0, state[0], state[1:])
            return result.reshape(())

        def iteration(state: Arrays) -> list[jax.Array]:
            return strong([state[0] + 1, *run(1, state[0], state[1:])])

        return tuple(jax.lax.while_loop(condition, iteration, initial)[1:])


@draws_of.register
def _draws(lowering: While, op: OpSpec) -> Sequence[tuple[int, int]]:
    return ()  # the keys belong to this loop alone


@dataclass(frozen=True, slots=True)
class Branches(Lowering):
    """One of two regions, chosen by the first operand; both take the others and return results of
    the same kinds."""

    if_true: Region
    if_false: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.if_true, self.if_false)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        region_numbers = numbers_by_region(numbers, self.regions)

        def branch(index: int) -> Callable[..., list[jax.Array]]:
            return lambda *arrays: strong(
                lower_region(self.regions[index], index, arrays, region_numbers[index], layouts[1:])
            )

        return tuple(jax.lax.cond(operands[0].reshape(()), branch(0), branch(1), *operands[1:]))


def region_op(
    name: str, lowering: While | Branches, operands: Sequence[Meta], roots: Sequence[Value]
) -> OpSpec:
    """Returns the op of a loop or of branches with results like these."""
    nodes = [node for region in lowering.regions for node in region.nodes]
    metas = tuple(dense_meta(root.meta.shape, root.meta.dtype) for root in roots)
    return OpSpec.of(
        name,
        lowering,
        metas,
        tuple(operands),
        numbers=kinds_of(nodes),
        sharding=mesh_in(lowering.regions),
    )


# --- what several kinds share ---------------------------------------------------------------------


def mesh_in(regions: Sequence[Region]) -> Sharding | None:
    """Returns the first mesh that a body's annotations name, replicated over it: the sharding of an
    op with a body."""
    for region in regions:
        for node in walk(region.nodes):
            if node.op.sharding is not None:
                return node.op.sharding.replicated()
    return None


_ANNOTATIONS = frozenset({"mark_sharding", "spmd.unmarked", "spmd.gather", "spmd.renew"})


def is_annotation(node: Node) -> bool:
    """True if an op does nothing but state the shardings of its operands."""
    return node.op.name in _ANNOTATIONS


def split_steps(nodes: Sequence[Node], steps: Sequence[Step]) -> tuple[list[Step], list[Step]]:
    """Returns the steps of the floats and those of the integers."""
    by_kind: dict[str, list[Step]] = {"f": [], "i": []}
    for kind, step in zip(kinds_of(nodes), steps, strict=True):
        by_kind[kind].append(step)
    return by_kind["f"], by_kind["i"]


def kinds_of(nodes: Sequence[Node]) -> str:
    return "".join(node.op.numbers for node in nodes)


def body_numbers(region: Region) -> list[float | int]:
    """Returns the scalar arguments with which a region was recorded, in the order of its nodes."""
    return [number for node in region.nodes for number in node.numbers]


def numbers_by_region(numbers: Sequence[jax.Array], regions: Sequence[Region]) -> list[Vectors]:
    """Divides the scalar arguments of an op, floats and integers, among its regions in order."""
    vectors, float_start, integer_start = [], 0, 0
    for region in regions:
        kinds = kinds_of(region.nodes)
        stops = float_start + kinds.count("f"), integer_start + kinds.count("i")
        vectors.append((numbers[0][float_start : stops[0]], numbers[1][integer_start : stops[1]]))
        float_start, integer_start = stops
    return vectors


def strong(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Returns the arrays with strong types: jax may change the weak type of a Python number, which
    a loop does not allow."""
    return [jax.lax.convert_element_type(array, array.dtype) for array in arrays]


@dataclass(frozen=True, slots=True)
class Called(Lowering):
    """A region in place of its ops; a pass puts them back before a program is compiled."""

    body: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        floats, integers = numbers
        return tuple(lower_region(self.body, 0, operands, (floats, integers), layouts))


def called_op(name: str, body: Region, operands: Sequence[Meta]) -> OpSpec:
    """Returns the op that calls a region."""
    lowering = Called(body)
    return OpSpec.of(
        name,
        lowering,
        tuple(root.meta for root in body.roots),
        tuple(operands),
        numbers=kinds_of(body.nodes),
        sharding=mesh_in(lowering.regions),
    )
