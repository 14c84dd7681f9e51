"""The op that calls a region once: a function that was recorded once and is called often."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ..graph.graph import Region
from ..graph.meta import Meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec
from .lower import lower_region
from .region import draws_in, kinds_of, mesh_in


@dataclass(frozen=True, slots=True)
class Called(Lowering):
    """A region in place of its ops; a pass puts them back before a program is compiled."""

    body: Region

    @property
    def regions(self) -> tuple[Region, ...]:
        return (self.body,)

    def draws(self, op: OpSpec) -> Sequence[tuple[int, int]]:
        return draws_in(self.body.nodes)

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        floats, integers = numbers
        return tuple(lower_region(self.body, 0, operands, (floats, integers), layouts))


def called_op(name: str, body: Region, operands: Sequence[Meta]) -> OpSpec:
    """Returns the op that calls a region."""
    lowering = Called(body)
    return OpSpec.of(
        name, lowering, tuple(root.meta for root in body.roots), tuple(operands), numbers=kinds_of(body.nodes),
        sharding=mesh_in(lowering.regions),
    )  # fmt: skip
