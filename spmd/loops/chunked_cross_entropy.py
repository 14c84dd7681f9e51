"""`spmd.linear_cross_entropy`: the loss of a layer's outputs, a chunk of the classes at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core import XlaTensor, config, ends_at_user_line
from ..core.extend import chunked_losses, losses

aten, ours = torch.ops.aten, torch.ops.spmd

Maybe = Tensor | None


def _in_torchs_ops(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Maybe,
    weight: Maybe,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
    logits_dtype: torch.dtype,
    max_bytes: int,
) -> Tensor:
    logits = (
        aten.linear.default.decompose(input, linear_weight, linear_bias)
        .to(logits_dtype)
        .flatten(0, -2)
    )
    settings = weight, reduction, ignore_index, label_smoothing
    loss = losses.IN_TORCHS_OPS(logits, target.flatten(), *settings)
    return loss if reduction else loss.view(target.shape)


# The gradients are of input, linear_weight and linear_bias. The backward computes the logits again
# from these.
_LINEAR_CROSS_ENTROPY = losses.LossKind(
    ours.linear_cross_entropy.default,
    ours.linear_cross_entropy_backward.default,
    _in_torchs_ops,
    num_operands=5,
    differentiable=(0, 1, 3),
)


@ends_at_user_line
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Maybe = None,
    weight: Maybe = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    max_bytes: int | None = None,
) -> Tensor:
    """The cross entropy of `F.linear(input, linear_weight, linear_bias)` without all of these
    logits in memory.

    The classes are processed in chunks, in the forward and again in the backward pass; where the
    tensors are sharded, each device processes its own. Values and gradients are those of
    `F.cross_entropy(F.linear(...).float(), ...)` within rounding. The price is a fourth product of
    the layer's size in addition to its three, in the backward pass. The plain form,
    `F.cross_entropy` of an `nn.Linear`'s outputs, becomes this by itself above
    `config.max_logits_bytes`.

    Args:
        input: [..., in_features]. linear_weight: [classes, in_features]. linear_bias: [classes].
        target: [...], class indices. weight: [classes], the classes' own weights.
        reduction, ignore_index, label_smoothing: as of `torch.nn.functional.cross_entropy`.
        max_bytes: the most bytes that the logits of a chunk take on a device (a chunk has at least
            1,024 classes); by default an eighth of `config.max_logits_bytes`.

    Returns the loss, in float32 at least. Tensors of other devices are computed by torch's own two
    ops.

    Raises ValueError for targets that are no class indices (probabilities make every logit count:
    use `F.cross_entropy`), for a layer whose weight is not two-dimensional, and for an unknown
    reduction.

    Source: `torch.nn.functional.linear_cross_entropy`; Wijmans et al. 2024, arXiv:2411.09009.

    >>> import torch, spmd
    >>> hidden, head = torch.ones(4, 8, device="xla"), torch.ones(100, 8, device="xla")
    >>> spmd.linear_cross_entropy(hidden, head, torch.tensor([1, 2, 3, 4]).to("xla"))
    tensor(4.6052, device='xla:0')
    """
    if target.is_floating_point():
        raise ValueError(
            "linear_cross_entropy: expected class indices as targets, got probabilities, for "
            "which every logit counts; use torch.nn.functional.cross_entropy of the layer's "
            "outputs"
        )
    if linear_weight.dim() != 2 or (linear_bias is not None and linear_bias.dim() != 1):
        raise ValueError(
            "linear_cross_entropy: expected linear_weight [classes, in_features] and linear_bias "
            f"[classes], got {list(linear_weight.shape)} and "
            f"{linear_bias if linear_bias is None else list(linear_bias.shape)}"
        )
    if reduction not in _REDUCTIONS:
        raise ValueError(
            f"linear_cross_entropy: expected reduction 'none', 'mean' or 'sum', got {reduction!r}"
        )
    if max_bytes is None:
        max_bytes = config.max_logits_bytes // chunked_losses.CHUNKS
    dtype = torch.promote_types(input.dtype, torch.float32)
    weight = None if weight is None else weight.to(dtype)
    operands = input, linear_weight, target, linear_bias, weight
    settings = _REDUCTIONS.index(reduction), ignore_index, label_smoothing, dtype, max_bytes
    if input.dim() == 1:
        loss = linear_cross_entropy(
            input[None],
            linear_weight,
            target[None],
            linear_bias=linear_bias,
            weight=weight,
            reduction=reduction,
            ignore_index=ignore_index,
            label_smoothing=label_smoothing,
            max_bytes=max_bytes,
        )
        return loss.squeeze()
    if not isinstance(input, XlaTensor):
        logits = F.linear(input, linear_weight, linear_bias).to(dtype).flatten(0, -2)
        loss = F.cross_entropy(
            logits, target.flatten(), weight, None, ignore_index, None, reduction, label_smoothing
        )
        return loss.view(target.shape) if reduction == "none" else loss
    if (weight is not None and weight.requires_grad) or losses.takes_torchs_ops():
        return _in_torchs_ops(*operands, *settings)
    return losses.Loss.apply(_LINEAR_CROSS_ENTROPY, *operands, *settings)


_REDUCTIONS = ("none", "mean", "sum")
