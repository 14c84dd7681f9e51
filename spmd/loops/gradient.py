"""An op with a recorded body as autograd sees it: the op, its results, and a second op for its
gradient; and the values that the first saves for the second.

As in a Python loop, those are the values that autograd saves, less what backward has anyway: a
view, cast or gather of weights and constants is recomputed from them, and a view of a saved value
from that value. Not here: the recording of the body (`capture`), and what becomes of it (`loop`,
`cond`, `while_loop`).
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ..core import LOCK, Sharding, Storage, XlaTensor, storage_of, view_of, wrap
from ..core.extend import (
    SYNC_LOCK,
    Node,
    OpSpec,
    Value,
    body,
    calls,
    lowerings,
    op_watch,
    record_calls,
    walks,
)
from .capture import Capture

aten = torch.ops.aten
Tensors = list[XlaTensor]

# Records the op: its results, the tensors that its gradient needs, and for each result whether it
# has a gradient.
Forward = Callable[[], tuple[Tensors, Sequence[torch.Tensor], Sequence[bool]]]
# Records the op of the gradient, of the tensors that were kept and the gradients of the results: a
# gradient per input. Later: of the gradients of the results alone.
Later = Callable[[Sequence[Any]], Sequence[torch.Tensor | None]]
Backward = Callable[[Sequence[Any], Sequence[Any]], Sequence[torch.Tensor | None]]


@contextlib.contextmanager
def as_one_op() -> Iterator[None]:
    """Context in which a body is captured and its op is recorded, with nothing of another thread in
    between."""
    with SYNC_LOCK, LOCK:
        yield
    op_watch.note_own_op()


def with_gradient(
    name: str,
    inputs: Sequence[torch.Tensor],
    forward: Forward,
    backward: Backward | None,
    zeros: bool = True,
) -> Tensors:
    """Records an op and returns its results; gradients reach `inputs`, of which there may be none.

    Until backward no more of the recording is held than `backward` refers to. A gradient of the
    gradient raises NotImplementedError with the op's name; without a name that is up to `backward`.
    zeros: it gets zeros and not None for a result without a gradient.
    """
    if not inputs:
        return forward()[0]
    is_looked_at = torch._C._are_functorch_transforms_active() or body.names.value
    apply = _Apply.apply if is_looked_at else _apply
    return list(apply(name, forward, backward, zeros, *inputs))


class Partial(list[torch.Tensor | None]):
    """The gradients of a backward pass to some of the results. later: gives those of a pass to
    others, without what was saved for the first one."""

    def __init__(self, gradients: Iterable[torch.Tensor | None], later: Later):
        super().__init__(gradients)
        self.later = later


class _Apply(torch.autograd.Function):
    # The op is recorded in here: so its line is noted under the number of the node whose backward
    # looks for it.
    @staticmethod
    def forward(
        ctx: Any,
        name: str,
        forward: Forward,
        backward: Backward,
        zeros: bool,
        *inputs: torch.Tensor,
    ) -> Any:
        result, saved_tensors, has_gradient = forward()
        ctx.op_name, ctx.gradient, ctx.later = name, backward, None
        ctx.set_materialize_grads(zeros)
        ctx.save_for_backward(*saved_tensors)
        ctx.mark_non_differentiable(
            *(tensor for tensor, has in zip(result, has_gradient, strict=True) if not has)
        )
        return tuple(result)

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        if ctx.op_name and (torch.is_grad_enabled() or are_batched(arriving)):
            kind = (
                "second derivative (create_graph=True)"
                if torch.is_grad_enabled()
                else "batched gradient (is_grads_batched=True)"
            )
            raise NotImplementedError(
                f"{ctx.op_name} has no {kind}; write it as a Python loop or branch to get one"
            )
        with LOCK:
            if ctx.later is None:
                gradients = ctx.gradient(ctx.saved_tensors, arriving)
            else:
                gradients = ctx.later(arriving)
        if type(gradients) is Partial:
            ctx.later = gradients.later
        if not torch._C._autograd._get_current_graph_task_keep_graph():
            ctx.gradient = None  # what it refers to goes, as saved tensors do
        op_watch.note_own_op()
        return None, None, None, None, *gradients


def are_batched(arriving: Iterable[Any]) -> bool:
    """True for gradients of which each stands for many (is_grads_batched=True)."""
    others = {*map(type, arriving)} - {XlaTensor, type(None)}
    return not all(issubclass(other, XlaTensor) for other in others)


# Without a look at each argument for a dead wrapper of functorch, which no tensor of ours is.
_apply = super(torch.autograd.Function, _Apply).apply


def record(op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int]) -> list[Value]:
    """Records an op with a body at the user's line and returns its results."""
    return list(
        walks.results(
            record_calls.record_here(
                op, operands, numbers, sys._getframe(1), record_calls.graph_task()
            )
        )
    )


