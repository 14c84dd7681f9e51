"""Composite ops of torch that are recorded as one op with one gradient: linear layers and cross entropy.

torch decomposes a composite op before the device sees it. The kernels here stand where it would: on autograd's key.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from ..ops.loss import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD

aten = torch.ops.aten


def _takes_torchs_ops() -> bool:
    """Whether somebody is at work who knows torch's ops and their derivatives: forward-mode differentiation,
    torch.func, or a dispatch mode, as selective checkpointing and the counters of flops are."""
    return (
        forward_ad._current_level >= 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


# --- linear -----------------------------------------------------------------------------------------------------------

# torch has a derivative formula of linear for backends with a kernel of their own (`linear_backward`, and of that one),
# which is C++. It is under autograd's alias key, of which the device's own key, where `linear` stands, takes
# precedence: it is reached by the key of such a backend.
_BY_FORMULA = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradNestedTensor) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.Python
)


def linear(input: Any, weight: Any, bias: Any = None) -> torch.Tensor:
    """torch's `linear`: as one op of the usual operands, for which torch's formula is right."""
    is_usual = weight.dim() == 2 and (bias is None or bias.dim() == 1) and not weight.is_complex()
    if not is_usual or _takes_torchs_ops():
        return aten.linear.default.decompose(input, weight, bias)
    return aten.linear.default.redispatch(_BY_FORMULA, input, weight, bias)


# --- cross entropy ----------------------------------------------------------------------------------------------------


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
        if torch.is_grad_enabled():  # the gradient is to have one itself: that of torch's formulas has
            loss = aten.cross_entropy_loss.default.decompose(logits, target, weight, *ctx.settings)
            (grad,) = torch.autograd.grad(loss, logits, grad_output, create_graph=True)
        else:
            grad = CROSS_ENTROPY_BACKWARD(grad_output, logits, target, weight, *ctx.settings, logsumexp, total_weight)
        return grad, None, None, *[None] * len(ctx.settings)


def cross_entropy(
    self: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """torch's `cross_entropy_loss`: as one op where targets are class indices."""
    args = (self, target, weight, reduction, ignore_index, label_smoothing)
    if target.is_floating_point() or (weight is not None and weight.requires_grad) or _takes_torchs_ops():
        return aten.cross_entropy_loss.default.decompose(*args)
    return _CrossEntropy.apply(*args)


# --- connectionist temporal classification ----------------------------------------------------------------------------


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """torch's `ctc_loss` of lengths as tensors, which torch's GPU kernels want on the CPU: taken from there, too."""
    lengths = (given.to(log_probs.device) for given in (input_lengths, target_lengths))
    return aten.ctc_loss.Tensor.decompose(log_probs, targets, *lengths, blank, reduction, zero_infinity)


# By torch's name of the overload; autograd is inside.
KERNELS: dict[str, Any] = {"linear": linear, "cross_entropy_loss": cross_entropy, "ctc_loss.Tensor": ctc_loss}
# The same for calls that arrive whole (in inference mode); `linear` has a rule.
HANDLERS: dict[Any, Any] = {
    aten.cross_entropy_loss.default: lambda func, args, kwargs: cross_entropy(*args, **kwargs),
    aten.ctc_loss.Tensor: lambda func, args, kwargs: ctc_loss(*args, **kwargs),
}
