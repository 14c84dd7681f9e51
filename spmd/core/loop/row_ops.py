"""Ops around loops: adjacent runs of an array taken as rows, a row written into a stack, values
that are waited for."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...ops.shape import ElementRun, TakeRun
from ..graph.op import Arrays, Layouts, Lowering, OpSpec
from ..graph.stacked import write_row
from ..lower.lower import SHARDED_AS
from ..lower.stack_rows import ANY_MEMORY, TAKE_ROWS, Made, StackRow, adjacent_runs, plain
from ..sharding.constrain import space_of, wait_for_all
from ..sharding.value import DEVICE

# The op that writes a value from outside into a row of the stack of a loop's results.
PUT_ROW = "spmd.put_row"
# The op that returns its operands, none of them before all are computed.
WAIT = "spmd.wait"
SHARDED_AS |= {
    PUT_ROW: lambda node, index: node.operands[0],
    WAIT: lambda node, index: node.operands[index],
}


@dataclass(frozen=True, slots=True)
class PutRow(Lowering):
    """Writes the last operand into a row of a stack; the operands before it are the stack's other
    rows.

    The results are all these rows, in order. row: the place of the new row in the stack. result:
    its index among the results. If the operands are not rows of one stack that has this row free,
    each stays as it is.
    """

    row: int
    result: int

    def lower(
        self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        *former, new = operands  # the other rows of the stack, in order, and the new row
        candidates = [row for row in former if isinstance(row, StackRow)]
        stack_rows = [row for row in candidates if row.stack is candidates[0].stack]
        taken_rows = {row.index for row in stack_rows}
        if (
            len(stack_rows) < len(former)
            or self.row in taken_rows
            or self.row >= stack_rows[0].stack.shape[0]
        ):
            return (*former[: self.result], new, *former[self.result :])
        stack = write_row(stack_rows[0].stack, plain(new), self.row)
        new_rows = [StackRow(stack, row.index, row.plain) for row in stack_rows]
        return (
            *new_rows[: self.result],
            StackRow(stack, self.row, plain(new)),
            *new_rows[self.result :],
        )


@dataclass(frozen=True, slots=True)
class TakeRows(Lowering):
    """Takes adjacent runs of an array as results, which are rows of one array."""

    run: ElementRun
    positions: tuple[int, ...]

    @staticmethod
    def of(op: OpSpec, positions: Sequence[int]) -> "TakeRows | None":
        """Returns the lowering of an op with these starts; None if its runs are not adjacent."""
        move = (
            None
            if op.dynamic_start is None
            else getattr(op.dynamic_start[0].lowering, "move", None)
        )
        run = move.run if isinstance(move, TakeRun) else None
        distance = positions[1] - positions[0]
        if run is None or run.step != 1 or abs(distance) != run.count:
            return None
        is_regular = all(b - a == distance for a, b in itertools.pairwise(positions))
        return TakeRows(run, tuple(positions)) if is_regular else None

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        return tuple(adjacent_runs(operands[0], self.run, self.positions))


@dataclass(frozen=True, slots=True)
class WaitForAll(Lowering):
    """Returns the operands behind one barrier: no array on the device is available before all are.
    Rows and arrays on the host pass as they are."""

    def lower(
        self, op: OpSpec, operands: Sequence[Made], numbers: Arrays, layouts: Layouts
    ) -> tuple[Any, ...]:
        """Returns the operands, the arrays on the device behind one barrier."""
        arrays = {
            index: value
            for index, value in enumerate(operands)
            if not isinstance(value, StackRow) and space_of(value) == DEVICE
        }
        awaited = dict(zip(arrays, wait_for_all(tuple(arrays.values())), strict=True))
        return tuple(awaited.get(index, value) for index, value in enumerate(operands))


TAKE_ROWS |= {PutRow, WaitForAll}
ANY_MEMORY.add(WaitForAll)
