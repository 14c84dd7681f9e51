"""A captured body becomes a loop of a known number of turns, with its gradient: a loop that runs backwards.

Not here: what users call (`scan`, `layers`).
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..compile.region import Scan, Step, scan_entry
from ..debug.check import recorded
from ..ir.graph import Region, Value, next_serial, results, value_name
from ..ir.meta import Meta, dense_meta
from ..ir.op import Entry
from ..lazy.annotate import annotate
from ..lazy.cell import BARRIER, LOCK, Cell
from ..lazy.reads import lay_gradient, next_turn, operand
from ..lazy.record import graph_task, record_here
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.views import read
from ..seed import Draw
from ..sharding.spec import WHOLE, Spec
from ..sharding.value import Sharding
from .capture import Capture
from .saved import saved
from .series import by_turn
from .varying import as_own

Tensors = list[XlaTensor]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What a turn gets one of: a tensor with a dim in front, or, as layers have them, a tensor for each turn.

    Of the latter the first stands for all of them while the body is recorded.
    """

    tensors: Tensors
    is_whole: bool

    @property
    def meta(self) -> Meta:
        """One row's."""
        meta = self.tensors[0]._meta
        return dense_meta(meta.shape[1:], meta.dtype) if self.is_whole else meta

    @property
    def sharding(self) -> Sharding | None:
        """One row's, where it is known."""
        sharding = self.tensors[0]._cell.sharding if self.tensors[0]._view is None else None
        if sharding is None or not self.is_whole:
            return sharding
        first, *rest = sharding.spec.dims or (WHOLE,)
        return sharding.with_spec(Spec(tuple(rest))) if first == WHOLE else None

    def needs_grad(self) -> bool:
        return any(tensor.requires_grad for tensor in self.tensors)

    def values(self) -> list[Value]:
        """What the loop is given: as it is stored, where a turn may gather it."""
        return [operand(tensor) if self.is_whole else read(tensor) for tensor in self.tensors]


# What records the body: (the carry of one turn, a row of each) -> (the carry of the next, what is stacked).
Body = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def run_loop(
    name: str, body: Body, init: Tensors, rows: Sequence[Rows], turns: int, *, reverse: bool = False
) -> tuple[Tensors, Tensors, list[Tensors | None]]:
    """Records a loop: (the last carry, the stacks, of each of `rows` what the body has written, a tensor per turn)."""
    init = as_own(init)
    rows = [dataclasses.replace(row, tensors=as_own(row.tensors)) if row.is_whole else row for row in rows]
    with BARRIER, LOCK:
        with Capture(name) as capture:
            loop = _Loop(capture, body, init, rows, turns, reverse)
        loop.draw(capture.draws.further(turns))
        made = list(_Apply.apply(loop, *loop.inputs)) if loop.is_differentiable else loop.forward()
    recorded()
    return loop.unpacked(made)