def sharding_of(tensor: XlaTensor) -> Sharding | None:
    """Returns the annotation of a tensor; None for a view."""
    return storage_of(tensor).sharding if view_of(tensor) is None else None


def tensors(
    values: Iterable[Value], shardings: Iterable[Sharding | None] = itertools.repeat(None)
) -> Tensors:
    """Returns a new tensor of each value."""
    return [
        wrap(value.meta, Storage(value, value.meta, sharding))
        for value, sharding in zip(values, shardings, strict=False)
    ]


# --- saved values ---------------------------------------------------------------------------------

# Ops that change no more than how a value is represented: nothing is lost when they are recomputed.
_CASTS = frozenset(
    {aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default}
)
_PLACES = frozenset({"mark_sharding", "spmd.unmarked", "spmd.vary"})


def read_in_backward(
    capture: Capture, roots: Sequence[Value], at_hand: Sequence[Value], middle: int
) -> list[Value]:
    """Returns the values of the forward body that the backward body reads.

    roots: the results of backward. at_hand: values of the body that backward receives in any case.
    middle: the serial at which backward begins.
    """
    needed = {walks.value_name(value): value for value in roots}
    for node in walks.between(roots, at_hand, since=middle):
        for value in node.operands:
            needed.setdefault(walks.value_name(value), value)
    stand_ins = set(map(walks.value_name, capture.arguments))
    return [
        value
        for name, value in needed.items()
        if name in stand_ins
        or ((maker := walks.origin(value)) is not None and capture.start <= maker.serial < middle)
    ]


def saved(
    capture: Capture, roots: Sequence[Value], at_hand: Sequence[Value], middle: int
) -> list[Value]:
    """Returns the values from which the backward body computes those that it reads (see
    `read_in_backward`)."""
    stand_ins, received = (
        set(map(walks.value_name, capture.arguments)),
        set(map(walks.value_name, at_hand)),
    )
    forward = read_in_backward(capture, roots, at_hand, middle)
    fixed: set[Node | None] = set()  # with the same result in each iteration, as a mask has
    free: set[Node | None] = set()  # recomputed by cheap ops from values at hand

    def is_in(nodes: set[Node | None], value: Value) -> bool:
        name = walks.value_name(value)
        is_input = name in stand_ins or name in received
        return not is_input and (capture.is_outside(value) or walks.origin(value) in nodes)

    def is_free(value: Value) -> bool:
        return walks.value_name(value) in received or is_in(free, value)

    for node in walks.between(forward, [*capture.arguments, *at_hand], since=capture.start):
        if not node.op.draws and all(is_in(fixed, value) for value in node.operands):
            fixed.add(node)  # cheaper recomputed than saved
        if (node in fixed or _is_cheap(node)) and all(map(is_free, node.operands)):
            free.add(node)
    saved_values: dict[Any, Value] = {}
    for value in forward:
        while walks.value_name(value) not in saved_values and not is_free(value):
            base = None if walks.value_name(value) in stand_ins else _base(value)
            if base is None or (
                base.meta.nbytes > value.meta.nbytes and walks.value_name(base) not in saved_values
            ):
                saved_values[walks.value_name(value)] = value
            else:
                value = base
    return list(saved_values.values())


def _base(value: Value) -> Value | None:
    """Returns the value from which a cheap op computes this one, or None."""
    node = walks.origin(value)
    return (
        node.operands[0]
        if node is not None and len(node.operands) == 1 and _is_cheap(node)
        else None
    )


def _is_cheap(node: Node) -> bool:
    """True if an op is a view, a cast, a sharding or an optimization barrier, or fills with a
    number."""
    lowering, sharding = node.op.lowering, node.op.sharding
    if node.op.name in _PLACES:
        return sharding is None or not sharding.is_replicated()  # a gather costs
    if isinstance(lowering, lowerings.Call):
        return calls.kind_of(lowering.overload) is calls.VIEW or lowering.overload in _CASTS
    return isinstance(lowering, lowerings.Fill) or node.op.name == "spmd.renew"
