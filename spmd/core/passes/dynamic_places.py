"""Dynamic starts, dims and lists, by place in the user's code: one table of what differed between two runs of a sync.

A row is an op (its line and its name), what of it is dynamic, and the dynamic dims. `dynamic.learn` and the cuts
between iterations add rows; the passes of `dynamic` and `lengths` read them.
"""

from collections.abc import Sequence
from types import CodeType

from ..base.tables import Bounded
from ..graph.graph import Node
from ..graph.source import line_number

# What of an op is dynamic, beside the data that it reads (the number of the operand): the dims of its result; its
# start, an operand then; the length of a small list, which the host computes.
RESULT, START, HOST = "result", "start", "host"

_table: Bounded[tuple[CodeType | None, int, str, str | int], tuple[int, ...]] = Bounded(4096)
_names: set[str] = set()  # of the ops in the table: that a name has no row is quick to see


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
