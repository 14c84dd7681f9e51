"""A captured body becomes a loop of known trip count, with its gradient: a loop in the opposite direction.

Not here: what users call (`scan`, `layers`).
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..base.seed import Draw
from ..debug.check import recorded
from ..ir.graph import Region, Value, next_serial, results, value_name
from ..ir.meta import Meta, dense_meta
from ..ir.op import OpSpec
from ..lazy.annotations import annotate
from ..lazy.reads import next_generation, operand, shard_gradient
from ..lazy.record import graph_task, record_here
from ..lazy.storage import LOCK, SYNC_LOCK, Storage
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.views import read
from ..lower.region import Scan, Step, scan_op
from ..sharding.spec import UNSHARDED, Spec
from ..sharding.value import Sharding
from .capture import Capture
from .saved import saved
from .series import by_iteration
from .varying import as_own

Tensors = list[XlaTensor]


@dataclass(frozen=True, slots=True, eq=False)
class ScanInput:
    """The values of which each iteration reads one: a stack, or, for layers, a tensor per iteration.

    Of the latter the first stands for all of them while the body is recorded.
    """

    tensors: Tensors
    is_stack: bool

    @property
    def meta(self) -> Meta:
        """The meta of one iteration's value."""
        meta = self.tensors[0]._meta
        return dense_meta(meta.shape[1:], meta.dtype) if self.is_stack else meta

    @property
    def sharding(self) -> Sharding | None:
        """The sharding of one iteration's value, where it is known."""
        sharding = self.tensors[0]._storage.sharding if self.tensors[0]._view is None else None
        if sharding is None or not self.is_stack:
            return sharding
        first, *rest = sharding.spec.dims or (UNSHARDED,)
        return sharding.with_spec(Spec(tuple(rest))) if first == UNSHARDED else None

    def needs_grad(self) -> bool:
        return any(tensor.requires_grad for tensor in self.tensors)

    def values(self) -> list[Value]:
        """The operands of the loop: in their stored sharding, where an iteration may gather them."""
        return [operand(tensor) if self.is_stack else read(tensor) for tensor in self.tensors]


# Records the body: (the carry of an iteration, its xs) -> (the carry of the next iteration, its ys).
Body = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def run_loop(
    name: str, body: Body, init: Tensors, xs: Sequence[ScanInput], iterations: int, *, reverse: bool = False
) -> tuple[Tensors, Tensors, list[Tensors | None]]:
    """Records a loop: (the last carry, the ys, for each of `xs` the tensors that the body wrote, one per iteration)."""
    init = as_own(init)
    xs = [dataclasses.replace(x, tensors=as_own(x.tensors)) if x.is_stack else x for x in xs]
    with SYNC_LOCK, LOCK:
        with Capture(name) as capture:
            loop = _Loop(capture, body, init, xs, iterations, reverse)
        loop.draw(capture.draws.further(iterations))
        made = list(_Apply.apply(loop, *loop.inputs)) if loop.is_differentiable else loop.forward()
    recorded()
    return loop.unpacked(made)