class _Loop:
    """One call: the forward op and the backward op, and what they are given."""

    def __init__(
        self, capture: Capture, body: Body, init: Tensors, rows: Sequence[Rows], turns: int, reverse: bool
    ) -> None:
        self.name, self.turns, self.reverse = capture.name, turns, reverse
        self.init, self.rows = init, rows
        is_on = torch.is_grad_enabled()
        carry = [
            capture.stand_in(
                dense_meta(tensor.shape, tensor.dtype), _sharding(tensor), requires_grad=is_on and _is_float(tensor)
            )
            for tensor in init
        ]
        self.carry_given = list(capture.given)
        stand_ins = []
        for row in rows:
            needs = is_on and row.needs_grad()
            if row.is_whole:
                stand_ins.append(capture.stand_in(row.meta, row.sharding, requires_grad=needs))
            else:
                stand_ins.append(capture.swapped(row.tensors[0], requires_grad=needs))
        self.row_given = capture.given[len(carry) :]
        fresh = [tensor for tensor, row in zip(stand_ins, rows, strict=True) if row.is_whole]
        in_place = f"{self.name}: the body writes in place into a row of xs; make a new tensor instead (x = x + 1)"
        try:
            self.carried, self.stacked = body([capture.own(tensor) for tensor in carry], stand_ins)
        except RuntimeError as error:
            if str(error).startswith("a leaf Variable that requires grad is being used in an in-place"):
                raise NotImplementedError(in_place) from error
            raise
        if not all(map(capture.is_unwritten, fresh)):
            raise NotImplementedError(in_place)
        self._note_writes(capture, stand_ins)
        self._find_needs(capture, carry, stand_ins)
        middle = next_serial()
        gradients = self._differentiate(capture, carry, stand_ins) if self.is_differentiable else []
        self._make_forward(capture, gradients, middle)
        if self.is_differentiable:
            self._make_backward(capture, gradients)
        self.num_carried, self.num_stacked, self.num_saved = len(carry), len(self.stacked), len(self.saved_values)
        del self.carried, self.stacked

    # --- recording ----------------------------------------------------------------------------------------------------

    def _note_writes(self, capture: Capture, stand_ins: Tensors) -> None:
        """What is written in place: cells from outside are carried from turn to turn, rows leave it as rows."""
        self.written = capture.written()
        capture.given += [before for before, _ in self.written.values()]
        self.rewritten = [
            i
            for i, (tensor, given) in enumerate(zip(stand_ins, self.row_given, strict=True))
            if not self.rows[i].is_whole and not capture.passes_on(tensor._cell.value, given)
        ]
        self.new_rows = [stand_ins[i]._cell.value for i in self.rewritten]

    def _find_needs(self, capture: Capture, carry: Tensors, stand_ins: Tensors) -> None:
        """Which parts of the carry, rows and tensors from outside have a gradient."""
        reached = [capture.reached(tensor) for tensor in (*self.carried, *self.stacked)]
        place = {tensor: i for i, tensor in enumerate(carry)}
        needs = [tensor.requires_grad and torch.is_grad_enabled() for tensor in self.init]
        has_gradient = [False] * len(reached)
        while True:
            before = [*needs, *has_gradient]
            for i, found in enumerate(reached):
                has_gradient[i] |= any(needs[place[each]] if each in place else True for each in found)
                if i < len(needs):
                    needs[i] |= has_gradient[i]
            if [*needs, *has_gradient] == before:
                break
        self.carry_needs = [i for i, need in enumerate(needs) if need]
        self.has_gradient = has_gradient
        met = {tensor: None for i, found in enumerate(reached) if has_gradient[i] for tensor in found}
        self.row_needs = [i for i, tensor in enumerate(stand_ins) if tensor in met]
        known = {*carry, *stand_ins}
        self.closed_over = [tensor for tensor in met if tensor not in known]
        self.is_differentiable = any(has_gradient)
        for tensor in self.closed_over:
            if tensor._cell in self.written:
                raise NotImplementedError(
                    f"{self.name}: the body writes in place into a tensor from outside that requires a gradient "
                    f"({tensor._meta!r}); carry it from turn to turn instead"
                )

    def _differentiate(self, capture: Capture, carry: Tensors, stand_ins: Tensors) -> list[Value]:
        """The gradients of one turn: of the carry, of what is closed over with all later turns', of the rows."""
        next_turn()  # what forward has gathered, backward gathers anew
        outputs = [*self.carried, *self.stacked]
        chosen = [i for i, has in enumerate(self.has_gradient) if has]
        self.stack_chosen = [i for i in chosen if i >= len(carry)]
        arriving = {
            i: capture.stand_in(dense_meta(outputs[i].shape, outputs[i].dtype))
            for i in (*self.carry_needs, *self.stack_chosen)
        }
        self.carry_arriving = [_value(arriving[i]) for i in self.carry_needs]
        self.stack_arriving = [_value(arriving[i]) for i in self.stack_chosen]
        wanted = [carry[i] for i in self.carry_needs], self.closed_over, [stand_ins[i] for i in self.row_needs]
        found: Any = torch.autograd.grad(
            [outputs[i] for i in chosen],
            [tensor for tensors in wanted for tensor in tensors],
            [arriving[i] for i in chosen],
            allow_unused=True,
        )
        queue: Iterator[Any] = iter(found)
        gradients: list[Value] = []
        with torch.no_grad():
            for each in wanted[0]:
                gradient = next(queue)
                gradients.append(operand(_zeros_like(each) if gradient is None else gradient))
            self.sums = [capture.stand_in(dense_meta(tensor.shape, tensor.dtype)) for tensor in self.closed_over]
            for tensor, so_far in zip(self.closed_over, self.sums, strict=True):
                gradient = next(queue)
                if gradient is not None:
                    lay_gradient(tensor._cell, gradient)
                    gradient = so_far + gradient
                gradients.append(operand(so_far if gradient is None else gradient))
            self.sums_given = capture.given[len(capture.given) - len(self.sums) :]
            for tensor in wanted[2]:
                gradient = next(queue)
                gradient = _zeros_like(tensor) if gradient is None else gradient
                lay_gradient(tensor._cell, gradient)
                gradients.append(operand(gradient))
        return gradients

    def _make_forward(self, capture: Capture, gradients: list[Value], middle: int) -> None:
        befores = [before for before, _ in self.written.values()]
        self.saved_values: list[Value] = []
        if gradients:
            rewritten = {value_name(self.row_given[i]) for i in self.rewritten}
            rows = [given for given in self.row_given if value_name(given) not in rewritten]
            arriving = [*self.carry_arriving, *self.sums_given, *self.stack_arriving]
            self.saved_values = saved(capture, gradients, [*rows, *arriving], middle)
        carried = [operand(tensor) for tensor in self.carried] + [after for _, after in self.written.values()]
        stacked = [operand(tensor) for tensor in self.stacked]
        roots = [*carried, *stacked, *self.saved_values, *self.new_rows]
        given = [*self.carry_given, *befores, *self.row_given]
        constants = capture.outside(roots, given)
        self.forward_constants = constants
        whole = (*[True] * (len(stacked) + len(self.saved_values)), *[False] * len(self.new_rows))
        body = Region.of(roots, [*constants, *given])
        self.forward_scan = Scan(
            body, self.turns, len(constants), len(carried), tuple(row.is_whole for row in self.rows), whole,
            reverse=self.reverse,
        )  # fmt: skip

    def _make_backward(self, capture: Capture, gradients: list[Value]) -> None:
        fixed = [*self.carry_arriving, *self.sums_given]
        saved_names = {value_name(value) for value in self.saved_values}
        every = [*fixed, *self.saved_values, *self.row_given, *self.stack_arriving]
        constants = capture.outside(gradients, every)
        read = {value_name(v) for node in capture.nodes(gradients, every) for v in node.operands}
        read |= {value_name(value) for value in gradients}
        self.rows_read = [
            i
            for i, given in enumerate(self.row_given)
            if value_name(given) in read and value_name(given) not in saved_names
        ]
        rows = [self.row_given[i] for i in self.rows_read]
        given = [*constants, *fixed, *self.saved_values, *rows, *self.stack_arriving]
        self.constants = capture.tensors(constants)
        whole_rows = [self.rows[i].is_whole for i in self.rows_read]
        self.backward_scan = Scan(
            Region.of(gradients, given), self.turns, len(constants), len(fixed),
            (*[True] * len(self.saved_values), *whole_rows, *[True] * len(self.stack_arriving)),
            tuple(self.rows[i].is_whole for i in self.row_needs), reverse=not self.reverse,
        )  # fmt: skip

    def draw(self, turns: list[list[Draw]]) -> None:
        """Learns what each turn draws, by the first turn's draws, which the body was recorded with."""
        by_row = turns[::-1] if self.reverse else turns
        self.draws = {draw: [row[place] for row in by_row] for place, draw in reversed(list(enumerate(turns[0])))}

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> Tensors:
        """All that may have a gradient, and the rest of the carry and the rows."""
        return [*self.init, *self.closed_over, *(tensor for row in self.rows for tensor in row.tensors)]

    def forward(self) -> Tensors:
        """Records the loop: the carry, the stacks, the rewritten rows one by one; last what is saved."""
        befores = [before for before, _ in self.written.values()]
        operands = [*self.forward_constants, *(operand(tensor) for tensor in self.init), *befores]
        operands += [value for row in self.rows for value in row.values()]
        made = self._record(self.name, self.forward_scan, operands)
        count = self.num_carried
        for cell, value in zip(self.written, made[count : count + len(self.written)], strict=True):
            cell.write(value)
        made = made[:count] + made[count + len(self.written) :]
        start, end = count + self.num_stacked, count + self.num_stacked + self.num_saved
        for name in _FORWARD_ONLY:
            vars(self).pop(name, None)  # until backward nothing of the recording is held but what it reads
        return _tensors([*made[:start], *made[end:], *made[start:end]])

    def backward(self, kept: Sequence[Any], arriving: Sequence[Any]) -> list[Any]:
        """Records the loop that runs backwards; a gradient for each of `inputs`."""
        queue = iter(kept)
        constants = [next(queue) for _ in self.constants]
        stacks = [next(queue) for _ in range(self.num_saved)]
        rows = [[next(queue) for _ in self.rows[i].tensors] for i in self.rows_read]
        sums = []
        for tensor in self.closed_over:
            zeros: Any = torch.zeros(tensor.shape, dtype=tensor.dtype, device="xla")
            if tensor._cell.sharding is not None and tensor._view is None:
                annotate(zeros, tensor._cell.sharding)
            sums.append(zeros)
        with LOCK:
            operands = [operand(tensor) for tensor in (*constants, *(arriving[i] for i in self.carry_needs), *sums)]
            operands += [operand(tensor) for tensor in stacks]
            for i, tensors in zip(self.rows_read, rows, strict=True):
                operands += [operand(each) if self.rows[i].is_whole else read(each) for each in tensors]
            operands += [operand(arriving[i]) for i in self.stack_chosen]
            made = iter(_tensors(self._record(f"{self.name}.backward", self.backward_scan, operands)))
        gradients: list[Any] = [None] * self.num_carried
        for i in self.carry_needs:
            gradients[i] = next(made)
        for tensor in self.closed_over:
            gradient = next(made)
            gradient._cell.sharding = _sharding(tensor)
            gradients.append(gradient)
        for i, row in enumerate(self.rows):
            for tensor in row.tensors:
                if i not in self.row_needs:
                    gradients.append(None)
                    continue
                gradient = next(made)
                gradient._cell.sharding = _sharding(tensor) if not row.is_whole else None  # as the body has laid it out
                gradients.append(gradient)
        recorded()
        return gradients

    def kept(self) -> Tensors:
        """What backward is given of the caller's tensors."""
        return [*self.constants, *(tensor for i in self.rows_read for tensor in self.rows[i].tensors)]

    def unpacked(self, made: Tensors) -> tuple[Tensors, Tensors, list[Tensors | None]]:
        """The results by kind: see `run_loop`."""
        count, end = self.num_carried, self.num_carried + self.num_stacked
        queue = iter(made[end:])
        new: list[Tensors | None] = [None] * len(self.rows)
        for i in self.rewritten:
            new[i] = [next(queue) for _ in range(self.turns)]
        return made[:count], made[count:end], new

    def _record(self, name: str, scan: Scan, operands: list[Value]) -> list[Value]:
        entry, numbers = self._entry(name, scan, operands)
        return list(results(record_here(entry, operands, numbers, sys._getframe(1), graph_task())))

    def _entry(self, name: str, scan: Scan, operands: Sequence[Value]) -> tuple[Entry, list[float | int]]:
        steps: list[Step] = []
        numbers: list[float | int] = []
        for step, own in by_turn(scan.body.nodes, self.draws, name):
            steps.append(step)
            numbers += own
        return scan_entry(name, scan.with_steps(tuple(steps)), [value.meta for value in operands]), numbers


