"""The gamma function's relatives: digamma, polygamma, Hurwitz' zeta, the multivariate gamma function."""

import math

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import special

from .registry import Promote, lower

aten = torch.ops.aten


def digamma(self):
    # At 0 torch gives the limit from the side that the zero's sign says.
    return jnp.where(self == 0, jnp.copysign(jnp.asarray(jnp.inf, self.dtype), -self), special.digamma(self))


def _trigamma(self):
    # Left of 1/2 by reflection; JAX's own polygamma is NaN there.
    left = self < 0.5
    right = special.zeta(jnp.asarray(2.0, self.dtype), jnp.where(left, 1 - self, self))
    sine = jnp.sin(math.pi * jnp.where(left, self, jnp.asarray(0.5, self.dtype)))
    return jnp.where(left, (math.pi / sine) ** 2 - right, right)


_SHIFTS = 4096


def _hurwitz_zeta(s, q):
    """zeta(s, q) for whole s: terms of negative q are summed one by one, up to where JAX's function is defined."""

    def more(state):
        _, at, count = state
        return jnp.any(at <= 0) & (count < _SHIFTS)

    def add(state):
        total, at, count = state
        below = at <= 0
        return jnp.where(below, total + jnp.power(at, -s), total), jnp.where(below, at + 1, at), count + 1

    total, at, _ = lax.while_loop(more, add, (jnp.zeros_like(q), q, 0))
    pole = (q <= 0) & (q == jnp.floor(q))
    return jnp.where(pole, jnp.asarray(jnp.inf, q.dtype), total + special.zeta(s, at))


def zeta(self, other):
    """Hurwitz' zeta function; at its poles infinite where torch says so; jax has NaN there or the other one."""
    made = special.zeta(self, other)
    made = jnp.where((other <= 0) & (other == jnp.floor(other)), jnp.inf, made)
    return jnp.where(self < 1, jnp.nan, jnp.where(self == 1, jnp.inf, made))


@lower(aten.polygamma.default, promote=Promote.INT_TO_FLOAT)
def aten_polygamma(n, self):
    if n == 0:
        return digamma(self)
    if n == 1:
        return _trigamma(self)
    sign = 1.0 if n % 2 else -1.0
    return (
        sign
        * jnp.exp(lax.lgamma(jnp.asarray(n + 1.0, self.dtype)))
        * _hurwitz_zeta(jnp.asarray(n + 1.0, self.dtype), self)
    )


@lower(aten.mvlgamma.default, promote=Promote.INT_TO_FLOAT)
def aten_mvlgamma(self, p):
    return special.multigammaln(self, p) if p > 1 else jax.lax.lgamma(self)
