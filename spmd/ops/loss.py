"""Loss functions and their gradients.

A loss of narrow floats is reduced in float32 and rounded once.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .floats import missing, wide, widened
from .registry import Promote, lower

aten = torch.ops.aten

_library = torch.library.Library("spmd", "FRAGMENT")
# Class indices as targets. Returns the loss, the logsumexp of each target's logits, and the divisor
# of a mean.
_library.define(
    "cross_entropy(Tensor self, Tensor target, Tensor? weight, int reduction, int ignore_index, "
    "float label_smoothing) -> (Tensor loss, Tensor logsumexp, Tensor total_weight)"
)
_library.define(
    "cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight, int "
    "reduction, int ignore_index, float label_smoothing, Tensor logsumexp, Tensor total_weight) "
    "-> Tensor"
)

CROSS_ENTROPY = torch.ops.spmd.cross_entropy.default
CROSS_ENTROPY_BACKWARD = torch.ops.spmd.cross_entropy_backward.default

NONE, MEAN, SUM = 0, 1, 2  # torch's `reduction`


def _reduce(loss, reduction):
    if reduction == NONE:
        return loss
    total = jnp.sum(loss)
    return total / jnp.asarray(loss.size, loss.dtype) if reduction == MEAN else total


def _share(grad_output, self, target, reduction):
    """The gradient that one element receives."""
    if reduction != MEAN:
        return grad_output
    return grad_output / jnp.asarray(
        math.prod(jnp.broadcast_shapes(self.shape, target.shape)), grad_output.dtype
    )


# -- Negative log likelihood: classes are dim 1 (dim 0 without a batch). An ignored target weighs
# nothing.


def _class_dim(self):
    return 1 if self.ndim > 1 else 0


def target_weights(target, weight, ignore_index, dtype):
    """(class, weight in the sum) per target: ignored targets have class 0 with weight 0."""
    is_counted = target != ignore_index
    safe = jnp.where(is_counted, target, jnp.zeros((), target.dtype))
    weights = (
        jnp.ones((), dtype)
        if weight is None
        else widened(weight).at[safe].get(mode="promise_in_bounds")
    )
    return safe, jnp.where(is_counted, weights, jnp.zeros((), dtype))


def _pick(self, classes):
    dim = _class_dim(self)
    return jnp.squeeze(
        jnp.take_along_axis(self, jnp.expand_dims(classes, dim), dim, **missing(self.dtype)), dim
    )


@lower(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def aten_nll_loss_forward(self, target, weight, reduction, ignore_index, *, returns):
    classes, weights = target_weights(target, weight, ignore_index, wide(self.dtype))
    # An ignored row counts as 0 even where its log probability is infinite or NaN.
    loss = jnp.where(
        weights == 0, jnp.zeros((), weights.dtype), -weights * widened(_pick(self, classes))
    )
    total_weight = jnp.zeros((), weights.dtype)
    if reduction != NONE:
        loss, total_weight = jnp.sum(loss), jnp.sum(weights)
        loss = loss / total_weight if reduction == MEAN else loss
    return loss.astype(returns[0].dtype), total_weight.astype(returns[1].dtype)


@lower(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def aten_nll_loss_backward(
    grad_output, self, target, weight, reduction, ignore_index, total_weight, *, returns
):
    classes, weights = target_weights(target, weight, ignore_index, wide(self.dtype))
    share = (
        widened(grad_output) / widened(total_weight) if reduction == MEAN else widened(grad_output)
    )
    dim = _class_dim(self)
    # A comparison with the class number, not a scatter: it fuses into log_softmax's gradient and is
    # sharded as self is.
    hit = lax.broadcasted_iota(target.dtype, self.shape, dim) == jnp.expand_dims(classes, dim)
    value = jnp.where(weights == 0, jnp.zeros((), weights.dtype), -weights * share)
    return jnp.where(hit, jnp.expand_dims(value, dim), jnp.zeros((), value.dtype)).astype(
        returns.dtype
    )


# -- Cross entropy: log_softmax and negative log likelihood in one op, with a gradient of its own.
# The gradient of their composition has the one-hot gradient of the log probabilities as an
# intermediate, which XLA's CPU backend writes to memory; here it is never an operand of its own. It
# reads one number per target, the logsumexp, which is as exact as the logits are. With label
# smoothing e the target of a row is the distribution (1 - e) * one-hot + e / C, with class weights
# w that times w; the loss is its cross entropy, the gradient the difference of the shares of the
# softmax and of the target in each class.


def _class_weights(self, weight):
    """The weights of all classes, along the class dim of the logits; 1 without weights."""
    if weight is None:
        return jnp.ones((), widened(self).dtype)
    return widened(weight).reshape(-1, *[1] * (self.ndim - 1 - _class_dim(self)))


def sum_of_weights(num_classes, weight):
    return num_classes if weight is None else jnp.sum(widened(weight))


def reduced(losses, weights, reduction):
    """(the loss of all targets, the sum of their weights), from each target's."""
    total_weight = jnp.sum(weights)
    if reduction == NONE:
        return losses, total_weight
    loss = jnp.sum(losses)
    return loss / total_weight if reduction == MEAN else loss, total_weight


