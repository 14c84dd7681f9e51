"""The lifted numbers of a program: packed into two vectors outside, taken out of them inside."""

from collections.abc import Callable, Sequence

import jax

from ..ir.graph import Node


def pack_numbers(nodes: Sequence[Node]) -> tuple[list[float], list[int]]:
    """The lifted numbers of the nodes, in the order in which the program unpacks them."""
    floats: list[float] = []
    integers: list[int] = []
    for node in nodes:
        if node.numbers:
            for kind, number in zip(node.entry.numbers, node.numbers, strict=True):
                (floats if kind == "f" else integers).append(number)  # type: ignore[arg-type]  # as its kind says
    return floats, integers


class Numbers:
    """The numbers of a program that are still to be taken."""

    def __init__(self, floats: jax.Array, integers: jax.Array):
        self._packed = {"f": floats, "i": integers}
        self._position = {"f": 0, "i": 0}

    def of(self, kinds: str) -> list[jax.Array]:
        """The next numbers, those of one op."""
        return [jax.lax.index_in_dim(*self._next(kind), keepdims=False) for kind in kinds]

    def of_turns(self, kinds: Sequence[str], turns: int) -> Callable[[int, jax.Array], list[jax.Array]]:
        """The next numbers, those of the turns of a loop, as a function of (an op's place in the turn, the turn)."""
        start = dict(self._position)
        width = {kind: sum(each.count(kind) for each in kinds) for kind in "fi"}
        self._position = {kind: start[kind] + turns * width[kind] for kind in "fi"}
        places: list[list[tuple[str, int]]] = []
        at = dict(start)
        for each in kinds:
            places.append([])
            for kind in each:
                places[-1].append((kind, at[kind]))
                at[kind] += 1

        def take(place: int, turn: jax.Array) -> list[jax.Array]:
            return [
                jax.lax.dynamic_index_in_dim(self._packed[kind], first + turn * width[kind], keepdims=False)
                for kind, first in places[place]
            ]

        return take

    def _next(self, kind: str) -> tuple[jax.Array, int]:
        self._position[kind] += 1
        return self._packed[kind], self._position[kind] - 1
