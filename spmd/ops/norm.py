"""Layer, RMS, group and batch normalization with their gradients.

Statistics of narrow floats are float32.
"""

import math

import jax.numpy as jnp
import torch
from jax import lax

from .floats import widened
from .registry import as_promised, lower
from .sharded import total

aten = torch.ops.aten


def _moments(x, axes):
    mean = jnp.mean(x, axis=axes, keepdims=True)
    centered = x - mean
    return mean, centered, jnp.mean(centered * centered, axis=axes, keepdims=True)


def _scaled(x, weight):
    return x if weight is None else x * weight


def _grad_normalized(grad, normalized, rstd, axes):
    """The gradient through (x - mean) * rstd, mean and rstd being functions of x over `axes`."""
    mean_grad = jnp.mean(grad, axis=axes, keepdims=True)
    mean_product = jnp.mean(grad * normalized, axis=axes, keepdims=True)
    return rstd * (grad - mean_grad - normalized * mean_product)


def _gradients(mask, grad, scaled, normalized, rstd, inner, outer, grad_out, returns):
    """The gradients of input, weight and bias, by the mask. scaled: the output's gradient times the
    weight."""
    grads = (
        _grad_normalized(scaled, normalized, rstd, inner) if mask[0] else None,
        total(grad * normalized, outer, grad_out, returns[1].dtype) if mask[1] else None,
        total(grad, outer, grad_out, returns[2].dtype) if mask[2] else None,
    )
    return as_promised(grads, returns)


# -- Layer norm.


def _inner_axes(x, normalized_shape):
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _outer_axes(x, normalized_shape):
    return tuple(range(x.ndim - len(normalized_shape)))


@lower(aten.native_layer_norm.default)
def aten_native_layer_norm(input, normalized_shape, weight, bias, eps, *, returns):
    mean, centered, variance = _moments(widened(input), _inner_axes(input, normalized_shape))
    rstd = lax.rsqrt(variance + eps)
    output = _scaled(centered * rstd, weight)
    return as_promised((output if bias is None else output + bias, mean, rstd), returns)


@lower(aten.native_layer_norm_backward.default)
def aten_native_layer_norm_backward(
    grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask, *, returns
):
    grad, inner, outer = (
        widened(grad_out),
        _inner_axes(input, normalized_shape),
        _outer_axes(input, normalized_shape),
    )
    normalized = (widened(input) - mean) * rstd
    mask = (
        output_mask[0],
        output_mask[1] and weight is not None,
        output_mask[2] and bias is not None,
    )
    return _gradients(
        mask, grad, _scaled(grad, weight), normalized, rstd, inner, outer, grad_out, returns
    )


# -- RMS norm.


@lower(aten._fused_rms_norm.default)
def aten_fused_rms_norm(input, normalized_shape, weight, eps, *, returns):
    x = widened(input)
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(x * x, axis=_inner_axes(x, normalized_shape), keepdims=True) + eps)
    return as_promised((_scaled(x * rstd, weight), rstd), returns)


@lower(aten._fused_rms_norm_backward.default)
def aten_fused_rms_norm_backward(
    grad_out, input, normalized_shape, rstd, weight, output_mask, *, returns
):
    grad, x = widened(grad_out), widened(input)
    scaled, inner = _scaled(grad, weight), _inner_axes(input, normalized_shape)
    # By rows, not of x * rstd: XLA's CPU backend would write that, or the deviation broadcast, to
    # memory.
    along = jnp.mean(scaled * x, axis=inner, keepdims=True) * rstd * rstd
    grad_input = rstd * (scaled - x * along) if output_mask[0] else None
    outer, has_weight = _outer_axes(input, normalized_shape), output_mask[1] and weight is not None
    grad_weight = total(grad * x * rstd, outer, grad_out, returns[1].dtype) if has_weight else None
    return as_promised((grad_input, grad_weight), returns)


# -- Group norm: a channel belongs to one group, weight and bias are per channel.