def share(grad_output, target, reduction, ignore_index, total_weight):
    """The gradient that each target receives, before its weight."""
    share = widened(grad_output) / total_weight if reduction == MEAN else widened(grad_output)
    return unless_ignored(share, target, ignore_index)  # also where all are, and the mean is NaN


def shares(weighted, share, num_classes, weight, label_smoothing):
    """The shares of each target's gradient: of the softmax, of its class and (times its weight) of
    every class."""
    if label_smoothing == 0:
        return weighted, weighted, None
    elsewhere, at_target = label_smoothing / num_classes * share, (1 - label_smoothing) * weighted
    return at_target + elsewhere * sum_of_weights(num_classes, weight), at_target, elsewhere


def unless_ignored(values, target, ignore_index):
    return jnp.where(target != ignore_index, values, jnp.zeros((), values.dtype))


@lower(CROSS_ENTROPY)
def spmd_cross_entropy(self, target, weight, reduction, ignore_index, label_smoothing, *, returns):
    dim, target = _class_dim(self), target.astype(jnp.int64)  # ignore_index is no byte
    classes, weights = target_weights(target, weight, ignore_index, wide(self.dtype))
    highest = jnp.max(widened(self), axis=dim, keepdims=True, initial=-jnp.inf)
    shifted = widened(self) - highest
    log_sum, highest = jnp.log(jnp.sum(jnp.exp(shifted), axis=dim)), jnp.squeeze(highest, dim)
    # not of `shifted`, which would have to be written for it
    picked = widened(_pick(self, classes)) - highest
    loss = weights * (log_sum - picked)
    if label_smoothing > 0:
        weighted_sum = jnp.sum(shifted * _class_weights(self, weight), axis=dim)
        smoothing_loss = sum_of_weights(self.shape[dim], weight) * log_sum - weighted_sum
        loss = (1 - label_smoothing) * loss + label_smoothing / self.shape[dim] * smoothing_loss
    loss = unless_ignored(loss, target, ignore_index)  # also where the logits are infinite or NaN
    loss, total_weight = reduced(loss, weights, reduction)
    return loss.astype(returns[0].dtype), log_sum + highest, total_weight


@lower(CROSS_ENTROPY_BACKWARD)
def spmd_cross_entropy_backward(
    grad_output,
    self,
    target,
    weight,
    reduction,
    ignore_index,
    label_smoothing,
    logsumexp,
    total_weight,
):
    dim, target = _class_dim(self), target.astype(jnp.int64)
    classes, weights = target_weights(target, weight, ignore_index, wide(self.dtype))
    of_targets = share(grad_output, target, reduction, ignore_index, total_weight)

    def by_class(values):
        return jnp.expand_dims(values, dim)

    of_softmax, at_target, elsewhere = shares(
        weights * of_targets, of_targets, self.shape[dim], weight, label_smoothing
    )
    # A comparison with the class number, not a scatter: it fuses, and is sharded as the logits are.
    hit = lax.broadcasted_iota(jnp.int32, self.shape, dim) == by_class(classes.astype(jnp.int32))
    grad = by_class(of_softmax) * jnp.exp(widened(self) - by_class(logsumexp))
    grad = grad - jnp.where(hit, by_class(at_target), jnp.zeros((), at_target.dtype))
    if label_smoothing > 0:
        grad = grad - by_class(elsewhere) * _class_weights(self, weight)
    return grad.astype(self.dtype)


# -- Distances.


@lower(aten.mse_loss.default, promote=Promote.DEFAULT, of_error=lambda error: error * error)
@lower(aten.l1_loss.default, promote=Promote.DEFAULT, of_error=jnp.abs)
def aten_loss_of_error(self, target, reduction=MEAN, *, of_error):
    return _reduce(of_error(self - target), reduction)


@lower(aten.mse_loss_backward.default, promote=Promote.DEFAULT)
def aten_mse_loss_backward(grad_output, self, target, reduction):
    return 2 * (self - target) * _share(grad_output, self, target, reduction)


@lower(aten.binary_cross_entropy.default, promote=Promote.DEFAULT)
def aten_binary_cross_entropy(self, target, weight=None, reduction=MEAN):
    # torch bounds the logarithms at -100, so that a confident mistake has a finite loss.
    loss = (target - 1) * jnp.maximum(jnp.log1p(-self), -100) - target * jnp.maximum(
        jnp.log(self), -100
    )
    return _reduce(loss if weight is None else loss * weight, reduction)


@lower(aten.binary_cross_entropy_backward.default, promote=Promote.DEFAULT)
def aten_binary_cross_entropy_backward(grad_output, self, target, weight=None, reduction=MEAN):
    grad = (
        _share(grad_output, self, target, reduction)
        * (self - target)
        / jnp.maximum((1 - self) * self, 1e-12)
    )
    return grad if weight is None else grad * weight


