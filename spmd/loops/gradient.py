"""An op with a recorded body as autograd sees it: the op, its results, and a second op for its gradient.

Not here: the recording of the body (`capture`), and what becomes of it (`loop`, `cond`, `while_loop`).
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..core import Sharding, Storage, XlaTensor, storage_of, view_of, wrap
from ..core.extend import OpSpec, Value, record_calls, walks

Tensors = list[XlaTensor]

# Records the op: its results, the tensors that its gradient needs, and for each result whether it has a gradient.
Forward = Callable[[], tuple[Tensors, Sequence[torch.Tensor], Sequence[bool]]]
# Records the op of the gradient, of the tensors that were kept and the gradients of the results: a gradient per input.
Backward = Callable[[Sequence[Any], Sequence[Any]], Sequence[torch.Tensor]]


def with_gradient(inputs: Sequence[torch.Tensor], forward: Forward, backward: Backward | None) -> Tensors:
    """Records an op and returns its results; gradients reach `inputs`, of which there may be none.

    Until backward no more of the recording is held than `backward` refers to.
    """
    return list(_Apply.apply(forward, backward, *inputs)) if inputs else forward()[0]


class _Apply(torch.autograd.Function):
    # The op is recorded in here: so its line is noted under the number of the node whose backward looks for it.
    @staticmethod
    def forward(ctx: Any, forward: Forward, backward: Backward, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result, kept, has_gradient = forward()
        ctx.gradient = backward
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(*(tensor for tensor, has in zip(result, has_gradient, strict=True) if not has))
        return tuple(result)

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        return None, None, *ctx.gradient(ctx.saved_tensors, arriving)


def refuse_second(name: str) -> None:
    """Raises NotImplementedError where a gradient of the gradient is wanted."""
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"{name}: its gradient has no gradient (create_graph=True); write it in Python for that"
        )


def record(op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int]) -> list[Value]:
    """Records an op with a body at the user's line and returns its results."""
    return list(
        walks.results(record_calls.record_here(op, operands, numbers, sys._getframe(1), record_calls.graph_task()))
    )


def sharding_of(tensor: XlaTensor) -> Sharding | None:
    """Returns the annotation of a tensor; None for a view."""
    return storage_of(tensor).sharding if view_of(tensor) is None else None


def tensors(values: Iterable[Value]) -> Tensors:
    """Returns a new tensor of each value."""
    return [wrap(value.meta, Storage(value, value.meta)) for value in values]
