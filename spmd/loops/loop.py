"""A captured body becomes a loop of known trip count, with its gradient: a loop in the opposite
direction.

Not here: what users call (`scan`, `layers`).
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core import Spec, XlaTensor, annotations, dense_meta, specs, storage_of
from ..core.extend import (
    Draw,
    Loop,
    Region,
    Value,
    Y,
    loop_counter,
    loop_op,
    reads,
    store,
    views,
    walks,
)
from .capture import Capture, sharded_gradient
from .gradient import (
    Backward,
    Tensors,
    as_one_op,
    record,
    saved,
    sharding_of,
    tensors,
    with_gradient,
)
from .vma import as_own


@dataclass(frozen=True, slots=True, eq=False)
class ScanInput:
    """The values of which each iteration reads one: a stack, or, for layers, a tensor per
    iteration.

    Of the latter the first stands for all of them while the body is recorded.
    """

    tensors: Tensors
    is_stack: bool

    def stand_in(self, capture: Capture) -> XlaTensor:
        """Returns the tensor that stands for one iteration's value in the body."""
        tensor = self.tensors[0]
        needs = torch.is_grad_enabled() and any(source.requires_grad for source in self.tensors)
        if not self.is_stack:
            return capture.swapped(tensor, requires_grad=needs)
        sharding = sharding_of(tensor)
        if sharding is not None:
            first, *row_dims = sharding.spec.dims or (specs.UNSHARDED,)
            sharding = (
                sharding.with_spec(Spec(tuple(row_dims))) if first == specs.UNSHARDED else None
            )
        return capture.stand_in(
            dense_meta(tensor.shape[1:], tensor.dtype), sharding, requires_grad=needs
        )

    def values(self) -> list[Value]:
        """The operands of the loop."""
        return [_x(self.is_stack, tensor) for tensor in self.tensors]


def _x(is_stack: bool, tensor: XlaTensor) -> Value:
    """Returns the operand for an x; for a row its stored sharding, where an iteration may gather
    it."""
    return reads.operand(tensor) if is_stack else views.read(tensor)


# Records the body: (the carry of an iteration, its xs) -> (the carry of the next iteration, its
# ys).
Body = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]


def run_loop(
    name: str,
    body: Body,
    init: Tensors,
    xs: Sequence[ScanInput],
    iterations: int,
    *,
    reverse: bool = False,
) -> tuple[Tensors, Tensors, dict[int, Tensors]]:
    """Records a loop: (the last carry, the ys, by the place in `xs` the tensors that the body
    wrote, one per iteration)."""
    init = as_own(init)
    xs = [dataclasses.replace(x, tensors=as_own(x.tensors)) if x.is_stack else x for x in xs]
    with as_one_op():
        with Capture(name) as capture:
            loop = _Loop(capture, body, init, xs, iterations, reverse)
        loop.draw(capture.draws.further(iterations))
        queue = iter(with_gradient(name, loop.inputs, loop.forward, loop.backward))
    carry, ys = (list(itertools.islice(queue, count)) for count in (len(init), loop.num_stacked))
    return carry, ys, {i: list(itertools.islice(queue, iterations)) for i in loop.rewritten}


