"""Shapes of ops that torch cannot run on its meta device."""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten


def _attention(query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    """(output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask)."""
    *batch, length, _ = query.shape
    output = query.new_empty((*batch, length, value.shape[-1]))
    logsumexp = query.new_empty((*batch, length), dtype=torch.float32 if query.dtype != torch.float64 else query.dtype)
    seed = query.new_empty((2,), dtype=torch.int64)
    return output, logsumexp, None, None, length, key.shape[-2], seed, None, None


def _attention_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, *, scale=None,
):  # fmt: skip
    wanted = (query, key, value, attn_bias)
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if needed and tensor is not None else None
        for tensor, needed in zip(wanted, grad_input_mask, strict=True)
    )


def _in_place(*args: Any, **kwargs: Any) -> None:
    """An op that only writes: its targets keep shape and dtype."""


META_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_fused_attention_overrideable.default: _attention,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default: _attention_backward,
    aten._fused_sgd_.default: _in_place,
    aten._fused_sgd_.tensor_lr: _in_place,
    aten._fused_adam_.default: _in_place,
    aten._fused_adam_.tensor_lr: _in_place,
    aten._fused_adamw_.default: _in_place,
    aten._fused_adamw_.tensor_lr: _in_place,
}