# What of a `_Loop` its backward does without.
_FORWARD_ONLY = (
    "init", "written", "new_rows", "saved_values", "carry_given", "row_given", "forward_constants", "forward_scan",
    "carry_arriving", "stack_arriving", "sums", "sums_given",
)  # fmt: skip


class _Apply(torch.autograd.Function):
    """A loop and its gradient."""

    @staticmethod
    def forward(ctx: Any, loop: _Loop, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = loop.forward()
        count = len(made) - loop.num_saved
        outputs, stacks = made[:count], made[count:]
        ctx.loop = loop
        num_constants = len(loop.constants)
        kept = loop.kept()
        ctx.save_for_backward(*kept[:num_constants], *stacks, *kept[num_constants:])
        has_gradient = [*loop.has_gradient, *[False] * len(outputs)]
        ctx.mark_non_differentiable(*(tensor for tensor, has in zip(outputs, has_gradient, strict=False) if not has))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        loop: _Loop = ctx.loop
        if torch.is_grad_enabled():
            raise NotImplementedError(
                f"{loop.name}: its gradient has no gradient (create_graph=True); write the loop in Python for that"
            )
        return None, *loop.backward(ctx.saved_tensors, arriving)


def _tensors(values: Sequence[Value]) -> Tensors:
    return [wrap(value.meta, Cell(value, value.meta)) for value in values]


def _zeros_like(tensor: XlaTensor) -> Any:
    return torch.zeros_like(tensor)


def _value(tensor: XlaTensor) -> Value:
    return tensor._cell.value


def _sharding(tensor: XlaTensor) -> Sharding | None:
    return tensor._cell.sharding if tensor._view is None else None


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