# -- The margin between classes, of which torch decomposes the loss but not its gradient.


@lower(aten.multi_margin_loss_backward.default)
def aten_multi_margin_loss_backward(
    grad_output, self, target, p, margin, weight=None, reduction=MEAN
):
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


# -- Connectionist temporal classification (Graves 2006): the loss of all alignments of a target,
# and its gradient.


def _padded(targets, lengths, width):
    """Targets as [batch, width]; targets that are concatenated in one dim are split."""
    if targets.ndim == 2:
        return targets[:, :width]
    starts = jnp.cumsum(lengths) - lengths
    places = starts[:, None] + jnp.arange(width)
    return jnp.take(targets, places, mode="clip")


def _alphas(log_probs, targets, input_lengths, target_lengths, blank, width):
    """(negative log likelihood [batch], log alpha [batch, time, 2 * width + 1])."""
    batch = log_probs.shape[1]
    # Blanks between and around the labels.
    labels = jnp.full((batch, 2 * width + 1), blank, targets.dtype)
    labels = labels.at[:, 1::2].set(_padded(targets, target_lengths, width))
    states = jnp.arange(2 * width + 1)
    none = jnp.asarray(-jnp.inf, log_probs.dtype)
    differs = (labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2])
    skips = jnp.zeros(labels.shape, jnp.bool_).at[:, 2:].set(differs)
    alive = states[None, :] < (2 * target_lengths + 1)[:, None]
    label_log_probs = jnp.take_along_axis(
        log_probs, jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape)), axis=2
    )
    label_log_probs = jnp.where(alive, label_log_probs, none)

    def shifted(alpha, by):
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, : alpha.shape[1]]

    def step(alpha, emission):
        ways = jnp.stack([alpha, shifted(alpha, 1), jnp.where(skips, shifted(alpha, 2), none)])
        alpha = _logsumexp(ways) + emission
        return alpha, alpha

    first = jnp.where(states < 2, label_log_probs[0], none)
    _, later = lax.scan(step, first, label_log_probs[1:])
    alphas = jnp.moveaxis(jnp.concatenate([first[None], later]), 0, 1)
    last = jnp.take_along_axis(alphas, jnp.maximum(input_lengths - 1, 0)[:, None, None], axis=1)[
        :, 0
    ]
    ends = jnp.stack([2 * target_lengths, jnp.maximum(2 * target_lengths - 1, 0)], axis=1)
    final = jnp.take_along_axis(last, ends, axis=1)
    final = final.at[:, 1].set(jnp.where(target_lengths > 0, final[:, 1], none))
    loss = -_logsumexp(final.T)
    nothing = jnp.where(
        target_lengths == 0, jnp.zeros((), loss.dtype), jnp.asarray(jnp.inf, loss.dtype)
    )
    return jnp.where(input_lengths == 0, nothing, loss), alphas


def _logsumexp(ways):
    """The logsumexp over dim 0; where all are -inf it is -inf, with a gradient of 0."""
    top = lax.stop_gradient(jnp.max(ways, axis=0))
    top = jnp.where(jnp.isfinite(top), top, jnp.zeros_like(top))
    total = jnp.sum(jnp.exp(ways - top), axis=0)
    dead = total == 0
    return jnp.where(dead, -jnp.inf, jnp.log(jnp.where(dead, jnp.ones_like(total), total)) + top)


def _as_lengths(lengths):
    # For one sequence without a batch torch takes 0-dim lengths.
    return (
        jnp.asarray(np.asarray(lengths) if isinstance(lengths, list) else lengths)
        .astype(jnp.int64)
        .reshape(-1)
    )


@lower(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def aten_ctc_loss(
    log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False, *, returns
):
    lengths = _as_lengths(input_lengths), _as_lengths(target_lengths)
    return _alphas(log_probs, targets, *lengths, blank, (returns[1].shape[2] - 1) // 2)


@lower(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def aten_ctc_loss_backward(
    grad,
    log_probs,
    targets,
    input_lengths,
    target_lengths,
    neg_log_likelihood,
    log_alpha,
    blank,
    zero_infinity=False,
):
    lengths = _as_lengths(input_lengths), _as_lengths(target_lengths)
    width = (log_alpha.shape[2] - 1) // 2
    _, pull = jax.vjp(lambda x: _alphas(x, targets, *lengths, blank, width)[0], log_probs)
    # torch's gradient is by the logits under a log_softmax that is its own inverse: it adds the
    # probabilities.
    within = jnp.arange(log_probs.shape[0])[:, None] < lengths[0][None, :]
    result = pull(grad)[0] + jnp.where(
        within[..., None], jnp.exp(log_probs) * grad[None, :, None], 0
    )
    if zero_infinity:
        result = jnp.where(
            jnp.isinf(neg_log_likelihood)[None, :, None], jnp.zeros_like(result), result
        )
    return result
