"""Scaled dot-product attention and its gradient, with grouped heads, additive bias, causal mask and
dropout.

This file has the rules, the choice between three forms, and the simplest of them: the scores as one
array. From `LONG` on that array is never made (`flash.py`); on a GPU half precision goes to cuDNN
(`cudnn.py`), on a TPU long sequences go to Pallas (`splash.py`).
"""

import math
from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import torch
from jax import lax

from . import sharded
from .floats import wide
from .kernels import computed, cudnn, flash, splash
from .kernels.document_ids import Documents, equations_by_rows
from .kernels.flash import Dropout, Masking, Places
from .kernels.mask_blocks import causal, fits, in_causal_order
from .registry import as_promised, lower

aten = torch.ops.aten

# The number of scores per head from which they are computed block by block
# (docs/decisions/attention.md).
LONG = 512 * 512


BY_IDS = "attention skips blocks by ids that are data: counted as if {} was one document"


def is_long(query, key):
    """True for queries and keys whose scores are never one array."""
    return query.shape[-2] * key.shape[-2] >= LONG


def batched(x):
    """x with a batch dim of 1, where torch's heads have no batch."""
    return sharded.reshaped(x[None], x) if x is not None and x.ndim == 3 else x


def scale_of(query, scale):
    # Of heads without width all scores are 0, whatever the scale.
    return 1 / math.sqrt(max(query.shape[-1], 1)) if scale is None else scale


def _dropout(draw, query, dropout_p):
    return Dropout.of(draw, query.shape[:3], dropout_p)


@lower(aten._scaled_dot_product_fused_attention_overrideable.default)
def aten_attention(
    query,
    key,
    value,
    attn_bias=None,
    dropout_p=0.0,
    is_causal=False,
    return_debug_mask=False,
    *,
    scale=None,
    draw,
):
    shape = query.shape[:-1] + value.shape[-1:]
    query, key, value = batched(query), batched(key), batched(value)
    scale, dropout = scale_of(query, scale), _dropout(draw, query, dropout_p)
    masking, rest = masking_of(attn_bias, is_causal, query, key)
    short = partial(_forward, bias=attn_bias, is_causal=is_causal)
    long = partial(blocks_forward, bias=rest, masking=masking)
    form, devices = _form(query, key, short, long)
    form = partial(form, dropout=dropout, scale=scale)
    case = query, key, value, masking, rest, dropout_p
    output, logsumexp = _by_platform(form, "forward", case, scale, devices)(query, key, value)
    seed = jnp.stack([jnp.asarray(part).astype(jnp.int64) for part in draw])
    return output.reshape(shape), logsumexp.reshape(shape[:-1]), seed


