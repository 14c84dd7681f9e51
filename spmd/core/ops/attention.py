"""Scaled dot-product attention and its gradient, with grouped heads, additive bias, causal mask and dropout.

The backward repeats the forward's expressions for the probabilities. In one program XLA merges the two, so nothing is
computed twice and the probabilities are what is kept.
"""

import math

import jax.numpy as jnp
import torch
from jax import lax

from .random import keep_mask
from .registry import lower

aten = torch.ops.aten


def _wide_dtype(x):
    return jnp.float32 if x.dtype in (jnp.bfloat16, jnp.float16) else x.dtype


def _grouped(query, key):
    """query as [batch, kv heads, queries per kv head, length, width]; without groups the heads are left alone."""
    B, H, S, D = query.shape
    kv_heads = key.shape[1]
    return query if H == kv_heads else query.reshape(B, kv_heads, H // kv_heads, S, D)


def _ungrouped(x, heads):
    return x if x.ndim == 4 else x.reshape(x.shape[0], heads, *x.shape[3:])


def _einsum(grouped, plain, operands, *, dtype):
    """One of two einsums, by whether the first operand's heads are grouped, accumulated in dtype."""
    equation = grouped if any(operand.ndim == 5 for operand in operands) else plain
    return jnp.einsum(equation, *operands, preferred_element_type=dtype)


def _scores(query, key, attn_bias, is_causal, scale):
    """[B, H, S, L] in the accumulation dtype, masked positions at -inf."""
    heads, dtype = query.shape[1], _wide_dtype(query)
    scores = _einsum("bhgsd,bhld->bhgsl", "bhsd,bhld->bhsl", (_grouped(query, key), key), dtype=dtype)
    scores = _ungrouped(scores, heads) * jnp.asarray(scale, dtype)
    if attn_bias is not None and attn_bias.dtype == jnp.bool_:
        scores = jnp.where(attn_bias, scores, -jnp.inf)
    elif attn_bias is not None:
        scores = scores + attn_bias.astype(dtype)
    if is_causal:
        rows, columns = (lax.broadcasted_iota(jnp.int32, scores.shape[-2:], dim) for dim in (0, 1))
        scores = jnp.where(columns <= rows, scores, jnp.asarray(-jnp.inf, dtype))
    return scores


def _probabilities(query, key, attn_bias, is_causal, scale):
    """(softmax of the scores, logsumexp of the scores). A row that may attend to nothing gets zeros."""
    scores = _scores(query, key, attn_bias, is_causal, scale)
    largest = jnp.max(scores, axis=-1, keepdims=True)
    if attn_bias is not None:  # only a bias can forbid a whole row
        largest = jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
    weights = jnp.exp(scores - largest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    logsumexp = jnp.squeeze(largest + jnp.log(total), -1)
    if attn_bias is not None:
        total = jnp.where(total == 0, jnp.ones_like(total), total)
    return weights / total, logsumexp


def _dropped(x, draw, dropout_p):
    if dropout_p == 0:
        return x
    if dropout_p == 1:
        return jnp.zeros_like(x)
    keep = keep_mask(draw, x.shape, 1 - dropout_p)
    return jnp.where(keep, x * (1 / (1 - dropout_p)), jnp.zeros((), x.dtype))


def _batched(x):
    """Heads without a batch, which torch allows, are a batch of one."""
    return x[None] if x is not None and x.ndim == 3 else x


@lower(aten._scaled_dot_product_fused_attention_overrideable.default)
def aten_attention(
    query, key, value, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False,
    *, scale=None, draw,
):  # fmt: skip
    shape = query.shape[:-1] + value.shape[-1:]
    query, key, value = _batched(query), _batched(key), _batched(value)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    weights, logsumexp = _probabilities(query, key, attn_bias, is_causal, scale)
    weights = _grouped(_dropped(weights, draw, dropout_p).astype(value.dtype), value)
    output = _einsum("bhgsl,bhld->bhgsd", "bhsl,bhld->bhsd", (weights, value), dtype=_wide_dtype(query))
    seed = jnp.stack([jnp.asarray(part).astype(jnp.int64) for part in draw])
    return output.astype(query.dtype).reshape(shape), logsumexp, seed


@lower(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def aten_attention_backward(
    grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k,
    dropout_p, is_causal, philox_seed, philox_offset, *, scale=None, returns,
):  # fmt: skip
    likes = query, key, value
    grad_out, query, key, value, out = map(_batched, (grad_out, query, key, value, out))
    heads, dtype = query.shape[1], _wide_dtype(query)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    draw = None if philox_seed is None or dropout_p == 0 else (philox_seed[0], philox_seed[1])
    weights, _ = _probabilities(query, key, attn_bias, is_causal, scale)

    grad_output = _grouped(grad_out, value)
    kept = _grouped(_dropped(weights, draw, dropout_p).astype(value.dtype), value)
    grad_value = _einsum("bhgsl,bhgsd->bhld", "bhsl,bhsd->bhld", (kept, grad_output), dtype=dtype)
    grad_weights = _einsum("bhgsd,bhld->bhgsl", "bhsd,bhld->bhsl", (grad_output, value), dtype=dtype)
    grad_weights = _dropped(_ungrouped(grad_weights, heads), draw, dropout_p)
    # FlashAttention-2 (arXiv:2307.08691): sum_l weights * grad_weights is the row sum of grad_out * out.
    delta = jnp.sum(grad_out.astype(dtype) * out.astype(dtype), axis=-1, keepdims=True)
    grad_scores = weights * (grad_weights - delta)
    scores = _grouped(grad_scores.astype(query.dtype), key)
    # The scale meets the width-D gradients, not the S x L scores: a pass over the larger array less.
    grad_query = scale * _einsum("bhgsl,bhld->bhgsd", "bhsl,bhld->bhsd", (scores, key), dtype=dtype)
    grad_key = scale * _einsum("bhgsl,bhgsd->bhld", "bhsl,bhsd->bhld", (scores, _grouped(query, key)), dtype=dtype)
    grads = (grad_query, grad_key, grad_value)
    made = [
        None if result is None else grad.astype(like.dtype).reshape(like.shape)
        for grad, like, result in zip(grads, likes, returns[:3], strict=True)
    ]
    return *made, _grad_bias(grad_scores, attn_bias, grad_input_mask[3], returns[3])


def _grad_bias(grad_scores, attn_bias, requested, result):
    """The gradient of a broadcast bias: summed over what it was broadcast along."""
    if result is None or attn_bias is None:
        return None
    if not requested:
        return jnp.zeros(result.shape, result.dtype)
    shape = (1,) * (grad_scores.ndim - attn_bias.ndim) + attn_bias.shape
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and grad_scores.shape[axis] != 1)
    return jnp.sum(grad_scores, axis=axes, keepdims=True).reshape(result.shape).astype(result.dtype)
