"""Distances between all pairs of rows (cdist, pdist), each next to its gradient."""

import math

import jax.numpy as jnp
import numpy as np
import torch

from .promised import zeros
from .registry import lower

aten = torch.ops.aten

_MM_ALWAYS, _MM_FROM = 1, 25


def _norm(difference, p):
    size = jnp.abs(difference)
    if p == 0:
        return jnp.sum((size != 0).astype(size.dtype), axis=-1)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(difference * difference, axis=-1))
    if p == math.inf:
        return jnp.max(size, axis=-1)
    return jnp.power(jnp.sum(jnp.power(size, p), axis=-1), 1 / p)


def _norm_gradient(grad, difference, p, distance):
    """The gradient of |difference|_p by difference; at distance 0 torch takes 0."""
    sign = jnp.sign(difference)
    if p == 0:
        return jnp.zeros_like(difference)
    if p == 1:
        return grad * sign
    if p == math.inf:
        return grad * sign * (jnp.abs(difference) == distance)
    safe = jnp.where(distance == 0, jnp.ones_like(distance), distance)
    if p == 2:
        result = grad * difference / safe
    else:
        result = sign * jnp.power(jnp.abs(difference), p - 1) * (grad / jnp.power(safe, p - 1))
        result = jnp.where(difference == 0, jnp.zeros_like(result), result)
    return jnp.where(distance == 0, jnp.zeros_like(result), result)


def _pairs(x1, x2):
    return x1[..., :, None, :] - x2[..., None, :, :]


def _euclidean(x1, x2):
    """Distances through one product of matrices: |a|^2 - 2ab + |b|^2, which torch takes for many rows."""
    squares1 = jnp.sum(x1 * x1, axis=-1)[..., :, None]
    squares2 = jnp.sum(x2 * x2, axis=-1)[..., None, :]
    return jnp.sqrt(jnp.maximum(squares1 + squares2 - 2 * jnp.matmul(x1, jnp.swapaxes(x2, -1, -2)), 0))


@lower(aten._cdist_forward.default)
def aten_cdist_forward(x1, x2, p, compute_mode, *, returns):
    if 0 in (*returns.shape, x1.shape[-1]):
        return zeros(returns)
    many = max(x1.shape[-2], x2.shape[-2]) > _MM_FROM
    if p == 2 and (compute_mode == _MM_ALWAYS or (not compute_mode and many)):
        return _euclidean(x1, x2)
    return _norm(_pairs(x1, x2), p)


# `grad` is `grad_output` in torch 2.15.
@lower(aten._cdist_backward.default)
def aten_cdist_backward(grad, /, x1, x2, p, cdist, *, returns):
    if 0 in (*grad.shape, x1.shape[-1]):  # then torch returns x1's own shape, without the batch of x2
        return zeros(returns)
    result = jnp.sum(_norm_gradient(grad[..., None], _pairs(x1, x2), p, cdist[..., None]), axis=-2)
    return jnp.broadcast_to(result, returns.shape)


def _upper(count):
    return np.triu_indices(count, 1)


@lower(aten._pdist_forward.default)
def aten_pdist_forward(self, p=2.0):
    first, second = _upper(self.shape[0])
    return _norm(self[first] - self[second], p)


@lower(aten._pdist_backward.default)
def aten_pdist_backward(grad, /, self, p, pdist):
    first, second = _upper(self.shape[0])
    result = _norm_gradient(grad[:, None], self[first] - self[second], p, pdist[:, None])
    return jnp.zeros_like(self).at[first].add(result).at[second].add(-result)
