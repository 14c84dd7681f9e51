"""Dynamic dims, starts and lists: they differ between two runs of a sync.

Differences are one table by place in the user's code. A row is an op (its line and its name), its
dynamic part, and the dynamic dims. Cuts between iterations add rows, as do packages that learn from
runs. Here a known dynamic start becomes an operand of its op. A package pads data; between two runs
a tensor holds an unpadded view of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import CodeType

import jax

from ..base.tables import Bounded
from ..graph.graph import UNPADDED, DeviceData, Node, Value, origin
from ..graph.meta import Meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec
from ..graph.source import line_number
from ..sharding.constrain import cut

# The dynamic part of an op: its start, which becomes an operand. Packages add other parts, and the
# numbers of operands.
START = "start"

_table: Bounded[tuple[CodeType | None, int, str, str | int], tuple[int, ...]] = Bounded(4096)
NAMES: set[str] = set()  # of the ops in the table: most ops are not, which is quick to see
# Return, of the ops of a graph that have a start, those that keep it: the results have dynamic dims
# instead, or the starts are the rows of a stack.
keeps_start: list[Callable[[Sequence[Node]], Iterable[Node]]] = []


def dims_of(node: Node, part: str | int) -> tuple[int, ...] | None:
    """Returns the dynamic dims of an op at this place; None if nothing of it is dynamic."""
    if node.op.name not in NAMES:
        return None
    return _table.get((node.code, line_number(node.code, node.instruction), node.op.name, part))


def add(node: Node, part: str | int, dims: Sequence[int] = ()) -> None:
    """Adds dynamic dims of an op at this place to those that are known."""
    NAMES.add(node.op.name)
    key = node.code, line_number(node.code, node.instruction), node.op.name, part
    _table.keep(key, tuple(sorted({*(_table.get(key) or ()), *dims})))


def note_dynamic_start(nodes: Sequence[Node], later_nodes: Sequence[Node]) -> None:
    """Learns the dynamic starts: those that differ between two iterations of a loop."""
    for node, later in zip(nodes, later_nodes, strict=True):
        if node.op is not later.op:
            add(later, START)


def with_kept_start(nodes: Sequence[Node]) -> set[Node]:
    """Returns the ops of a graph whose start stays a part of them."""
    started = [node for node in nodes if node.op.dynamic_start is not None]
    return {node for keeps in keeps_start for node in keeps(started)} if started else set()


def dynamic_start_positions(nodes: Sequence[Node]) -> bool:
    """Makes the known dynamic starts scalar arguments of their ops; returns True if there are
    any."""
    known = {
        node: node.op.dynamic_start
        for node in nodes
        if node.op.dynamic_start is not None and dims_of(node, START) is not None
    }
    for node in with_kept_start(nodes) if known else ():
        known.pop(node, None)
    for node, (op, position) in known.items():
        node.op = op
        node.numbers = (position, *node.numbers)  # the later numbers of a random op are its key
    return bool(known)


# The ops whose results may be kept with padding: a cache extended by a token, or with its rows
# reordered by a search.
KEPT = ("aten.cat", "aten.index_select")


@dataclass(frozen=True, slots=True)
class Unpad(Lowering):
    """Removes the operand's padding from these dims; is_marked: the user has marked them, or dims
    they come from."""

    dims: tuple[int, ...]
    is_marked: bool

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        return (cut(operands[0], op.metas[0].shape),)


def unpadded(device_data: DeviceData, value: Value) -> Node:
    """Returns a padded result as the user sees it: an `Unpad` op with the line and the serial of
    the op that made the result."""
    padded, shape = device_data.meta.shape, value.meta.shape
    node = origin(value)
    assert node is not None, "results are computed by ops"
    dims = [dim for dim, size in enumerate(shape) if size != padded[dim]]
    result = unpadded_view(device_data, value.meta, dims, is_marked=node.op.name not in KEPT)
    result.code, result.instruction, result.serial = node.code, node.instruction, node.serial
    return result


def unpadded_view(
    device_data: DeviceData, meta: Meta, dims: Sequence[int], *, is_marked: bool
) -> Node:
    """Returns the view of padded data without the padding of these dims."""
    lowering = Unpad(tuple(dims), is_marked)
    statics = f"{list(meta.shape)}{', marked' if is_marked else ''}"
    return Node(
        OpSpec.of(UNPADDED, lowering, (meta,), (device_data.meta,), statics=statics), [device_data]
    )