class _Loop:
    """One call: the body and the gradient of one iteration, of which the forward op and the
    backward op are made.

    The body takes the carry, the storages from outside that it writes (a part of the carry), and
    the xs; it returns the same carry, the ys, the values saved for backward, and the xs that it
    wrote.
    """

    def __init__(
        self,
        capture: Capture,
        body: Body,
        init: Tensors,
        xs: Sequence[ScanInput],
        iterations: int,
        reverse: bool,
    ) -> None:
        self.capture, self.init, self.xs = capture, init, xs
        self.iterations, self.reverse = iterations, reverse
        self.draws: dict[Draw, list[Draw]] = {}
        is_on = torch.is_grad_enabled()
        self.carry = [
            capture.stand_in(
                dense_meta(tensor.shape, tensor.dtype),
                sharding_of(tensor),
                requires_grad=is_on and (tensor.is_floating_point() or tensor.is_complex()),
            )
            for tensor in init
        ]
        self.stand_ins = [x.stand_in(capture) for x in xs]
        self.carry_values, self.xs_values = (
            capture.arguments[: len(init)],
            capture.arguments[len(init) :],
        )
        self.carried, self.stacked = self._run(body)
        self.num_stacked = len(self.stacked)
        self._note_writes()
        self._find_needs()
        middle = store.next_serial()
        gradients = self._differentiate()
        self._make_forward(gradients, middle)
        self.inputs, self.kept_before, self.kept_after = Tensors(), Tensors(), Tensors()
        self.backward = self._backward(gradients) if gradients else None
        # tensors of the body, which end with it
        del self.carry, self.carried, self.stand_ins, self.stacked

    # --- recording --------------------------------------------------------------------------------

    def _run(self, body: Body) -> tuple[Tensors, Tensors]:
        carry = list(map(self.capture.own, self.carry))
        rows = [tensor for tensor, x in zip(self.stand_ins, self.xs, strict=True) if x.is_stack]
        name = self.capture.name
        refusal = (
            f"{name}: the body writes in place into a slice of xs; make a new tensor instead (x = "
            "x + 1)"
        )
        return self.capture.run(body, carry, self.stand_ins, unwritten=rows, refusal=refusal)

    def _note_writes(self) -> None:
        """Notes in-place writes: storages from outside become part of the carry, written xs become
        results."""
        written = self.capture.written()
        self.written, self.after = list(written), [after for _, after in written.values()]
        self.outside = [outside for outside, _ in written.values()]
        self.capture.arguments += self.outside
        self.rewritten = [
            i
            for i, (tensor, x_value) in enumerate(zip(self.stand_ins, self.xs_values, strict=True))
            if not self.xs[i].is_stack
            and not self.capture.passes_on(storage_of(tensor).value, x_value)
        ]
        self.new_xs = [storage_of(self.stand_ins[i]).value for i in self.rewritten]

    def _find_needs(self) -> None:
        """Finds the values of the carry, the xs and the tensors from outside that have a
        gradient."""
        reached = [self.capture.reached(tensor) for tensor in (*self.carried, *self.stacked)]
        needs = [tensor.requires_grad and torch.is_grad_enabled() for tensor in self.init]
        # a gradient that reaches a result of the carry reaches the same place of every iteration
        while True:
            without = {tensor for tensor, need in zip(self.carry, needs, strict=True) if not need}
            self.has_gradient = [not sources.keys() <= without for sources in reached]
            previous, needs = (
                needs,
                [need or has for need, has in zip(needs, self.has_gradient, strict=False)],
            )
            if needs == previous:
                break
        self.carry_needs = [i for i, need in enumerate(needs) if need]
        output_indices = itertools.compress(reached, self.has_gradient)
        met = {tensor: None for sources in output_indices for tensor in sources}
        self.xs_needs = [i for i, tensor in enumerate(self.stand_ins) if tensor in met]
        self.closed_over = [
            tensor for tensor in met if tensor not in {*self.carry, *self.stand_ins}
        ]
        self.capture.refuse_written(
            self.closed_over, self.written, "make it part of the carry instead"
        )

    def _differentiate(self) -> list[Value]:
        """The gradients of one iteration: of the carry, of closed-over tensors (summed so far), of
        the xs."""
        capture, outputs = self.capture, [*self.carried, *self.stacked]
        output_indices = [i for i, has in enumerate(self.has_gradient) if has]
        self.stack_chosen = [i for i in output_indices if i >= len(self.carry)]
        arriving = {
            i: capture.stand_in(dense_meta(outputs[i].shape, outputs[i].dtype))
            for i in (*self.carry_needs, *self.stack_chosen)
        }
        self.carry_arriving = [storage_of(arriving[i]).value for i in self.carry_needs]
        self.stack_arriving = [storage_of(arriving[i]).value for i in self.stack_chosen]
        sources = [
            *(self.carry[i] for i in self.carry_needs),
            *self.closed_over,
            *(self.stand_ins[i] for i in self.xs_needs),
        ]
        sums = {
            tensor: capture.stand_in(dense_meta(tensor.shape, tensor.dtype))
            for tensor in self.closed_over
        }
        self.sums_given = [storage_of(so_far).value for so_far in sums.values()]
        carry = {*self.carry}

        def value_of(source: XlaTensor, gradient: Any) -> Value:
            so_far = sums.get(source)
            if so_far is None:
                return sharded_gradient(source, gradient, unsharded=source in carry)
            if gradient is None:
                return reads.operand(so_far)
            sharded_gradient(source, gradient)
            return reads.operand(so_far + gradient)

        return capture.grad(
            [outputs[i] for i in output_indices],
            sources,
            [arriving[i] for i in output_indices],
            value_of,
        )

    def _make_forward(self, gradients: list[Value], middle: int) -> None:
        unwritten = [x_value for i, x_value in enumerate(self.xs_values) if i not in self.rewritten]
        arriving = [*self.carry_arriving, *self.sums_given, *self.stack_arriving]
        self.saved = saved(self.capture, gradients, [*unwritten, *arriving], middle)
        carried = [*map(reads.operand, self.carried), *self.after]
        roots = [*carried, *map(reads.operand, self.stacked), *self.saved, *self.new_xs]
        ys = [*[Y(is_stack=True)] * (self.num_stacked + len(self.saved)), *[Y()] * len(self.new_xs)]
        rows = zip((x.is_stack for x in self.xs), self.xs_values, strict=True)
        self.constants, self.loop = self._loop(
            roots, [*self.carry_values, *self.outside], [*rows], ys, self.reverse
        )

    def _loop(
        self,
        roots: list[Value],
        carry: list[Value],
        rows: list[tuple[bool, Value]],
        ys: list[Y],
        reverse: bool,
    ) -> tuple[list[Value], Loop]:
        """Returns a loop over ops of the body, behind the constants that it needs."""
        inputs = [*carry, *(value for _, value in rows)]
        constants = self.capture.outside(roots, inputs)
        body, are_stacks = (
            Region.of(roots, [*constants, *inputs]),
            tuple(is_stack for is_stack, _ in rows),
        )
        return constants, Loop(
            body,
            self.iterations,
            len(constants),
            len(carry),
            are_stacks,
            tuple(ys),
            reverse=reverse,
        )

    def _backward(self, gradients: list[Value]) -> Backward:
        """Returns the function that records the backward loop; it holds no more of the recording
        than it reads."""
        fixed = [*self.carry_arriving, *self.sums_given]
        every = [*fixed, *self.saved, *self.xs_values, *self.stack_arriving]
        read = self.capture.read(gradients, every) - set(map(walks.value_name, self.saved))
        xs_read = [
            i for i, x_value in enumerate(self.xs_values) if walks.value_name(x_value) in read
        ]
        rows = [
            *((True, value) for value in self.saved),
            *((self.xs[i].is_stack, self.xs_values[i]) for i in xs_read),
            *((True, value) for value in self.stack_arriving),
        ]
        xs_needs = [self.xs[i] for i in self.xs_needs]
        ys = [Y(x.is_stack) for x in xs_needs]
        constants, loop = self._loop(gradients, fixed, rows, ys, not self.reverse)
        self.kept_before = self.capture.tensors(constants)
        self.kept_after = [tensor for i in xs_read for tensor in self.xs[i].tensors]
        needs = [self.init[i] for i in self.carry_needs]
        self.inputs = [
            *needs,
            *self.closed_over,
            *(tensor for x in xs_needs for tensor in x.tensors),
        ]
        # The gradient of a carry and of a stack has the sharding that the body gave it.
        layer_tensors = [None if x.is_stack else tensor for x in xs_needs for tensor in x.tensors]
        sharded_like = [*[None] * len(needs), *self.closed_over, *layer_tensors]
        are_stacks = [
            *[True] * len(self.saved),
            *(self.xs[i].is_stack for i in xs_read for _ in self.xs[i].tensors),
        ]
        name, count, draws = self.capture.name, len(constants), self.draws
        closed_over, carry_needs, stack_chosen = (
            self.closed_over,
            self.carry_needs,
            self.stack_chosen,
        )

        def backward(saved_tensors: Sequence[Any], arriving: Sequence[Any]) -> Tensors:
            carry = [
                *saved_tensors[:count],
                *(arriving[i] for i in carry_needs),
                *map(_zeros, closed_over),
            ]
            operands = list(map(reads.operand, carry))
            operands += map(_x, are_stacks, saved_tensors[count:])
            operands += [reads.operand(arriving[i]) for i in stack_chosen]
            shardings = [None if like is None else sharding_of(like) for like in sharded_like]
            return tensors(_record(f"{name}.backward", loop, operands, draws), shardings)

        return backward

    # --- running ----------------------------------------------------------------------------------

    def draw(self, iterations: list[list[Draw]]) -> None:
        """Notes the draws of each iteration, by those of the first one, which the body was recorded
        with."""
        by_place = iterations[::-1] if self.reverse else iterations
        first = reversed(list(enumerate(iterations[0])))
        self.draws |= {
            draw: [iteration_draws[index] for iteration_draws in by_place] for index, draw in first
        }

    def forward(self) -> tuple[Tensors, Tensors, list[bool]]:
        """Records the loop: the carry, the ys, the rewritten xs one by one; the tensors that
        backward reads."""
        operands = [*self.constants, *map(reads.operand, self.init), *self.outside]
        operands += [value for x in self.xs for value in x.values()]
        queue = iter(_record(self.capture.name, self.loop, operands, self.draws))
        carried = list(itertools.islice(queue, len(self.init)))
        for storage, value in zip(self.written, queue, strict=False):
            storage.write(value)
        stacked, saved_values = (
            list(itertools.islice(queue, count)) for count in (self.num_stacked, len(self.saved))
        )
        result = tensors([*carried, *stacked, *queue])
        has_gradient = [*self.has_gradient, *[False] * (len(result) - len(self.has_gradient))]
        return result, [*self.kept_before, *tensors(saved_values), *self.kept_after], has_gradient