class _Loop:
    """One call: the forward op and the backward op with their operands."""

    def __init__(
        self, capture: Capture, body: Body, init: Tensors, xs: Sequence[ScanInput], iterations: int, reverse: bool
    ) -> None:
        self.name, self.iterations, self.reverse = capture.name, iterations, reverse
        self.init, self.xs = init, xs
        is_on = torch.is_grad_enabled()
        carry = [
            capture.stand_in(
                dense_meta(tensor.shape, tensor.dtype), _sharding(tensor), requires_grad=is_on and _is_float(tensor)
            )
            for tensor in init
        ]
        self.carry_given = list(capture.given)
        stand_ins = []
        for x in xs:
            needs = is_on and x.needs_grad()
            if x.is_stack:
                stand_ins.append(capture.stand_in(x.meta, x.sharding, requires_grad=needs))
            else:
                stand_ins.append(capture.swapped(x.tensors[0], requires_grad=needs))
        self.xs_given = capture.given[len(carry) :]
        fresh = [tensor for tensor, x in zip(stand_ins, xs, strict=True) if x.is_stack]
        in_place = f"{self.name}: the body writes in place into a slice of xs; make a new tensor instead (x = x + 1)"
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
        """Notes in-place writes: storages from outside become part of the carry, written xs become results."""
        self.written = capture.written()
        capture.given += [before for before, _ in self.written.values()]
        self.rewritten = [
            i
            for i, (tensor, given) in enumerate(zip(stand_ins, self.xs_given, strict=True))
            if not self.xs[i].is_stack and not capture.passes_on(tensor._storage.value, given)
        ]
        self.new_xs = [stand_ins[i]._storage.value for i in self.rewritten]

    def _find_needs(self, capture: Capture, carry: Tensors, stand_ins: Tensors) -> None:
        """Finds the values of the carry, the xs and the tensors from outside that have a gradient."""
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
        self.xs_needs = [i for i, tensor in enumerate(stand_ins) if tensor in met]
        known = {*carry, *stand_ins}
        self.closed_over = [tensor for tensor in met if tensor not in known]
        self.is_differentiable = any(has_gradient)
        for tensor in self.closed_over:
            if tensor._storage in self.written:
                raise NotImplementedError(
                    f"{self.name}: the body writes in place into a tensor from outside that requires a gradient "
                    f"({tensor._meta!r}); make it part of the carry instead"
                )

    def _differentiate(self, capture: Capture, carry: Tensors, stand_ins: Tensors) -> list[Value]:
        """The gradients of one iteration: of the carry, of closed-over tensors (summed so far), of the xs."""
        next_generation()  # values gathered in forward are gathered again in backward
        outputs = [*self.carried, *self.stacked]
        chosen = [i for i, has in enumerate(self.has_gradient) if has]
        self.stack_chosen = [i for i in chosen if i >= len(carry)]
        arriving = {
            i: capture.stand_in(dense_meta(outputs[i].shape, outputs[i].dtype))
            for i in (*self.carry_needs, *self.stack_chosen)
        }
        self.carry_arriving = [_value(arriving[i]) for i in self.carry_needs]
        self.stack_arriving = [_value(arriving[i]) for i in self.stack_chosen]
        wanted = [carry[i] for i in self.carry_needs], self.closed_over, [stand_ins[i] for i in self.xs_needs]
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
                    shard_gradient(tensor._storage, gradient)
                    gradient = so_far + gradient
                gradients.append(operand(so_far if gradient is None else gradient))
            self.sums_given = capture.given[len(capture.given) - len(self.sums) :]
            for tensor in wanted[2]:
                gradient = next(queue)
                gradient = _zeros_like(tensor) if gradient is None else gradient
                shard_gradient(tensor._storage, gradient)
                gradients.append(operand(gradient))
        return gradients

    def _make_forward(self, capture: Capture, gradients: list[Value], middle: int) -> None:
        befores = [before for before, _ in self.written.values()]
        self.saved_values: list[Value] = []
        if gradients:
            rewritten = {value_name(self.xs_given[i]) for i in self.rewritten}
            xs = [given for given in self.xs_given if value_name(given) not in rewritten]
            arriving = [*self.carry_arriving, *self.sums_given, *self.stack_arriving]
            self.saved_values = saved(capture, gradients, [*xs, *arriving], middle)
        carried = [operand(tensor) for tensor in self.carried] + [after for _, after in self.written.values()]
        stacked = [operand(tensor) for tensor in self.stacked]
        roots = [*carried, *stacked, *self.saved_values, *self.new_xs]
        given = [*self.carry_given, *befores, *self.xs_given]
        constants = capture.outside(roots, given)
        self.forward_constants = constants
        are_stacks = (*[True] * (len(stacked) + len(self.saved_values)), *[False] * len(self.new_xs))
        body = Region.of(roots, [*constants, *given])
        self.forward_scan = Scan(
            body, self.iterations, len(constants), len(carried), tuple(x.is_stack for x in self.xs), are_stacks,
            reverse=self.reverse,
        )  # fmt: skip

    def _make_backward(self, capture: Capture, gradients: list[Value]) -> None:
        fixed = [*self.carry_arriving, *self.sums_given]
        saved_names = {value_name(value) for value in self.saved_values}
        every = [*fixed, *self.saved_values, *self.xs_given, *self.stack_arriving]
        constants = capture.outside(gradients, every)
        read = {value_name(v) for node in capture.nodes(gradients, every) for v in node.operands}
        read |= {value_name(value) for value in gradients}
        self.xs_read = [
            i
            for i, given in enumerate(self.xs_given)
            if value_name(given) in read and value_name(given) not in saved_names
        ]
        xs = [self.xs_given[i] for i in self.xs_read]
        given = [*constants, *fixed, *self.saved_values, *xs, *self.stack_arriving]
        self.constants = capture.tensors(constants)
        are_stacks = [self.xs[i].is_stack for i in self.xs_read]
        self.backward_scan = Scan(
            Region.of(gradients, given), self.iterations, len(constants), len(fixed),
            (*[True] * len(self.saved_values), *are_stacks, *[True] * len(self.stack_arriving)),
            tuple(self.xs[i].is_stack for i in self.xs_needs), reverse=not self.reverse,
        )  # fmt: skip

    def draw(self, iterations: list[list[Draw]]) -> None:
        """Notes the draws of each iteration, by those of the first one, which the body was recorded with."""
        by_place = iterations[::-1] if self.reverse else iterations
        first = reversed(list(enumerate(iterations[0])))
        self.draws = {draw: [each[place] for each in by_place] for place, draw in first}

    # --- running ------------------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> Tensors:
        """The tensors that may have a gradient, and the rest of the carry and the xs."""
        return [*self.init, *self.closed_over, *(tensor for x in self.xs for tensor in x.tensors)]

    def forward(self) -> Tensors:
        """Records the loop: the carry, the ys, the rewritten xs one by one, then the saved values."""
        befores = [before for before, _ in self.written.values()]
        operands = [*self.forward_constants, *(operand(tensor) for tensor in self.init), *befores]
        operands += [value for x in self.xs for value in x.values()]
        made = self._record(self.name, self.forward_scan, operands)
        count = self.num_carried
        for storage, value in zip(self.written, made[count : count + len(self.written)], strict=True):
            storage.write(value)
        made = made[:count] + made[count + len(self.written) :]
        start, end = count + self.num_stacked, count + self.num_stacked + self.num_saved
        for name in _FORWARD_ONLY:
            vars(self).pop(name, None)  # until backward only the part of the recording that it reads is held
        return _tensors([*made[:start], *made[end:], *made[start:end]])

    def backward(self, kept: Sequence[Any], arriving: Sequence[Any]) -> list[Any]:
        """Records the backward loop; returns a gradient for each of `inputs`."""
        queue = iter(kept)
        constants = [next(queue) for _ in self.constants]
        stacks = [next(queue) for _ in range(self.num_saved)]
        xs = [[next(queue) for _ in self.xs[i].tensors] for i in self.xs_read]
        sums = []
        for tensor in self.closed_over:
            zeros: Any = torch.zeros(tensor.shape, dtype=tensor.dtype, device="xla")
            if tensor._storage.sharding is not None and tensor._view is None:
                annotate(zeros, tensor._storage.sharding)
            sums.append(zeros)
        with LOCK:
            operands = [operand(tensor) for tensor in (*constants, *(arriving[i] for i in self.carry_needs), *sums)]
            operands += [operand(tensor) for tensor in stacks]
            for i, tensors in zip(self.xs_read, xs, strict=True):
                operands += [operand(each) if self.xs[i].is_stack else read(each) for each in tensors]
            operands += [operand(arriving[i]) for i in self.stack_chosen]
            made = iter(_tensors(self._record(f"{self.name}.backward", self.backward_scan, operands)))
        gradients: list[Any] = [None] * self.num_carried
        for i in self.carry_needs:
            gradients[i] = next(made)
        for tensor in self.closed_over:
            gradient = next(made)
            gradient._storage.sharding = _sharding(tensor)
            gradients.append(gradient)
        for i, x in enumerate(self.xs):
            for tensor in x.tensors:
                if i not in self.xs_needs:
                    gradients.append(None)
                    continue
                gradient = next(made)
                # The gradient of a stack has the sharding that the body gave it.
                gradient._storage.sharding = None if x.is_stack else _sharding(tensor)
                gradients.append(gradient)
        recorded()
        return gradients

    def kept(self) -> Tensors:
        """The caller's tensors that backward reads."""
        return [*self.constants, *(tensor for i in self.xs_read for tensor in self.xs[i].tensors)]

    def unpacked(self, made: Tensors) -> tuple[Tensors, Tensors, list[Tensors | None]]:
        """Returns the results by kind: see `run_loop`."""
        count, end = self.num_carried, self.num_carried + self.num_stacked
        queue = iter(made[end:])
        new: list[Tensors | None] = [None] * len(self.xs)
        for i in self.rewritten:
            new[i] = [next(queue) for _ in range(self.iterations)]
        return made[:count], made[count:end], new

    def _record(self, name: str, scan: Scan, operands: list[Value]) -> list[Value]:
        op, numbers = self._op(name, scan, operands)
        return list(results(record_here(op, operands, numbers, sys._getframe(1), graph_task())))

    def _op(self, name: str, scan: Scan, operands: Sequence[Value]) -> tuple[OpSpec, list[float | int]]:
        steps: list[Step] = []
        numbers: list[float | int] = []
        for step, own in by_iteration(scan.body.nodes, self.draws, name):
            steps.append(step)
            numbers += own
        return scan_op(name, scan.with_steps(tuple(steps)), [value.meta for value in operands]), numbers


# The attributes of a `_Loop` that its backward does not need.
_FORWARD_ONLY = (
    "init", "written", "new_xs", "saved_values", "carry_given", "xs_given", "forward_constants", "forward_scan",
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
    return [wrap(value.meta, Storage(value, value.meta)) for value in values]


def _zeros_like(tensor: XlaTensor) -> Any:
    return torch.zeros_like(tensor)


def _value(tensor: XlaTensor) -> Value:
    return tensor._storage.value


def _sharding(tensor: XlaTensor) -> Sharding | None:
    return tensor._storage.sharding if tensor._view is None else None


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