@lower(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def aten_attention_backward(
    grad_out,
    query,
    key,
    value,
    attn_bias,
    grad_input_mask,
    out,
    logsumexp,
    cum_seq_q,
    cum_seq_k,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    philox_seed,
    philox_offset,
    *,
    scale=None,
    returns,
):
    grad_out, query, key, value, out = map(batched, (grad_out, query, key, value, out))
    logsumexp = logsumexp.reshape(query.shape[:3])
    scale = scale_of(query, scale)
    dropout = (
        None if dropout_p == 0 else _dropout((philox_seed[0], philox_seed[1]), query, dropout_p)
    )
    wants_bias = attn_bias is not None and grad_input_mask[3]
    masking, rest = masking_of(attn_bias, is_causal, query, key, wants_bias)
    short = partial(_backward, bias=attn_bias, is_causal=is_causal)
    long = partial(blocks_backward, bias=rest, masking=masking)
    form, devices = _form(query, key, short, long)
    form = partial(form, dropout=dropout, scale=scale, wants_bias=wants_bias)
    case = query, key, value, masking, rest, dropout_p
    form = _by_platform(form, "backward", case, scale, devices, wants_bias)
    grads = form(query, key, value, grad_out, out, logsumexp)
    return as_promised(grads, returns)


def scored_attention(query, key, value, bias, *, score, scale):
    """(output, logsumexp) of long attention with a function of its scores (`flash.Score`)."""
    form, case, devices = _scored(blocks_forward, query, key, value, bias, score, scale)
    return _by_platform(form, "forward", case, scale, devices)(query, key, value)


def scored_attention_backward(query, key, value, bias, *saved, score, scale):
    """Its gradients of query, key, value and the tensors of the function that want one. saved: the
    gradient of the output, the output, the logsumexp and its gradient, which may be missing."""
    form, case, devices = _scored(blocks_backward, query, key, value, bias, score, scale)
    form = partial(form, wants_bias=False)
    form = _by_platform(form, "backward", case, scale, devices, has_logsumexp=len(saved) > 3)
    of_query, of_key, of_value, _, *of_tensors = form(query, key, value, *saved)
    return of_query, of_key, of_value, *of_tensors


def _scored(form, query, key, value, bias, score, scale):
    masking, rest = masking_of(bias, False, query, key)
    masking = replace(masking, score=score)
    devices = _devices(query, key)
    form = partial(form, bias=rest, masking=masking, dropout=None, scale=scale, devices=devices)
    return form, (query, key, value, masking, rest, 0.0), devices


def _form(query, key, short, long):
    """The form for these lengths; and the devices of a long one, as far as they are known."""
    if not is_long(query, key):
        return short, None
    devices = _devices(query, key)
    return partial(long, devices=devices), devices


def _devices(query, key):
    """The devices of a long form, as far as they are known.

    It is by the batch, the heads and the rows of the queries, with keys and values gathered; the
    gradients of these are reduce-scattered along their rows.
    """
    devices = splash.AttentionDevices.of(query, key)
    is_one = devices is None and sharded.num_devices() == 1
    return splash.AttentionDevices(None) if is_one else devices


def _by_platform(form, direction, case, scale, devices, wants_bias=False, has_logsumexp=False):
    """`form`, or the platform's kernel for it; the platform is that of the program, which need not
    be this host's."""
    kernels, masking, bias = {}, case[3], case[4]
    of_cudnn = cudnn.refusal(*case, wants_bias, has_logsumexp)
    if not (of_cudnn or bias is None or is_long(*case[:2])):
        of_cudnn = "a bias of few scores"
    if not of_cudnn:
        call = cudnn.call_of(masking, bias, scale, wants_bias)
        how = {"call": call, "masking": masking, "bias": bias}
        kernels["cuda"] = partial(getattr(cudnn, direction), **how)
        if devices is not None and sharded.platform() not in ("cpu", "tpu"):
            sharded.note_unused(
                f"{splash.COMPUTED_BY_ALL} (cuDNN's kernel takes all rows)",
                devices.mesh,
                devices.rows,
            )
    of_splash = "queries of an unknown sharding"
    if devices is not None and not (of_splash := splash.refusal(*case, devices.num_row_shards)):
        how = {"masking": masking, "scale": scale, "devices": devices, "otherwise": form}
        kernels["tpu"] = partial(getattr(splash, direction), **how)
    if is_long(*case[:2]):
        note_form(masking, of_cudnn, of_splash, wants_bias)
    return partial(sharded.by_platform, default=form, **kernels)


def note_form(masking, of_cudnn, of_splash, wants_bias=False):
    """Notes why attention is computed in blocks, where the program's platform has a kernel, or
    that the kernel skips blocks by ids."""
    platform = sharded.platform()
    if platform == "tpu" and not of_splash and masking.documents is not None:
        length = sharded.facts().document_length
        counted = f"each {length:,} tokens" if length else "a sequence"
        sharded.note_finding(BY_IDS.format(counted), "kernel")
    reason = {"tpu": of_splash, "cpu": "", None: ""}.get(platform, of_cudnn)
    if reason:
        of_bias = " with a gradient" if wants_bias else ""
        sharded.note_finding(f"attention in blocks: {reason}{of_bias}", "kernel")


def _like(grads, operands):
    """Each gradient in the dtype and shape of its operand."""
    return tuple(
        None if grad is None else grad.astype(x.dtype).reshape(x.shape)
        for grad, x in zip(grads, operands, strict=True)
    )


# -- Block by block: only the shapes differ from what flash.py takes.


def _heads(x, key):
    """x as [batch, kv heads, queries per kv head, ...]; a single head stays one and broadcasts, as
    in a mask."""
    groups = (
        (1, 1) if x.shape[1] == 1 != key.shape[1] else (key.shape[1], x.shape[1] // key.shape[1])
    )
    return x.reshape(x.shape[0], *groups, *x.shape[2:])


def _long_operands(key, dropout, bias):
    if bias is not None and bias.ndim < 5:
        bias = _heads(of_four_dims(bias), key)
    return bias, None if dropout is None else dropout.rows(lambda words: _heads(words, key))


def of_four_dims(bias):
    return bias.reshape((1,) * (4 - bias.ndim) + bias.shape)


def masking_of(bias, is_causal, query, key, wants_bias=False):
    """The mask of scores in blocks, and the bias that is left beside it."""
    rows, columns = query.shape[-2], key.shape[-2]
    equations = bounds = documents = None
    if bias is not None:
        of_bias = equations_by_rows(bias)[0].hiding_lowest().of_condition()
        if of_bias.is_nothing:
            bias = None if not wants_bias else bias
        elif fits(of_bias) and not wants_bias:
            equations, bias = of_bias.of_matrix(), None
        else:
            bounds = of_bias
    if bounds is not None and not wants_bias and sharded.platform() in ("tpu", None):
        documents = Documents.of(bias)
    if is_causal:
        equations = causal(rows, columns) if equations is None else in_causal_order(equations)
    return Masking(equations, bounds, documents=documents), bias


def blocks_forward(query, key, value, *, bias, masking, dropout, devices, scale):
    def form(query, key, value, dropout, bias, masking):
        return of_blocks(query, key, value, dropout, bias, masking=masking, scale=scale)

    return _by_rows(form, devices, query, key, value, dropout, bias=bias, masking=masking)


def of_blocks(query, key, value, dropout, bias, **how):
    """(output in the dtype of the queries, logsumexp) of one device, in blocks."""
    operands = _heads(query, key), key, value, *_long_operands(key, dropout, bias)
    output, logsumexp = flash.forward(*operands, **how)
    shape = query.shape[:3]
    return output.reshape(*shape, value.shape[-1]).astype(query.dtype), logsumexp.reshape(shape)


def blocks_backward(
    query,
    key,
    value,
    grad_out,
    out,
    logsumexp,
    grad_logsumexp=None,
    *,
    bias,
    masking,
    dropout,
    wants_bias,
    devices,
    scale,
):
    def form(*operands):
        *arrays, grad_logsumexp, dropout, bias, masking = operands
        how = {"grad_logsumexp": grad_logsumexp, "masking": masking, "scale": scale}
        return grads_of_blocks(*arrays, dropout, bias, wants_bias=wants_bias, **how)

    arrays = query, key, value, grad_out, out, logsumexp, grad_logsumexp, dropout
    how = {"bias": bias, "masking": masking, "wants_bias": wants_bias, "is_backward": True}
    wanted = [] if masking.score is None else masking.score.of_wanted
    return _like(_by_rows(form, devices, *arrays, **how), (query, key, value, bias, *wanted))


def grads_of_blocks(
    query,
    key,
    value,
    grad_out,
    out,
    logsumexp,
    dropout,
    bias,
    *,
    wants_bias,
    grad_logsumexp=None,
    **how,
):
    """The gradients of query, key, value, bias, if it is needed, and tensors of the function of
    scores, of one device, in blocks."""
    grad_out, *saved = (_heads(x, key) for x in (grad_out, out, logsumexp))
    saved.append(None if grad_logsumexp is None else _heads(grad_logsumexp, key))
    operands = grad_out, _heads(query, key), key, value, *saved
    grad_query, grad_key, grad_value, grad_bias, *of_tensors = flash.backward(
        *operands, *_long_operands(key, dropout, bias), wants_bias=wants_bias, **how
    )
    return (
        grad_query.reshape(query.shape),
        grad_key,
        grad_value,
        grad_bias.reshape(bias.shape) if wants_bias else None,
        *of_tensors,
    )


def _by_rows(form, devices, *arrays, bias, masking, wants_bias=False, **direction):
    """`form(*arrays, bias, masking)`; where the rows are sharded, of each device's rows: keys and
    values are gathered once, before the loop over blocks."""
    if devices is None or not devices.rows:
        return form(*arrays, bias, masking)
    bias = None if bias is None else of_four_dims(bias)
    # A computed mask that batch and heads share is computed in the loop; any other is an operand,
    # its rows sharded.
    is_shared = (
        bias is not None
        and bias.shape[:2] == (1, 1)
        and not wants_bias
        and computed.is_computed(bias)
    )
    shared = bias[None] if is_shared else None

    score, count = masking.score, len(arrays)

    def on_shard(*operands):
        arrays, (bias, shard, *tensors) = operands[:count], operands[count:]
        rows = arrays[0].shape[2]
        starts = tuple((number * rows, 0) for number in range(devices.num_row_shards))
        here = masking.at(Places(starts, shard))
        if score is not None:
            first = _first_of_shard(devices, arrays[0])
            here = replace(here, score=replace(score, first=first, tensors=tuple(tensors)))
        return form(*arrays, shared if is_shared else bias, here)

    if score is not None:
        wanted = score.of_wanted if direction else ()
        direction |= {"whole": score.tensors, "wanted": wanted}
    return devices.run(on_shard, *arrays, bias=None if is_shared else bias, **direction)


def _first_of_shard(devices, query):
    """The first batch and head of a device."""
    axes = zip((devices.batch, devices.heads), query.shape, strict=False)
    return tuple(lax.axis_index(names) * size if names else 0 for names, size in axes)


# -- The scores as one array. The backward repeats the forward's expressions for the probabilities:
# in one program XLA merges the two, so nothing is computed twice and only the probabilities are
# kept.


def _grouped(query, key):
    """query as [batch, kv heads, queries per kv head, length, width]; without groups the heads stay
    as they are."""
    B, H, S, D = query.shape
    kv_heads = key.shape[1]
    return query if kv_heads == H else query.reshape(B, kv_heads, H // kv_heads, S, D)


def _ungrouped(x, heads):
    return x if x.ndim == 4 else x.reshape(x.shape[0], heads, *x.shape[3:])


def _einsum(grouped, plain, operands, *, dtype):
    """One of two einsums, by whether the first operand's heads are grouped, accumulated in
    dtype."""
    equation = grouped if any(operand.ndim == 5 for operand in operands) else plain
    return jnp.einsum(equation, *operands, preferred_element_type=dtype)


def _scores(query, key, bias, is_causal, scale):
    """[B, H, S, L] in the accumulation dtype, masked positions at -inf."""
    heads, dtype = query.shape[1], wide(query.dtype)
    scores = _einsum(
        "bhgsd,bhld->bhgsl", "bhsd,bhld->bhsl", (_grouped(query, key), key), dtype=dtype
    )
    scores = _ungrouped(scores, heads) * jnp.asarray(scale, dtype)
    if bias is not None and bias.dtype == jnp.bool_:
        scores = jnp.where(bias, scores, -jnp.inf)
    elif bias is not None:
        scores = scores + bias.astype(dtype)
    if is_causal:
        rows, columns = (lax.broadcasted_iota(jnp.int32, scores.shape[-2:], dim) for dim in (0, 1))
        scores = jnp.where(columns <= rows, scores, jnp.asarray(-jnp.inf, dtype))
    return scores


def _probabilities(query, key, bias, is_causal, scale):
    """(softmax of the scores, logsumexp of the scores). A fully masked row gets zeros."""
    scores = _scores(query, key, bias, is_causal, scale)
    largest = jnp.max(scores, axis=-1, keepdims=True)
    if bias is not None:  # only a bias can mask a full row
        largest = jnp.where(largest == -jnp.inf, jnp.zeros_like(largest), largest)
    weights = jnp.exp(scores - largest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    logsumexp = jnp.squeeze(largest + jnp.log(total), -1)
    if bias is not None:
        total = jnp.where(total == 0, jnp.ones_like(total), total)
    return weights / total, logsumexp


def _dropped(x, dropout):
    return x if dropout is None else dropout.apply(x)


def _forward(query, key, value, *, bias, dropout, is_causal, scale):
    weights, logsumexp = _probabilities(query, key, bias, is_causal, scale)
    weights = _grouped(_dropped(weights, dropout).astype(value.dtype), value)
    output = _einsum(
        "bhgsl,bhld->bhgsd", "bhsl,bhld->bhsd", (weights, value), dtype=wide(query.dtype)
    )
    return output.astype(query.dtype).reshape(*query.shape[:3], value.shape[-1]), logsumexp


def _backward(
    query, key, value, grad_out, out, logsumexp, *, bias, dropout, wants_bias, is_causal, scale
):
    heads, dtype = query.shape[1], wide(query.dtype)
    weights, _ = _probabilities(query, key, bias, is_causal, scale)
    grad_output = _grouped(grad_out, value)
    dropped_weights = _grouped(_dropped(weights, dropout).astype(value.dtype), value)
    grad_value = _einsum(
        "bhgsl,bhgsd->bhld", "bhsl,bhsd->bhld", (dropped_weights, grad_output), dtype=dtype
    )
    grad_weights = _einsum(
        "bhgsd,bhld->bhgsl", "bhsd,bhld->bhsl", (grad_output, value), dtype=dtype
    )
    grad_weights = _dropped(_ungrouped(grad_weights, heads), dropout)
    # FlashAttention-2 (arXiv:2307.08691): sum_l weights * grad_weights is the row sum of grad_out *
    # out. A rounded out would cost the difference below its digits, so half precision, whose
    # probabilities are here, takes the sum itself.
    delta = grad_out * out if query.dtype == dtype else weights * grad_weights
    grad_scores = weights * (grad_weights - jnp.sum(delta, axis=-1, keepdims=True))
    scores = _grouped(grad_scores.astype(query.dtype), key)
    # The scale multiplies the width-D gradients, not the S x L scores: one pass over the larger
    # array less.
    grad_query = scale * _einsum("bhgsl,bhld->bhgsd", "bhsl,bhld->bhsd", (scores, key), dtype=dtype)
    grad_key = scale * _einsum(
        "bhgsl,bhgsd->bhld", "bhsl,bhsd->bhld", (scores, _grouped(query, key)), dtype=dtype
    )
    grad_bias = _grad_bias(grad_scores, bias) if wants_bias else None
    return _like((grad_query, grad_key, grad_value, grad_bias), (query, key, value, bias))


def _grad_bias(grad_scores, bias):
    """The gradient of a broadcast bias, summed over the dims along which it was broadcast."""
    shape = (1,) * (grad_scores.ndim - bias.ndim) + bias.shape
    axes = tuple(
        axis for axis, size in enumerate(shape) if size == 1 and grad_scores.shape[axis] != 1
    )
    return jnp.sum(grad_scores, axis=axes, keepdims=True)