def _record(
    name: str, loop: Loop, operands: list[Value], draws: dict[Draw, list[Draw]]
) -> list[Value]:
    """Records a loop whose body makes these draws, each with those of all iterations in its
    place."""
    steps: list[loop_counter.Step] = []
    numbers: list[float | int] = []
    for node in loop.body.nodes:
        series: dict[int, list[int]] = {}
        for places in node.op.draws:
            seed, count = (int(node.numbers[index]) for index in places)
            drawn = draws.get((seed, count))
            if drawn is None:
                raise NotImplementedError(
                    f"{name}: the body draws random numbers apart from the stream "
                    "(torch.random.fork_rng, or a seed of its own); draw them outside and pass "
                    "them in"
                )
            series |= zip(places, map(list, zip(*drawn, strict=True)), strict=True)
        for index, number in enumerate(node.numbers):
            step, values = _progression(series[index]) if index in series else (0, [number])
            steps.append(step)
            numbers += values
    loop = dataclasses.replace(loop, steps=tuple(steps))
    return record(loop_op(name, loop, [value.meta for value in operands]), operands, numbers)


def _progression(numbers: list[int]) -> tuple[loop_counter.Step, list[int]]:
    """Returns a scalar argument's step and its number, or its numbers of all iterations."""
    step = numbers[1] - numbers[0] if len(numbers) > 1 else 0
    if all(later - earlier == step for earlier, later in itertools.pairwise(numbers)):
        return step, numbers[:1]
    return loop_counter.EACH, numbers


def _zeros(like: XlaTensor) -> Any:
    """Returns the first sum of a tensor's gradients, sharded like the tensor."""
    zeros: Any = torch.zeros(like.shape, dtype=like.dtype, device="xla")
    if (sharding := sharding_of(like)) is not None:
        annotations.annotate(zeros, sharding)
    return zeros
