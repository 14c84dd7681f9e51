"""`torch_xla.experimental.custom_kernel`: attention by its name there; the kernel is chosen as for torch's own."""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..tensors.annotate import mark_sharding


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: Any = None,
    mesh: Any = None,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` with PyTorch/XLA's arguments.

    Args:
        q, k, v: (batch, heads, length, head_dim). causal: a row attends to rows up to its own.
        q_segment_ids, kv_segment_ids: (batch, length): a row attends to rows of its segment only.
        sm_scale: the factor of the scores, 1 where none is given. ab: added to the scores.
        partition_spec, mesh: the sharding of the result, as in `mark_sharding`.

    >>> import torch, spmd
    >>> q = torch.ones(1, 2, 4, 8, device="xla")
    >>> spmd.torch_xla.custom_kernel.flash_attention(q, q, q, causal=True).shape
    torch.Size([1, 2, 4, 8])
    """
    bias = ab
    if q_segment_ids is not None and kv_segment_ids is not None:
        other = q_segment_ids[:, None, :, None] != kv_segment_ids[:, None, None, :]
        bias = torch.zeros(other.shape, dtype=q.dtype, device=q.device) if bias is None else bias
        bias = bias.masked_fill(other, float("-inf"))
    if causal and bias is not None:
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(1)
        bias = bias.masked_fill(later, float("-inf"))
    made = scaled_dot_product_attention(q, k, v, bias, is_causal=causal and bias is None, scale=sm_scale)
    return made if partition_spec is None else mark_sharding(made, mesh, partition_spec)
