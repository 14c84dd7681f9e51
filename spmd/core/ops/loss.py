"""Loss functions and their gradients. A loss of narrow floats is reduced in float32 and rounded once."""

import math

import jax.numpy as jnp
import torch
from jax import lax

from .registry import Promote, lower

aten = torch.ops.aten

NONE, MEAN, SUM = 0, 1, 2  # torch's `reduction`


def _wide(x):
    return x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x


def _reduce(loss, reduction):
    if reduction == NONE:
        return loss
    total = jnp.sum(loss)
    return total / jnp.asarray(loss.size, loss.dtype) if reduction == MEAN else total


def _share(grad_output, self, target, reduction):
    """What one element receives of the gradient."""
    if reduction != MEAN:
        return grad_output
    return grad_output / jnp.asarray(math.prod(jnp.broadcast_shapes(self.shape, target.shape)), grad_output.dtype)


# -- Negative log likelihood: classes are dim 1 (dim 0 without a batch). An ignored target weighs nothing.


def _class_dim(self):
    return 1 if self.ndim > 1 else 0


def _target_weights(self, target, weight, ignore_index):
    """(a class to look at, its weight in the sum) per target: ignored targets look at class 0 with weight 0."""
    kept = target != ignore_index
    safe = jnp.where(kept, target, jnp.zeros((), target.dtype))
    dtype = jnp.float32 if self.dtype in (jnp.bfloat16, jnp.float16) else self.dtype
    weights = jnp.ones((), dtype) if weight is None else _wide(weight).at[safe].get(mode="promise_in_bounds")
    return safe, jnp.where(kept, weights, jnp.zeros((), dtype))


def _pick(self, classes):
    dim = _class_dim(self)
    return jnp.squeeze(jnp.take_along_axis(self, jnp.expand_dims(classes, dim), dim, mode="promise_in_bounds"), dim)


@lower(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def aten_nll_loss_forward(self, target, weight, reduction, ignore_index, *, returns):
    classes, weights = _target_weights(self, target, weight, ignore_index)
    # An ignored row counts as 0 even where its log probability is infinite or NaN.
    loss = jnp.where(weights == 0, jnp.zeros((), weights.dtype), -weights * _wide(_pick(self, classes)))
    total_weight = jnp.zeros((), weights.dtype)
    if reduction != NONE:
        loss, total_weight = jnp.sum(loss), jnp.sum(weights)
        loss = loss / total_weight if reduction == MEAN else loss
    return loss.astype(returns[0].dtype), total_weight.astype(returns[1].dtype)


@lower(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def aten_nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight, *, returns):
    classes, weights = _target_weights(self, target, weight, ignore_index)
    share = _wide(grad_output) / _wide(total_weight) if reduction == MEAN else _wide(grad_output)
    dim = _class_dim(self)
    # A comparison with the class number, not a scatter: it fuses into log_softmax's gradient and shards like its operand.
    hit = lax.broadcasted_iota(target.dtype, self.shape, dim) == jnp.expand_dims(classes, dim)
    value = jnp.where(weights == 0, jnp.zeros((), weights.dtype), -weights * share)
    return jnp.where(hit, jnp.expand_dims(value, dim), jnp.zeros((), value.dtype)).astype(returns.dtype)


# -- Distances.


@lower(aten.mse_loss.default, promote=Promote.DEFAULT)
def aten_mse_loss(self, target, reduction=MEAN):
    error = self - target
    return _reduce(error * error, reduction)


@lower(aten.mse_loss_backward.default, promote=Promote.DEFAULT)
def aten_mse_loss_backward(grad_output, self, target, reduction):
    return 2 * (self - target) * _share(grad_output, self, target, reduction)


@lower(aten.l1_loss.default, promote=Promote.DEFAULT)
def aten_l1_loss(self, target, reduction=MEAN):
    return _reduce(jnp.abs(self - target), reduction)


@lower(aten.smooth_l1_loss.default, promote=Promote.DEFAULT)
def aten_smooth_l1_loss(self, target, reduction=MEAN, beta=1.0):
    error = jnp.abs(self - target)
    if beta == 0:
        return _reduce(error, reduction)
    return _reduce(jnp.where(error < beta, 0.5 * error * error / beta, error - 0.5 * beta), reduction)


@lower(aten.smooth_l1_loss_backward.default, promote=Promote.DEFAULT)
def aten_smooth_l1_loss_backward(grad_output, self, target, reduction, beta):
    error, share = self - target, _share(grad_output, self, target, reduction)
    if beta == 0:
        return jnp.sign(error) * share
    return jnp.where(jnp.abs(error) < beta, error / beta, jnp.sign(error)) * share


@lower(aten.huber_loss.default, promote=Promote.DEFAULT)
def aten_huber_loss(self, target, reduction=MEAN, delta=1.0):
    error = jnp.abs(self - target)
    return _reduce(jnp.where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta)), reduction)


