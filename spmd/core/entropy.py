"""Cross entropy of class indices: torch's composite op recorded as one, with a gradient of its own."""

from typing import Any

import torch
from torch.autograd import forward_ad

from .ops.loss import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD

aten = torch.ops.aten


class _CrossEntropy(torch.autograd.Function):
    """`spmd::cross_entropy` with its gradient, which reads the logits and one number per target."""

    @staticmethod
    def forward(ctx: Any, logits: Any, target: Any, weight: Any, *settings: Any) -> torch.Tensor:
        loss, logsumexp, total_weight = CROSS_ENTROPY(logits, target, weight, *settings)
        ctx.settings = settings
        ctx.save_for_backward(logits, target, weight, logsumexp, total_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        logits, target, weight, logsumexp, total_weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # of a gradient that has one itself, torch's formulas have one
            loss = _decomposed(logits, target, weight, *ctx.settings)
            (grad,) = torch.autograd.grad(loss, logits, grad_output, create_graph=True)
        else:
            grad = CROSS_ENTROPY_BACKWARD(grad_output, logits, target, weight, *ctx.settings, logsumexp, total_weight)
        return grad, None, None, *[None] * len(ctx.settings)


def _decomposed(*args: Any) -> torch.Tensor:
    return aten.cross_entropy_loss.default.decompose(*args)


def cross_entropy(
    self: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """torch's `cross_entropy_loss`; targets that are probabilities, and derivatives of other kinds, are torch's own."""
    args = (self, target, weight, reduction, ignore_index, label_smoothing)
    transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    if transformed or target.is_floating_point() or (weight is not None and weight.requires_grad):
        return _decomposed(*args)
    return _CrossEntropy.apply(*args)


def _whole(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    return cross_entropy(*args, **kwargs)


# By torch's name of the overload; autograd is inside.
KERNELS: dict[str, Any] = {"cross_entropy_loss": cross_entropy}
# The same for calls that arrive whole (in inference mode).
HANDLERS: dict[Any, Any] = {aten.cross_entropy_loss.default: _whole}
