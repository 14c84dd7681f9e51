"""Shards in the graph itself, from `spmd.torch_xla.enable_manual_sharding` to the op that joins them again.

A `ManualShard` has no value of its own: the ops on it become the body of a manual computation where the shards are
joined (`manual.manual_steps`), and no sync runs them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import Sharding, points
from ..core.extend import Arrays, Layouts, Lowering, Node, OpSpec, Value, walks

Cut = tuple[tuple[str, ...], ...]  # for each dim the axes that shard it


@dataclass(frozen=True, slots=True)
class ManualShard(Lowering):
    """One shard's part of its operand."""

    mesh: Sharding
    cut: Cut

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[None]:  # type: ignore[override]
        raise RuntimeError(
            "it is one shard's part of a tensor (spmd.torch_xla.enable_manual_sharding) and has no value outside; join "
            "the shards with spmd.torch_xla.disable_manual_sharding first"
        )


is_used = False  # whether this process has ever recorded one: until then no sync looks for any
latest: Sharding | None = None  # the mesh of the latest one


def note_use(mesh: Sharding) -> None:
    """Notes that a `ManualShard` over this mesh is recorded."""
    global is_used, latest
    if not is_used:
        points.can_run.append(without)
    is_used, latest = True, mesh


def behind(value: Value) -> list[Node]:
    """The `ManualShard` nodes that a value depends on."""
    found: dict[Node, None] = {}
    seen: set[Node] = set()
    stack: list[Value] = [value]
    while stack:
        node = walks.origin(stack.pop())
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node.op.lowering, ManualShard):
            found[node] = None
        else:
            stack.extend(node.operands)
    return list(found)


def without(values: Sequence[Value]) -> list[bool]:
    """For each value, True if it depends on no `ManualShard`."""
    found = walks.depending(values, lambda node: isinstance(node.op.lowering, ManualShard))
    return [walks.origin(value) not in found for value in values]
