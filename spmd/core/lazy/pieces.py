"""Pieces of shards that stand in the graph itself, from where a user has asked for them to where they are joined again.

A piece has no value of its own: what is made of it becomes the body of a manual region where it is joined
(`control.pieces`), and no barrier runs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.graph import Node, Value, origin
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..sharding.value import Sharding

Cut = tuple[tuple[str, ...], ...]  # of each dim the axes that split it


@dataclass(frozen=True, slots=True)
class Piece(Lowering):
    """One shard's piece of its operand."""

    mesh: Sharding
    cut: Cut

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[None]:  # type: ignore[override]
        raise RuntimeError(
            "it is the piece of a shard (spmd.enable_manual_sharding) and has no value outside; join the shards with "
            "spmd.disable_manual_sharding first"
        )


is_used = False  # whether this process has ever recorded one: else no barrier looks for any
latest: Sharding | None = None  # over which mesh the latest was made


def note_use(mesh: Sharding) -> None:
    """One is recorded, over this mesh."""
    global is_used, latest
    is_used, latest = True, mesh


def behind(value: Value) -> list[Node]:
    """The pieces that a value is made of."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack: list[Value] = [value]
    while stack:
        node = origin(stack.pop())
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node.entry.lowering, Piece):
            found[node] = None
        else:
            stack.extend(node.operands)
    return list(found)


def without(values: Sequence[Value]) -> list[bool]:
    """Of each value whether no piece is behind it."""
    known: dict[Node, bool] = {}
    for value in values:
        stack = [node] if (node := origin(value)) is not None else []
        while stack:
            node = stack[-1]
            if node in known:
                stack.pop()
                continue
            if isinstance(node.entry.lowering, Piece):
                known[node] = False
                continue
            makers = [maker for maker in map(origin, node.operands) if maker is not None]
            waiting = [maker for maker in makers if maker not in known]
            if waiting:
                stack.extend(waiting)
            else:
                known[node] = all(known[maker] for maker in makers)
    return [(node := origin(value)) is None or known[node] for value in values]
