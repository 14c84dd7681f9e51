"""Embedding lookup and its gradient."""

import jax.numpy as jnp
import torch

from .registry import lower

aten = torch.ops.aten


@lower(aten.embedding.default)
def aten_embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    # torch requires indices within the table, so no bounds are checked and no negative index is wrapped.
    return weight.at[indices].get(mode="promise_in_bounds", wrap_negative_indices=False)


@lower(aten.embedding_dense_backward.default)
def aten_embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    flat = indices.reshape(-1)
    # Rows that meet many times are summed in float32 and rounded once.
    accumulator = jnp.float32 if grad_output.dtype in (jnp.bfloat16, jnp.float16) else grad_output.dtype
    rows = grad_output.reshape(flat.shape[0], grad_output.shape[-1]).astype(accumulator)
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights,), accumulator).at[flat].add(jnp.ones((), accumulator), mode="drop")
        rows = rows / counts.at[flat].get(mode="promise_in_bounds")[:, None]
    if padding_idx >= 0:
        flat = jnp.where(flat == padding_idx, jnp.asarray(num_weights, flat.dtype), flat)  # past the end: dropped
    zeros = jnp.zeros((num_weights, grad_output.shape[-1]), accumulator)
    total = zeros.at[flat].add(rows, mode="drop", wrap_negative_indices=False)
    return total.astype(grad_output.dtype)
