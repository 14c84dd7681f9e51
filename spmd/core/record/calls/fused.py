"""Composite ops of torch: recorded as one op with one gradient (linear layers, cross entropy), or
with better errors.

torch decomposes a composite op before the device sees it. The kernels here are registered in place
of that, on autograd's key.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import forward_ad

from ....ops.loss import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD
from ...graph.source import ends_at_user_line
from ..refusals import refusal
from .bounds import Range, check_ranges

aten = torch.ops.aten

Maybe = Tensor | None


def is_transformed() -> bool:
    """True inside forward-mode differentiation or torch.func: neither has a rule for an autograd
    function."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def takes_torchs_ops() -> bool:
    """True if the caller needs torch's own ops and their derivatives: a transform, or a dispatch
    mode such as selective checkpointing or a counter of flops."""
    return is_transformed() or torch._C._len_torch_dispatch_stack() > 0


# --- linear ---------------------------------------------------------------------------------------

# torch has a derivative formula of linear in C++, for backends with a kernel of their own. It calls
# `linear_backward`, which has a formula, too. The formula is registered on autograd's alias key. On
# the device's own autograd key `linear` below hides it: it is called by the key of such a backend.
_BY_FORMULA = torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutogradNestedTensor
) | torch._C.DispatchKeySet(torch._C.DispatchKey.Python)


def linear(input: Tensor, weight: Tensor, bias: Maybe = None) -> Tensor:
    """torch's `linear`: one op for operands that torch's derivative formula takes."""
    is_usual = weight.dim() == 2 and (bias is None or bias.dim() == 1) and not weight.is_complex()
    if not is_usual or takes_torchs_ops():
        return aten.linear.default.decompose(input, weight, bias)
    return aten.linear.default.redispatch(_BY_FORMULA, input, weight, bias)


# --- cross entropy --------------------------------------------------------------------------------


class LossKind(NamedTuple):
    """A loss. op, gradients: the forward and the backward; in_torchs_ops: the loss in ops of torch,
    for gradients of any order. differentiable: indices of differentiable operands. Operands come
    before settings."""

    op: OpOverload
    gradients: Callable[..., Sequence[Maybe]]
    in_torchs_ops: Callable[..., Tensor]
    num_operands: int
    differentiable: tuple[int, ...]


class Loss(torch.autograd.Function):
    """A loss as one op; its gradient reads the operands and one number per target."""

    @staticmethod
    def forward(ctx: Any, kind: LossKind, *args: object) -> Tensor:
        loss, logsumexp, total_weight = kind.op(*args)
        ctx.kind, ctx.settings = kind, args[kind.num_operands :]
        ctx.save_for_backward(*args[: kind.num_operands], logsumexp, total_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Maybe, ...]:
        """The gradients of the differentiable operands; under create_graph by torch's own
        formulas."""
        kind, (*operands, logsumexp, total_weight) = ctx.kind, ctx.saved_tensors
        # `kind` is the first input.
        output_mask = [ctx.needs_input_grad[1 + index] for index in kind.differentiable]
        # create_graph: torch's formulas have a gradient of the gradient
        if torch.is_grad_enabled():
            loss = kind.in_torchs_ops(*operands, *ctx.settings)
            inputs = [
                operands[index] for index in itertools.compress(kind.differentiable, output_mask)
            ]
            result = iter(torch.autograd.grad(loss, inputs, grad_output, create_graph=True))
            grads: Sequence[Maybe] = [
                next(result) if is_needed else None for is_needed in output_mask
            ]
        else:
            grads = kind.gradients(
                grad_output, *operands, *ctx.settings, logsumexp, total_weight, output_mask
            )
        grad_of = dict(zip(kind.differentiable, grads, strict=True))
        return None, *map(grad_of.get, range(len(operands) + len(ctx.settings)))


IN_TORCHS_OPS = aten.cross_entropy_loss.default.decompose
_CROSS_ENTROPY = LossKind(
    CROSS_ENTROPY, lambda *args: [CROSS_ENTROPY_BACKWARD(*args[:-1])], IN_TORCHS_OPS, 3, (0,)
)


@ends_at_user_line
def cross_entropy(
    self: Tensor,
    target: Tensor,
    weight: Maybe = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """torch's `cross_entropy_loss`: one op where targets are class indices."""
    args = (self, target, weight, reduction, ignore_index, label_smoothing)
    if target.is_floating_point() and target.shape != self.shape:
        classes = [*self.shape[:1], *self.shape[2:]] if self.dim() > 1 else []
        text = (
            f"cross_entropy: target {list(target.shape)} is {target.dtype}; expected torch.int64 "
            f"indices of classes, shape {classes}, or probabilities, shape {list(self.shape)}; "
            "write target.long() for indices"
        )
        raise RuntimeError(text)
    if (
        target.is_floating_point()
        or (weight is not None and weight.requires_grad)
        or takes_torchs_ops()
    ):
        return IN_TORCHS_OPS(*args)
    return Loss.apply(_CROSS_ENTROPY, *args)


@ends_at_user_line
def one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """torch's `one_hot`, with its errors for classes on the host."""
    if self.dtype == torch.int64:
        highest = num_classes - 1 if num_classes > 0 else math.inf
        text = (
            f"{{op}}: Class values must be smaller than num_classes, got {{0}} of {num_classes} "
            "classes"
        )
        negative = Range(self, 0, math.inf, "{op}: Class values must be non-negative, got {0}")
        check_ranges("one_hot", [negative, Range(self, 0, highest, text)])
    # Not `decompose`: torch's decomposition in Python reads a condition, a sync.
    return aten.one_hot.default._op_dk(
        torch._C.DispatchKey.CompositeImplicitAutograd, self, num_classes
    )


# --- connectionist temporal classification --------------------------------------------------------


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """torch's `ctc_loss` of lengths as tensors, also of CPU tensors, as torch's GPU kernels require
    them."""
    lengths = (x.to(log_probs.device) for x in (input_lengths, target_lengths))
    return aten.ctc_loss.Tensor.decompose(
        log_probs, targets, *lengths, blank, reduction, zero_infinity
    )


# --- normalization --------------------------------------------------------------------------------


def _checked(name: str) -> Callable[..., Tensor]:
    """The kernel of one of torch's composites. Its errors name the op, the shapes of the arguments
    and the user's line, as those of dispatch do."""
    overload = getattr(aten, name).default

    @ends_at_user_line
    def layer(*args: object, **kwargs: object) -> Tensor:
        try:
            return overload._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        except RuntimeError as error:
            if type(error) is not RuntimeError:
                raise
            raise refusal(overload, error, args, kwargs) from None

    return layer


# By torch's name of the overload; autograd is inside.
KERNELS: dict[str, Callable[..., Tensor]] = {
    **{name: _checked(name) for name in ("batch_norm", "group_norm", "rms_norm", "prelu")},
    "linear": linear,
    "cross_entropy_loss": cross_entropy,
    "one_hot": one_hot,
    "ctc_loss.Tensor": ctc_loss,
}
