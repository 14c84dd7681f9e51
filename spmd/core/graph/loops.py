"""Candidate: a stretch of a graph that repeats one block, as data: the operands of its iterations, what reads them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .graph import Node, Value

# The name of the op that a candidate becomes (`lower.found_loop`).
FOUND_LOOP = "spmd.layers"
# The op that writes a value from outside into a row of the stack of a loop's results.
PUT_ROW = "spmd.put_row"
# The op that returns its operands, none of them before all are computed.
WAIT = "spmd.wait"

Result = tuple[int, int]  # of an iteration: the op's place in it, the index of the op's result


class Local(NamedTuple):
    """An operand from the same iteration."""

    place: int
    result: int


class Carry(NamedTuple):
    """An operand from the iteration before; in the first iteration, the initial value of `Candidate.carry[slot]`."""

    slot: int


class Const(NamedTuple):
    """An operand that is `Candidate.consts[slot]` in every iteration."""

    slot: int


class Xs(NamedTuple):
    """An operand that is another value from outside the loop in each iteration: one of `Candidate.xs[slot]`."""

    slot: int


Source = Local | Carry | Const | Xs


@dataclass(slots=True)
class Candidate:
    """Isomorphic iterations of equally many ops, one after the other in a graph.

    start: the number of nodes before the loop. period: the ops of an iteration. iterations: the trip count. sources:
    for each op of an iteration, where its operands come from. early: the places of ops that have another dynamic start
    in each iteration and read no result of the loop: they are hoisted, and their results are xs. carry: the results
    that an iteration passes to the next, each with its initial value. ys: the results that are read outside for more
    than the last iteration; last: the results of which only the last iteration's is read. ended: of the results that
    are both carry and ys, those whose last iteration's is read as a row, too. peeled: for a result, by row, the values
    from outside the loop that belong to the stack of its ys, before the first row or after the last: the gradient of a
    layer whose backward differs. backwards: whether rows are numbered from the last iteration on, as a backward pass
    goes through the layers.
    """

    nodes: Sequence[Node]
    start: int
    period: int
    iterations: int
    sources: tuple[tuple[Source, ...], ...]
    early: frozenset[int]
    carry: tuple[tuple[Result, Value], ...]
    consts: tuple[Value, ...]
    xs: tuple[tuple[Value, ...], ...]
    ys: list[Result] = field(default_factory=list)
    last: list[Result] = field(default_factory=list)
    ended: set[Result] = field(default_factory=set)
    peeled: dict[Result, dict[int, Value]] = field(default_factory=dict)
    backwards: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.period * self.iterations

    def body(self) -> Sequence[Node]:
        """Returns the ops of the first iteration."""
        return self.nodes[self.start : self.start + self.period]

    def node(self, iteration: int, place: int) -> Node:
        return self.nodes[self.start + iteration * self.period + place]

    def at(self, place: int) -> Sequence[Node]:
        """Returns the ops of all iterations at one place."""
        return self.nodes[self.start + place : self.stop : self.period]

    def positions(self, place: int) -> Sequence[int] | None:
        """Returns the dynamic start of the op at a place in each iteration; None if all have the same op there."""
        ops = [node.op for node in self.at(place)]
        if all(op is ops[0] for op in ops):
            return None
        return [op.dynamic_start[1] for op in ops if op.dynamic_start is not None]

    def row(self, iteration: int) -> int:
        """Returns the row of an iteration in the stacks of the ys."""
        return self.iterations - 1 - iteration if self.backwards else iteration

    def name(self, iteration: int, result: Result) -> Any:
        """Returns the name, as `value_name` has it, of one result of an iteration."""
        place, index = result
        node = self.node(iteration, place)
        return node if len(node.op.metas) == 1 else (node, index)

    def names(self, result: Result) -> list[Any]:
        """Returns the names of one result in every iteration, by row."""
        named = [self.name(iteration, result) for iteration in range(self.iterations)]
        return named[::-1] if self.backwards else named