@lower(aten.huber_loss_backward.default, promote=Promote.DEFAULT)
def aten_huber_loss_backward(grad_output, self, target, reduction, delta):
    error, share = self - target, _share(grad_output, self, target, reduction)
    return jnp.clip(error, -delta, delta) * share


# -- Cross entropy of two classes.


@lower(aten.binary_cross_entropy.default, promote=Promote.DEFAULT)
def aten_binary_cross_entropy(self, target, weight=None, reduction=MEAN):
    # torch bounds the logarithms at -100, so that a confident mistake has a finite loss.
    loss = (target - 1) * jnp.maximum(jnp.log1p(-self), -100) - target * jnp.maximum(jnp.log(self), -100)
    return _reduce(loss if weight is None else loss * weight, reduction)


@lower(aten.binary_cross_entropy_backward.default, promote=Promote.DEFAULT)
def aten_binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=MEAN):
    grad = _share(grad_output, self, target, reduction) * (self - target) / jnp.maximum((1 - self) * self, 1e-12)
    return grad if weight is None else grad * weight


@lower(aten.binary_cross_entropy_with_logits.default, promote=Promote.DEFAULT)
def aten_binary_cross_entropy_with_logits(self, target, weight=None, pos_weight=None, reduction=MEAN):
    log_sigmoid = jnp.minimum(self, 0) - jnp.log1p(jnp.exp(-jnp.abs(self)))
    factor = 1 if pos_weight is None else (pos_weight - 1) * target + 1
    loss = (1 - target) * self - factor * log_sigmoid
    return _reduce(loss if weight is None else loss * weight, reduction)


@lower(aten.soft_margin_loss.default, promote=Promote.DEFAULT)
def aten_soft_margin_loss(self, target, reduction=MEAN):
    return _reduce(jnp.log1p(jnp.exp(-target * self)), reduction)


@lower(aten.soft_margin_loss_backward.default, promote=Promote.DEFAULT)
def aten_soft_margin_loss_backward(grad_output, self, target, reduction):
    return -target * lax.logistic(-target * self) * _share(grad_output, self, target, reduction)


# -- Margins between classes, of which torch decomposes the losses but not their gradients.


@lower(aten.multi_margin_loss_backward.default)
def aten_multi_margin_loss_backward(grad_output, self, target, p, margin, weight=None, reduction=MEAN):
    rows, goals = self.reshape(-1, self.shape[-1] if self.ndim else 1), target.reshape(-1, 1)
    gap = margin - jnp.take_along_axis(rows, goals, 1, mode="promise_in_bounds") + rows
    slope = (gap > 0).astype(rows.dtype) if p == 1 else 2 * jnp.maximum(gap, 0)
    if weight is not None:
        slope = slope * weight.at[goals].get(mode="promise_in_bounds")
    is_goal = jnp.arange(rows.shape[1])[None, :] == goals
    slope = jnp.where(is_goal, jnp.zeros((), slope.dtype), slope) / rows.shape[1]
    slope = jnp.where(is_goal, -jnp.sum(slope, axis=1, keepdims=True), slope)
    share = grad_output.reshape(-1, 1) / (rows.shape[0] if reduction == MEAN else 1)
    return (slope * share).reshape(self.shape).astype(self.dtype)


@lower(aten.multilabel_margin_loss_backward.default)
def aten_multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target):
    rows = self.reshape(-1, self.shape[-1] if self.ndim else 1)
    goals, hit = target.reshape(rows.shape), is_target.reshape(rows.shape) != 0
    # Goals stand before the first -1.
    counts = jnp.cumsum(goals < 0, axis=1) == 0
    safe = jnp.where(counts, goals, jnp.zeros((), goals.dtype))
    gap = 1 - jnp.take_along_axis(rows, safe, 1)[:, :, None] + rows[:, None, :]  # [row, goal, class]
    active = ((gap > 0) & counts[:, :, None] & ~hit[:, None, :]).astype(rows.dtype) / rows.shape[1]
    slope = jnp.sum(active, axis=1)
    batch = jnp.arange(rows.shape[0])[:, None]
    slope = slope.at[batch, safe].add(-jnp.sum(active, axis=2))
    share = grad_output.reshape(-1, 1) / (rows.shape[0] if reduction == MEAN else 1)
    return (slope * share).reshape(self.shape).astype(self.dtype)
