"""Connectionist temporal classification (Graves 2006): the loss of all alignments of a target, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .registry import lower

aten = torch.ops.aten


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
    skips = (
        jnp.zeros(labels.shape, jnp.bool_).at[:, 2:].set((labels[:, 2:] != blank) & (labels[:, 2:] != labels[:, :-2]))
    )
    alive = states[None, :] < (2 * target_lengths + 1)[:, None]
    said = jnp.take_along_axis(log_probs, jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape)), axis=2)
    said = jnp.where(alive, said, none)

    def shifted(alpha, by):
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, : alpha.shape[1]]

    def step(alpha, now):
        ways = jnp.stack([alpha, shifted(alpha, 1), jnp.where(skips, shifted(alpha, 2), none)])
        alpha = _logsumexp(ways) + now
        return alpha, alpha

    first = jnp.where(states < 2, said[0], none)
    _, rest = lax.scan(step, first, said[1:])
    alphas = jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 1)
    last = jnp.take_along_axis(alphas, jnp.maximum(input_lengths - 1, 0)[:, None, None], axis=1)[:, 0]
    ends = jnp.stack([2 * target_lengths, jnp.maximum(2 * target_lengths - 1, 0)], axis=1)
    final = jnp.take_along_axis(last, ends, axis=1)
    final = final.at[:, 1].set(jnp.where(target_lengths > 0, final[:, 1], none))
    loss = -_logsumexp(final.T)
    nothing = jnp.where(target_lengths == 0, jnp.zeros((), loss.dtype), jnp.asarray(jnp.inf, loss.dtype))
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
    return jnp.asarray(np.asarray(lengths) if isinstance(lengths, list) else lengths).astype(jnp.int64).reshape(-1)


@lower(aten._ctc_loss.default, aten._ctc_loss.Tensor)
def aten_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False, *, returns):
    lengths = _as_lengths(input_lengths), _as_lengths(target_lengths)
    width = (returns[1].shape[2] - 1) // 2
    loss, alphas = _alphas(log_probs, targets, *lengths, blank, width)
    return loss, alphas


@lower(aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor)
def aten_ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity=False
):
    lengths = _as_lengths(input_lengths), _as_lengths(target_lengths)
    width = (log_alpha.shape[2] - 1) // 2
    _, pull = jax.vjp(lambda x: _alphas(x, targets, *lengths, blank, width)[0], log_probs)
    # torch's gradient is by the logits under a log_softmax that is its own inverse: it adds the probabilities.
    within = jnp.arange(log_probs.shape[0])[:, None] < lengths[0][None, :]
    result = pull(grad)[0] + jnp.where(within[..., None], jnp.exp(log_probs) * grad[None, :, None], 0)
    if zero_infinity:
        result = jnp.where(jnp.isinf(neg_log_likelihood)[None, :, None], jnp.zeros_like(result), result)
    return result