def _by_group(x, N, C, HxW, group):
    return x.reshape(N, group, C // group, HxW)


@lower(aten.native_group_norm.default)
def aten_native_group_norm(input, weight, bias, N, C, HxW, group, eps, *, returns):
    mean, centered, variance = _moments(_by_group(widened(input), N, C, HxW, group), (2, 3))
    rstd = lax.rsqrt(variance + eps)
    output = _scaled(centered * rstd, None if weight is None else weight.reshape(group, -1, 1))
    return as_promised(
        (output if bias is None else output + bias.reshape(group, -1, 1), mean, rstd), returns
    )


@lower(aten.native_group_norm_backward.default, empty=True)
def aten_native_group_norm_backward(
    grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask, *, returns
):
    grad = _by_group(widened(grad_out), N, C, HxW, group)
    rstd = widened(rstd).reshape(N, group, 1, 1)
    normalized = (_by_group(widened(input), N, C, HxW, group) - mean.reshape(N, group, 1, 1)) * rstd
    scaled = _scaled(grad, None if weight is None else weight.reshape(group, -1, 1))
    return _gradients(
        output_mask, grad, scaled, normalized, rstd, (2, 3), (0, 3), grad_out, returns
    )


# -- Batch norm: dim 1 is the channel. Rules are pure; the owner of the running statistics writes
# the new ones back.


def _batch_axes(x):
    return tuple(axis for axis in range(x.ndim) if axis != 1)


def _per_channel(vector, x):
    return None if vector is None else vector.reshape(1, -1, *[1] * (x.ndim - 2))


def _towards(running, value, momentum):
    return None if running is None else (1 - momentum) * running + momentum * value


@lower(aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default)
def aten_native_batch_norm(
    input, weight, bias, running_mean, running_var, training, momentum, eps, *, returns
):
    """(output, saved mean, saved rstd, new running mean, new running variance), or the first three
    of these."""
    x, axes = widened(input), _batch_axes(input)
    if training:
        mean, centered, variance = _moments(x, axes)
        count = math.prod(x.shape[axis] for axis in axes)
        unbiased = variance.reshape(-1) * (count / (count - 1) if count > 1 else math.nan)
        running_mean = _towards(running_mean, mean.reshape(-1), momentum)
        running_var = _towards(running_var, unbiased, momentum)
    else:
        mean, variance = (
            _per_channel(widened(running_mean), x),
            _per_channel(widened(running_var), x),
        )
        centered = x - mean
    rstd = lax.rsqrt(variance + eps)
    output = _scaled(centered * rstd, _per_channel(weight, x))
    output = output if bias is None else output + _per_channel(bias, x)
    result = output, mean.reshape(-1), rstd.reshape(-1), running_mean, running_var
    return as_promised(result[: len(returns)], returns)


@lower(aten._native_batch_norm_legit.no_stats)
def aten_native_batch_norm_no_stats(input, weight, bias, training, momentum, eps, *, returns):
    return aten_native_batch_norm(
        input, weight, bias, None, None, training, momentum, eps, returns=returns
    )


@lower(aten._native_batch_norm_legit_no_training.default)
def aten_native_batch_norm_no_training(
    input, weight, bias, running_mean, running_var, momentum, eps, *, returns
):
    return aten_native_batch_norm(
        input, weight, bias, running_mean, running_var, False, momentum, eps, returns=returns
    )


@lower(aten.native_batch_norm_backward.default)
def aten_native_batch_norm_backward(
    grad_out,
    input,
    weight,
    running_mean,
    running_var,
    save_mean,
    save_invstd,
    train,
    eps,
    output_mask,
    *,
    returns,
):
    x, grad, axes = widened(input), widened(grad_out), _batch_axes(input)
    mean = _per_channel(widened(save_mean if train else running_mean), x)
    rstd = _per_channel(widened(save_invstd) if train else lax.rsqrt(widened(running_var) + eps), x)
    normalized = (x - mean) * rstd
    scaled = _scaled(grad, _per_channel(weight, x))
    grad_input = _grad_normalized(scaled, normalized, rstd, axes) if train else scaled * rstd
    # torch's meta kernel returns the input's gradient whatever the mask: the promised results
    # decide.
    of_weight, of_bias = (grad_out if like is None else like for like in returns[1:])
    grad_weight = total(grad * normalized, axes, grad_out, of_weight.dtype)
    return as_promised(
        (grad_input, grad_weight, total(grad, axes, grad_out, of_bias.dtype)), returns
    )
