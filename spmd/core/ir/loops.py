"""Loop: the stretch of a graph that repeats one block, as data: what each turn reads, and what is read of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .graph import Node, Value

Result = tuple[int, int]  # of a turn: the op's place in it, which of the op's results


class Inner(NamedTuple):
    """An operand that the same turn makes."""

    place: int
    result: int


class Carried(NamedTuple):
    """An operand that the turn before makes; the first turn has the initial value of `Loop.carried[slot]`."""

    slot: int


class Same(NamedTuple):
    """An operand that is `Loop.same[slot]` in every turn."""

    slot: int


class Rows(NamedTuple):
    """An operand that is another value in each turn, none of which the loop makes: those of `Loop.rows[slot]`."""

    slot: int


Source = Inner | Carried | Same | Rows


@dataclass(slots=True)
class Loop:
    """Equal turns of equally many ops, one behind the other in a graph.

    start: the number of nodes before it. period: ops in a turn. sources: for each op of a turn, where its operands come
    from. early: the places of ops that take another position in each turn and read nothing that the loop makes: they
    are done before it, and what they make is read as rows. carried: what a turn hands to the next, with the value that
    the first turn has instead. kept: the results that are read outside, other than of the last turn alone; last: those
    of which only the last turn's is. ended: of those that are carried and kept, the ones whose last turn's is read as a
    row, too. beside: by row, what others make that stands with what all turns make of a result, before its first row or
    behind its last: the gradient of a layer whose backward differs. backwards: whether rows are numbered from the last
    turn on, as a backward pass goes through the layers.
    """

    nodes: Sequence[Node]
    start: int
    period: int
    turns: int
    sources: tuple[tuple[Source, ...], ...]
    early: frozenset[int]
    carried: tuple[tuple[Result, Value], ...]
    same: tuple[Value, ...]
    rows: tuple[tuple[Value, ...], ...]
    kept: list[Result] = field(default_factory=list)
    last: list[Result] = field(default_factory=list)
    ended: set[Result] = field(default_factory=set)
    beside: dict[Result, dict[int, Value]] = field(default_factory=dict)
    backwards: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.period * self.turns

    def body(self) -> Sequence[Node]:
        """The first turn's ops."""
        return self.nodes[self.start : self.start + self.period]

    def node(self, turn: int, place: int) -> Node:
        return self.nodes[self.start + turn * self.period + place]

    def at(self, place: int) -> Sequence[Node]:
        """The ops of all turns at one place."""
        return self.nodes[self.start + place : self.stop : self.period]

    def positions(self, place: int) -> Sequence[int] | None:
        """Where the op at a place takes elements from in each turn; None where its turns have the same op."""
        entries = [node.entry for node in self.at(place)]
        if all(entry is entries[0] for entry in entries):
            return None
        return [entry.moving[1] for entry in entries if entry.moving is not None]

    def row(self, turn: int) -> int:
        """Where what a turn makes stands among what all turns make."""
        return self.turns - 1 - turn if self.backwards else turn

    def name(self, turn: int, result: Result) -> Any:
        """What a turn makes at one place, as `value_name` says it."""
        place, index = result
        node = self.node(turn, place)
        return node if len(node.entry.metas) == 1 else (node, index)

    def names(self, result: Result) -> list[Any]:
        """What every turn makes at one place, by row."""
        named = [self.name(turn, result) for turn in range(self.turns)]
        return named[::-1] if self.backwards else named
