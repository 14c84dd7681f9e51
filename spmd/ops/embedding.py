"""Embedding lookup, bags of embeddings, and their gradients."""

import itertools

import jax
import jax.numpy as jnp
import torch

from . import sharded
from .floats import missing, wide
from .registry import lower
from .sharded import exchanged, is_rounded, shards

aten = torch.ops.aten


def _take(table, indices):
    return table.at[indices].get(**missing(table.dtype), wrap_negative_indices=False)


@lower(aten.embedding.default)
def aten_embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    return _take(weight, indices)


@lower(aten.embedding_dense_backward.default)
def aten_embedding_dense_backward(
    grad_output, indices, num_weights, padding_idx, scale_grad_by_freq, *, returns
):
    flat = indices.reshape(-1)
    # Rows with the same index are summed in float32 and rounded once.
    accumulator = wide(grad_output.dtype)
    rows = grad_output.reshape(flat.shape[0], grad_output.shape[-1]).astype(accumulator)
    if scale_grad_by_freq:
        counts = (
            jnp.zeros((num_weights,), accumulator)
            .at[flat]
            .add(jnp.ones((), accumulator), mode="drop")
        )
        rows = rows / counts.at[flat].get(mode="promise_in_bounds")[:, None]
    if padding_idx >= 0:
        # past the end: dropped
        flat = jnp.where(flat == padding_idx, jnp.asarray(num_weights, flat.dtype), flat)
    split = _lookups_split(indices, grad_output) if is_rounded(grad_output, returns.dtype) else None
    if split is None:
        return _rows_added(flat, rows, num_weights).astype(returns.dtype)
    mesh, axes = split
    flat, rows = (shards(x.reshape(*indices.shape, *x.shape[1:]), mesh, axes) for x in (flat, rows))
    added = jax.vmap(
        lambda flat, rows: _rows_added(
            flat.reshape(-1), rows.reshape(-1, rows.shape[-1]), num_weights
        )
    )
    # The table's own dims are left to the partitioner: they are sharded as the gradient will be.
    parts = sharded.in_front(added(flat, rows), mesh, tuple(itertools.chain(*axes)))
    return exchanged(parts, returns.dtype)


def _rows_added(flat, rows, num_weights):
    """Rows [n, width] added up by their index."""
    zeros = jnp.zeros((num_weights, rows.shape[-1]), rows.dtype)
    return zeros.at[flat].add(rows, mode="drop", wrap_negative_indices=False)


def _lookups_split(indices, grad_output):
    """The mesh, and the axes that shard each dim of the indices; None where they are not known to
    be sharded."""
    for array in (indices, grad_output):
        split = sharded.axes_of_dims(*((array, dim) for dim in range(indices.ndim)))
        if split is not None and any(split[1]):
            return split
    return None


# -- Bags: runs of indices whose rows are summed, averaged or compared.

_SUM, _MEAN, _MAX = 0, 1, 2


@lower(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def aten_embedding_bag(
    weight,
    indices,
    offsets,
    scale_grad_by_freq=False,
    mode=0,
    sparse=False,
    per_sample_weights=None,
    include_last_offset=False,
    padding_idx=-1,
    *,
    returns,
):
    indices = indices.reshape(-1)
    bags = offsets.shape[0] - include_last_offset
    count = indices.shape[0]
    owner = (
        jnp.searchsorted(
            offsets[:bags],
            jnp.arange(count, dtype=offsets.dtype),
            side="right",
            method="compare_all",
        )
        - 1
    )
    # Past the end: dropped.
    owner_kept = owner if padding_idx < 0 else jnp.where(indices != padding_idx, owner, bags)
    rows = _take(weight, indices)
    sizes = jnp.zeros((bags,), indices.dtype).at[owner_kept].add(1, mode="drop")
    filled = (sizes > 0)[:, None]
    best = jnp.zeros(returns[3].shape, returns[3].dtype)
    if mode == _MAX:
        top = jax.ops.segment_max(rows, owner_kept, bags, mode="drop")
        if sharded.loses_nan(rows.dtype):
            num_nans = jax.ops.segment_sum(
                jnp.isnan(rows).astype(jnp.float32), owner_kept, bags, mode="drop"
            )
            top = jnp.where(num_nans > 0, jnp.nan, top).astype(rows.dtype)
        output = jnp.where(filled, top, jnp.zeros((), weight.dtype))
        # The first row of a bag that has the greatest value, dim by dim.
        hits = (rows == _take(top, jnp.maximum(owner, 0))) & (owner_kept < bags)[:, None]
        row = jnp.where(hits, jnp.arange(count)[:, None], count)
        first = jax.ops.segment_min(row, owner_kept, bags, mode="drop")
        best = (
            jnp.where(filled, jnp.take(indices, first, mode="clip"), 0).astype(best.dtype)
            if count
            else best
        )
    else:
        accumulator = wide(weight.dtype)
        rows = rows.astype(accumulator)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.astype(accumulator)[:, None]
        output = (
            jnp.zeros((bags, weight.shape[1]), accumulator).at[owner_kept].add(rows, mode="drop")
        )
        if mode == _MEAN:
            output = output / jnp.maximum(sizes, 1)[:, None].astype(accumulator)
        output = output.astype(weight.dtype)
    sizes = jnp.pad(sizes, (0, returns[2].shape[0] - bags))
    return output, owner.astype(returns[1].dtype), sizes.astype(returns[2].dtype), best


@lower(aten._embedding_bag_dense_backward.default)
def aten_embedding_bag_dense_backward(
    grad,
    indices,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    per_sample_weights,
    padding_idx=-1,
):
    zeros = jnp.zeros((num_weights, grad.shape[1]), jnp.promote_types(grad.dtype, jnp.float32))
    if mode == _MAX:
        filled = (bag_size[: grad.shape[0]] > 0)[:, None]
        columns = jnp.broadcast_to(jnp.arange(grad.shape[1]), grad.shape)
        total = zeros.at[maximum_indices, columns].add(
            jnp.where(filled, grad, jnp.zeros((), grad.dtype))
        )
        return total.astype(grad.dtype)
    rows = _take(grad, offset2bag).astype(zeros.dtype)
    if mode == _MEAN:
        rows = rows / jnp.maximum(_take(bag_size, offset2bag), 1)[:, None].astype(rows.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights,), rows.dtype).at[indices].add(1)
        rows = rows / _take(counts, indices)[:, None]
    if padding_idx >= 0:
        indices = jnp.where(
            indices == padding_idx, jnp.asarray(num_weights, indices.dtype), indices
        )
    return zeros.at[indices].add(rows, mode="drop").astype(grad.dtype)


@lower(aten._embedding_bag_backward.default)
def aten_embedding_bag_backward(
    grad,
    indices,
    offsets,
    offset2bag,
    bag_size,
    maximum_indices,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    per_sample_weights,
    padding_idx=-1,
):
    settings = num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx
    return aten_embedding_bag_dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, *settings
    )


@lower(aten._embedding_bag_per_sample_weights_backward.default)
def aten_embedding_bag_per_sample_weights_backward(
    grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1
):
    result = jnp.sum(_take(grad, offset2bag) * _take(weight, indices), axis=-1)
    return (
        result
        if padding_idx < 0
        else jnp.where(indices == padding_idx, jnp.zeros((), result.dtype), result)
    )
