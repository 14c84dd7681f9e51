"""The data that loops of turns read row by row, as columns: each stacked once for all loops."""

from collections.abc import Sequence

from ..ir.graph import Leaf
from ..ops.padding import NoRule


def columns_of(rows: Sequence[tuple[Leaf, ...]]) -> list[tuple[Leaf, ...]]:
    """The data that loops read turn by turn: what one reads from behind, or without some at the ends, that another
    reads, too, is one column, so that it stands in the same order whatever the number of turns."""
    made: list[tuple[Leaf, ...]] = []
    for row in rows:
        shared = [column for column in made if not set(column).isdisjoint(row)]
        made = [column for column in made if column not in shared]
        for column in shared:
            row = _merged(column, row)
        made.append(row)
    return made


def _merged(column: tuple[Leaf, ...], row: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
    """A column with what a row has before and behind it."""
    for ordered in (row, row[::-1]):
        shared = next(leaf for leaf in ordered if leaf in column)
        shift = column.index(shared) - ordered.index(shared)
        before, behind = ordered[: max(-shift, 0)], ordered[max(len(column) - shift, 0) :]
        made = (*before, *column, *behind)
        start = max(shift, 0)
        if made[start : start + len(ordered)] == ordered and len(set(made)) == len(made):
            return made
    raise NoRule("reads data in another order")
