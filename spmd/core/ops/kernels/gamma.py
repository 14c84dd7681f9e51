"""The gamma function's relatives: digamma, polygamma, Hurwitz' zeta, the incomplete and the multivariate gamma."""

import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import special

from ..registry import Promote, lower

aten = torch.ops.aten


def digamma(self):
    # At 0 torch returns the limit from the side given by the zero's sign.
    return jnp.where(self == 0, jnp.copysign(jnp.asarray(jnp.inf, self.dtype), -self), special.digamma(self))


def _trigamma(self):
    # Left of 1/2 by reflection; JAX's own polygamma is NaN there.
    left = self < 0.5
    right = special.zeta(jnp.asarray(2.0, self.dtype), jnp.where(left, 1 - self, self))
    sine = jnp.sin(math.pi * jnp.where(left, self, jnp.asarray(0.5, self.dtype)))
    return jnp.where(left, (math.pi / sine) ** 2 - right, right)


_SHIFTS = 4096


def _hurwitz_zeta(s, q):
    """zeta(s, q) for integer s: terms of negative q are summed one by one, up to where JAX's function is defined."""

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
    """Hurwitz' zeta function, infinite at its poles where torch's is; jax returns NaN there, or the other infinity."""
    result = special.zeta(self, other)
    result = jnp.where((other <= 0) & (other == jnp.floor(other)), jnp.inf, result)
    return jnp.where(self < 1, jnp.nan, jnp.where(self == 1, jnp.inf, result))


# --- the incomplete gamma functions -----------------------------------------------------------------------------------

# From here on, and this near to a, both come from Temme's expansion for large a, uniform in x. JAX's series and its
# fraction have a factor x ** a * exp(-x) / gamma(a), which costs half of float32's digits at a = 10,000.
_LARGE, _NEAR = 20.0, 0.3
_ORDERS, _TERMS = 8, 20


@functools.cache
def _temme() -> tuple[tuple[float, ...], ...]:
    """d[k][n] of DLMF 8.12.7: S(a, eta) is exp(-a eta^2 / 2) / sqrt(2 pi a) times the sum of d[k][n] eta^n a^-k."""
    count = _TERMS + 2 * _ORDERS
    # mu as a series in eta, where eta^2 / 2 = mu - log(1 + mu): mu mu' = eta (1 + mu).
    mu = [Fraction(0), Fraction(1)]
    for n in range(2, count + 2):
        inner = sum((mu[i] * (n + 1 - i) * mu[n + 1 - i] for i in range(2, n)), Fraction(0))
        mu.append((mu[n - 1] - inner) / (n + 1))
    # 1 / mu - 1 / eta.
    inverse = [Fraction(1)]
    for n in range(1, count + 1):
        inverse.append(-sum((mu[1 + i] * inverse[n - i] for i in range(1, n + 1)), Fraction(0)))
    first = inverse[1:]
    rows = [first]
    for _ in range(1, _ORDERS):
        last = rows[-1]
        rows.append([(n + 2) * last[n + 2] - last[1] * first[n] for n in range(len(last) - 2)])
    return tuple(tuple(float(value) for value in row[:_TERMS]) for row in rows)


def _half_eta_squared(mu):
    """mu - log(1 + mu), by its series: |mu| is at most _NEAR."""
    total = jnp.zeros_like(mu)
    for n in range(34, 1, -1):
        total = total * mu + (1.0 if n % 2 == 0 else -1.0) / n
    return total * mu * mu


def _tails(a, x):
    """(lower, upper) by Temme's expansion."""
    mu = (x - a) / a
    half = _half_eta_squared(mu)
    eta = jnp.sign(mu) * jnp.sqrt(2 * half)

    def horner(by, form):
        # A loop, which compiles in no time: written out, the table alone takes seconds.
        return lambda total, item: (total * by + form(item), None)

    def row(values):
        return lax.scan(horner(eta, lambda value: value), jnp.zeros_like(eta), values, reverse=True)[0]

    table = jnp.asarray(_temme(), eta.dtype)
    total = lax.scan(horner(1 / a, row), jnp.zeros_like(eta), table, reverse=True)[0]
    shift = jnp.exp(-a * half) / jnp.sqrt(2 * math.pi * a) * total
    side = eta * jnp.sqrt(a / 2)
    return 0.5 * special.erfc(-side) - shift, 0.5 * special.erfc(side) + shift


def _incomplete(self, other, upper):
    a, x = (jnp.asarray(value).astype(jnp.float64) for value in (self, other))
    a, x = jnp.broadcast_arrays(a, x)
    near = (a > _LARGE) & (jnp.abs(x - a) < _NEAR * a) & jnp.isfinite(a) & jnp.isfinite(x)
    plain = ~near & jnp.isfinite(a) & jnp.isfinite(x) & (a > 0) & (x > 0)
    one = jnp.ones_like(a)
    series = special.gammaincc if upper else special.gammainc
    result = series(jnp.where(plain, a, one), jnp.where(plain, x, one))
    result = jnp.where(near, _tails(jnp.where(near, a, 100 * one), jnp.where(near, x, 100 * one))[upper], result)
    # At the edges: x = 0 and infinite x have all or nothing below, whatever a; an infinite a has nothing below a finite
    # x.
    below = jnp.where(x == 0, 0.0, jnp.where(jnp.isinf(a), 0.0, 1.0))
    below = jnp.where((x == 0) & (a == 0) | jnp.isinf(a) & jnp.isinf(x), jnp.nan, below)
    edge = (x == 0) | (a == 0) | jnp.isinf(a) | jnp.isinf(x)
    result = jnp.where(edge, 1 - below if upper else below, result)
    wrong = (x < 0) | (a < 0) | jnp.isnan(x) | jnp.isnan(a)
    return jnp.where(wrong, jnp.nan, result).astype(self.dtype)


def igamma(self, other):
    """The regularised lower incomplete gamma function P(self, other)."""
    return _incomplete(self, other, 0)


def igammac(self, other):
    """The regularised upper incomplete gamma function Q(self, other) = 1 - P, without its loss of digits."""
    return _incomplete(self, other, 1)


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
