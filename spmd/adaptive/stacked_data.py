"""The data that loops read as xs, in stack groups: each is stacked once for all loops."""

from collections.abc import Sequence

from ..core import DeviceData
from .padding.case import NoRule


def columns_of(rows: Sequence[tuple[DeviceData, ...]]) -> list[tuple[DeviceData, ...]]:
    """Returns the stack groups of the data that loops read as xs.

    Data that one loop reads in reverse order, or without some rows at the ends, and that another reads, too, is one
    group: so its order is the same for any trip count.
    """
    result: list[tuple[DeviceData, ...]] = []
    for row in rows:
        shared = [column for column in result if not set(column).isdisjoint(row)]
        result = [column for column in result if column not in shared]
        for column in shared:
            row = _merged(column, row)
        result.append(row)
    return result


def _merged(column: tuple[DeviceData, ...], row: tuple[DeviceData, ...]) -> tuple[DeviceData, ...]:
    """Returns a group with the data that `row` has before and after it. Raises NoRule where the orders differ."""
    for ordered in (row, row[::-1]):
        shared = next(device_data for device_data in ordered if device_data in column)
        shift = column.index(shared) - ordered.index(shared)
        before, behind = ordered[: max(-shift, 0)], ordered[max(len(column) - shift, 0) :]
        result = (*before, *column, *behind)
        start = max(shift, 0)
        if result[start : start + len(ordered)] == ordered and len(set(result)) == len(result):
            return result
    raise NoRule("reads data in another order")
