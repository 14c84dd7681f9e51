"""Dynamic starts, dims and lists, by place in the user's code: one table of what differed between two runs of a sync.

A row is an op (its line and its name), what of it is dynamic, and the dynamic dims. Cuts between iterations, and the
packages that learn from runs, add rows. A known dynamic start is made an operand of its op here.
"""

from collections.abc import Callable, Sequence
from types import CodeType

from ..base.tables import Bounded
from ..graph.graph import Node
from ..graph.source import line_number

# What of an op is dynamic here: its start, an operand then. Packages add other words, and numbers of operands.
START = "start"

_table: Bounded[tuple[CodeType | None, int, str, str | int], tuple[int, ...]] = Bounded(4096)
_names: set[str] = set()  # of the ops in the table: that a name has no row is quick to see
# Whether an op with a known dynamic start keeps it: its result has dynamic dims instead.
keeps_start: list[Callable[[Node], bool]] = []


def dims_of(node: Node, what: str | int) -> tuple[int, ...] | None:
    """Returns the dynamic dims of an op at this place; None if nothing of it is dynamic."""
    if node.op.name not in _names:
        return None
    return _table.get((node.code, line_number(node.code, node.instruction), node.op.name, what))


def add(node: Node, what: str | int, dims: Sequence[int] = ()) -> None:
    """Adds dynamic dims of an op at this place to those that are known."""
    _names.add(node.op.name)
    place = node.code, line_number(node.code, node.instruction), node.op.name, what
    _table.keep(place, tuple(sorted({*(_table.get(place) or ()), *dims})))


def note_dynamic_start(some: Sequence[Node], others: Sequence[Node]) -> None:
    """Learns the dynamic starts: those that differ between two iterations of a loop."""
    for node, other in zip(some, others, strict=True):
        if node.op is not other.op:
            add(other, START)


def dynamic_start_positions(nodes: Sequence[Node]) -> bool:
    """Makes the known dynamic starts scalar arguments of their ops; returns True if there are any."""
    is_scalar_argument = False
    for node in nodes:
        start = node.op.dynamic_start
        if start is not None and dims_of(node, START) is not None and not any(keeps(node) for keeps in keeps_start):
            node.op, position = start
            node.numbers = (position, *node.numbers)  # the later numbers of a random op are its key
            is_scalar_argument = True
    return is_scalar_argument
