"""The scalar arguments of a program: packed into two vectors outside, unpacked inside."""

from collections.abc import Callable, Sequence

import jax

from ..ir.graph import Node
from ..ir.op import OpSpec


def pack_numbers(nodes: Sequence[Node]) -> tuple[list[float], list[int]]:
    """Returns the scalar arguments of the nodes, in the order in which the program unpacks them."""
    floats: list[float] = []
    integers: list[int] = []
    for node in nodes:
        if node.numbers:
            for kind, number in zip(node.op.numbers, node.numbers, strict=True):
                (floats if kind == "f" else integers).append(number)  # type: ignore[arg-type]  # of the type of its kind
    return floats, integers


Vectors = tuple[jax.Array, jax.Array]  # scalar arguments: float64 and int64


class Numbers:
    """The scalar arguments of a program that are not unpacked yet."""

    def __init__(self, floats: jax.Array, integers: jax.Array):
        self._packed = {"f": floats, "i": integers}
        self._position = {"f": 0, "i": 0}

    def of(self, op: OpSpec) -> list[jax.Array]:
        """Returns the next scalar arguments, those of one op: one by one, or as two vectors for its regions."""
        if op.lowering.regions:
            return [self._several(kind, op.numbers.count(kind)) for kind in "fi"]
        return [jax.lax.index_in_dim(*self._next(kind), keepdims=False) for kind in op.numbers]

    def of_iterations(
        self, entries: Sequence[OpSpec], iterations: int
    ) -> Callable[[int, jax.Array | int], list[jax.Array]]:
        """Returns the next scalar arguments, those of the iterations of a loop, as a function of (an op's place in the
        iteration, the iteration's number)."""
        start = dict(self._position)
        width = {kind: sum(op.numbers.count(kind) for op in entries) for kind in "fi"}
        self._position = {kind: start[kind] + iterations * width[kind] for kind in "fi"}
        first: list[dict[str, int]] = []  # of each op, in the first iteration
        for op in entries:
            first.append(dict(start))
            start = {kind: start[kind] + op.numbers.count(kind) for kind in "fi"}

        def take(place: int, iteration: jax.Array | int) -> list[jax.Array]:
            kinds, at = entries[place].numbers, first[place]
            own = {
                kind: jax.lax.dynamic_slice_in_dim(
                    self._packed[kind], at[kind] + iteration * width[kind], kinds.count(kind)
                )
                for kind in "fi"
                if kind in kinds or entries[place].lowering.regions
            }
            if entries[place].lowering.regions:
                return [own["f"], own["i"]]
            taken = {kind: iter(range(len(kinds))) for kind in own}
            return [jax.lax.index_in_dim(own[kind], next(taken[kind]), keepdims=False) for kind in kinds]

        return take

    def _several(self, kind: str, count: int) -> jax.Array:
        start = self._position[kind]
        self._position[kind] += count
        return jax.lax.slice(self._packed[kind], (start,), (start + count,))

    def _next(self, kind: str) -> tuple[jax.Array, int]:
        self._position[kind] += 1
        return self._packed[kind], self._position[kind] - 1
