"""Special functions beyond the elementwise ones of `pointwise`: Bessel and Airy functions, orthogonal polynomials.

Polynomials take their degree as data, so a recurrence runs up to the largest degree present.
"""

import math

import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import special

from .kernels import cephes
from .registry import Promote, lower

aten = torch.ops.aten


def _horner(x, coefficients):
    result = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + jnp.asarray(coefficient, x.dtype)
    return result


def _unary(*overloads):
    return lower(*overloads, promote=Promote.INT_TO_FLOAT)


# -- Bessel functions of the first and second kind.


def _phase(x, order):
    """(modulus cosine, modulus sine) of the asymptotic form past 5, and the angle."""
    inverse = 25.0 / (x * x)
    tables = (
        (cephes.J0_PP, cephes.J0_PQ, cephes.J0_QP, cephes.J0_QQ),
        (cephes.J1_PP, cephes.J1_PQ, cephes.J1_QP, cephes.J1_QQ),
    )[order]
    pp, pq, qp, qq = (_horner(inverse, table) for table in tables)
    angle = x - jnp.asarray((0.25 + 0.5 * order) * math.pi, x.dtype)
    scale = math.sqrt(2 / math.pi) / jnp.sqrt(x)
    return scale * pp / pq, scale * 5.0 / x * (qp / qq), angle


def _far(x):
    return jnp.where(x > 5, x, jnp.full_like(x, 6))


def _near(x):
    return jnp.where(x <= 5, x, jnp.ones_like(x))


@_unary(aten.special_bessel_j0.default)
def aten_special_bessel_j0(self):
    x = jnp.abs(self)
    cosine, sine, angle = _phase(_far(x), 0)
    far = cosine * jnp.cos(angle) - sine * jnp.sin(angle)
    square = _near(x) ** 2
    near = (square - 5.78318596294678452118) * (square - 30.4712623436620863991)
    near = near * _horner(square, cephes.J0_RP) / _horner(square, cephes.J0_RQ)
    near = jnp.where(x < 1e-5, 1 - square / 4, near)
    return _finish(x, jnp.where(x <= 5, near, far))


def _finish(x, made):
    """The result, with NaN where x is infinite or NaN: torch computes with infinities and gets NaN."""
    return jnp.where(jnp.isnan(x) | jnp.isinf(x), jnp.full_like(x, jnp.nan), made)


@_unary(aten.special_bessel_j1.default)
def aten_special_bessel_j1(self):
    x = jnp.abs(self)
    cosine, sine, angle = _phase(_far(x), 1)
    far = cosine * jnp.cos(angle) - sine * jnp.sin(angle)
    close = _near(x)
    square = close * close
    near = _horner(square, cephes.J1_RP) / _horner(square, cephes.J1_RQ) * close
    near = near * (square - 14.6819706421238932572) * (square - 49.2184563216946036703)
    return _finish(x, jnp.where(self < 0, -1, 1) * jnp.where(x <= 5, near, far))


@_unary(aten.special_bessel_y0.default)
def aten_special_bessel_y0(self):
    x = self
    cosine, sine, angle = _phase(_far(x), 0)
    far = cosine * jnp.sin(angle) + sine * jnp.cos(angle)
    close = jnp.where((x > 0) & (x <= 5), x, jnp.ones_like(x))
    square = close * close
    near = _horner(square, cephes.Y0_P) / _horner(square, cephes.Y0_Q)
    near = near + 2 / math.pi * jnp.log(close) * aten_special_bessel_j0(close)
    return _finish_second_kind(x, jnp.where(x <= 5, near, far))


@_unary(aten.special_bessel_y1.default)
def aten_special_bessel_y1(self):
    x = self
    cosine, sine, angle = _phase(_far(x), 1)
    far = cosine * jnp.sin(angle) + sine * jnp.cos(angle)
    close = jnp.where((x > 0) & (x <= 5), x, jnp.ones_like(x))
    square = close * close
    near = close * _horner(square, cephes.Y1_P) / _horner(square, cephes.Y1_Q)
    near = near + 2 / math.pi * (aten_special_bessel_j1(close) * jnp.log(close) - 1 / close)
    return _finish_second_kind(x, jnp.where(x <= 5, near, far))


def _finish_second_kind(x, made):
    made = jnp.where(x == 0, jnp.full_like(x, -jnp.inf), made)
    return jnp.where((x < 0) | jnp.isnan(x) | jnp.isinf(x), jnp.full_like(x, jnp.nan), made)


# -- Modified and spherical Bessel functions.


@_unary(aten.special_modified_bessel_i0.default)
def aten_special_modified_bessel_i0(self):
    return special.i0(self)


@_unary(aten.special_modified_bessel_i1.default)
def aten_special_modified_bessel_i1(self):
    return special.i1(self)


def _chebyshev_series(x, coefficients):
    """Clenshaw's sum of a series of which the last coefficient counts half (Cephes' chbevl)."""
    before = last = jnp.zeros_like(x)
    result = jnp.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last = last, result
        result = x * last - before + jnp.asarray(coefficient, x.dtype)
    return 0.5 * (result - before)


def _second_kind(x, near, table, scaled):
    """K: `near` up to 2, the series past it, either times e^x when scaled."""
    far_x = jnp.where(x > 2, x, jnp.full_like(x, 3))
    far = _chebyshev_series(8 / far_x - 2, table) / jnp.sqrt(far_x)
    result = jnp.where(x <= 2, near * jnp.exp(x) if scaled else near, far if scaled else far * jnp.exp(-far_x))
    result = jnp.where(x == 0, jnp.full_like(x, jnp.inf), result)
    return jnp.where((x < 0) | jnp.isnan(x), jnp.full_like(x, jnp.nan), result)


def _k0(x, scaled):
    close = jnp.where((x > 0) & (x <= 2), x, jnp.ones_like(x))
    near = _chebyshev_series(close * close - 2, cephes.K0_A) - jnp.log(0.5 * close) * special.i0(close)
    return _second_kind(x, near, cephes.K0_B, scaled)


def _k1(x, scaled):
    close = jnp.where((x > 0) & (x <= 2), x, jnp.ones_like(x))
    near = jnp.log(0.5 * close) * special.i1(close) + _chebyshev_series(close * close - 2, cephes.K1_A) / close
    return _second_kind(x, near, cephes.K1_B, scaled)


@_unary(aten.special_modified_bessel_k0.default)
def aten_special_modified_bessel_k0(self):
    return _k0(self, False)


@_unary(aten.special_modified_bessel_k1.default)
def aten_special_modified_bessel_k1(self):
    return _k1(self, False)


@_unary(aten.special_scaled_modified_bessel_k0.default)
def aten_special_scaled_modified_bessel_k0(x):
    return _k0(x, True)


@_unary(aten.special_scaled_modified_bessel_k1.default)
def aten_special_scaled_modified_bessel_k1(x):
    return _k1(x, True)


@_unary(aten.special_spherical_bessel_j0.default)
def aten_special_spherical_bessel_j0(x):
    square = jnp.where(jnp.abs(x) < 0.5, x * x, 0)
    series = _horner(square, [(-1) ** k / math.factorial(2 * k + 1) for k in reversed(range(7))])
    safe = jnp.where((jnp.abs(x) < 0.5) | jnp.isinf(x), jnp.ones_like(x), x)
    result = jnp.where(jnp.abs(x) < 0.5, series, jnp.sin(safe) / safe)
    return jnp.where(jnp.isinf(x), jnp.zeros_like(x), result)


# -- The Airy function.


def _airy_series(x):
    f = m = jnp.ones_like(x)
    g = n = x
    cube, k = x * x * x, 1.0
    for _ in range(14):
        m, n = m * cube / (k + 1), n * cube / (k + 2)
        m, n = m / (k + 2), n / (k + 3)
        k += 3
        f, g = f + m, g + n
    return 0.355028053887817239260 * f - 0.258819403792806798405 * g


def _airy_negative(x):
    root = jnp.sqrt(-x)
    z = 1 / (-2 * x * root / 3)
    square = z * z
    even = 1 + square * _horner(square, cephes.AIRY_AFN) / _horner(square, cephes.AIRY_AFD)
    odd = z * _horner(square, cephes.AIRY_AGN) / _horner(square, cephes.AIRY_AGD)
    angle = -2 * x * root / 3 + 0.25 * math.pi
    return (jnp.sin(angle) * even - jnp.cos(angle) * odd) / (math.sqrt(math.pi) * jnp.sqrt(root))


def _airy_positive(x):
    zeta = 2 * x * jnp.sqrt(x) / 3
    ratio = _horner(1 / zeta, cephes.AIRY_AN) / _horner(1 / zeta, cephes.AIRY_AD)
    return ratio / (2 * math.sqrt(math.pi) * jnp.sqrt(jnp.sqrt(x)) * jnp.exp(zeta))


@_unary(aten.special_airy_ai.default)
def aten_special_airy_ai(x):
    middle = (x > -2.09) & (x < 2.09)
    result = _airy_series(jnp.where(middle, x, 0))
    result = jnp.where(x >= 2.09, _airy_positive(jnp.where(x >= 2.09, x, 3.0)), result)
    result = jnp.where(x <= -2.09, _airy_negative(jnp.where(x <= -2.09, x, -3.0)), result)
    result = jnp.where(x > 103.892, jnp.zeros_like(x), result)
    return jnp.where(jnp.isinf(x) | jnp.isnan(x), jnp.full_like(x, jnp.nan), result)


# -- Orthogonal polynomials. `step(k, p, q)` gives degree k from degrees k - 2 (p) and k - 1 (q).


def _recurrence(n, first, second, step, needed):
    """The polynomial of degree n, elementwise; only where `needed` decides how far the loop runs."""
    last = jnp.max(jnp.where(needed, n, 0), initial=0)
    result = jnp.where(n <= 0, jnp.where(n < 0, jnp.zeros_like(first), first), second)

    def body(state):
        k, p, q, result = state
        r = step(k.astype(first.dtype), p, q)
        return k + 1, q, r, jnp.where(n == k, r, result)

    state = (jnp.asarray(2, n.dtype), first, second, result)
    return lax.while_loop(lambda state: state[0] <= last, body, state)[3]


def _degrees(x, n):
    x, n = jnp.broadcast_arrays(jnp.asarray(x), jnp.asarray(n))
    return x, n.astype(jnp.int64)


def _parity(n):
    return jnp.where(n % 2 == 0, 1, -1)


def _chebyshev(y, n, kind, limit):
    """Kinds t, u, v, w at y: the trigonometric form inside (-1, 1) past degree `limit`, else the recurrence."""
    one = jnp.ones_like(y)
    second = {"t": y, "u": 2 * y, "v": 2 * y - 1, "w": 2 * y + 1}[kind]
    is_edge, is_inner = jnp.abs(y) == 1, (jnp.abs(y) < 1) & (n > limit)
    result = _recurrence(n, one, second, lambda k, p, q: 2 * y * q - p, ~(is_edge | is_inner))
    degree, sign = n.astype(y.dtype), _parity(n).astype(y.dtype)
    odd = 2 * degree + 1
    top = {"t": one, "u": degree + 1, "v": one, "w": odd}[kind]
    bottom = {"t": sign, "u": sign * (degree + 1), "v": sign * odd, "w": sign}[kind]
    angle = jnp.arccos(jnp.where(is_inner, y, 0))
    half = angle / 2
    inner = {
        "t": lambda: jnp.cos(degree * angle),
        "u": lambda: jnp.sin((degree + 1) * angle) / jnp.sin(angle),
        "v": lambda: jnp.where(jnp.sin(half) != 1, jnp.cos((degree + 0.5) * angle) / jnp.cos(half), sign * odd),
        "w": lambda: jnp.where(jnp.cos(half) != 1, jnp.sin((degree + 0.5) * angle) / jnp.sin(half), odd),
    }[kind]()
    result = jnp.where(is_inner, inner, result)
    result = jnp.where(is_edge, jnp.where(y > 0, top, bottom), result)
    return jnp.where(n < 0, jnp.zeros_like(y), result)


def _hermite(x, n, second, factor):
    """The polynomial, or NaN past the degree at which torch stops; so the loop is bounded."""
    limit = 512 if x.dtype == jnp.float64 else 128
    result = _recurrence(n, jnp.ones_like(x), second, lambda k, p, q: second * q - factor * (k - 1) * p, n <= limit)
    return jnp.where(n > limit, jnp.full_like(x, jnp.nan), result)


def _laguerre(x, n):
    result = _recurrence(n, jnp.ones_like(x), 1 - x, lambda k, p, q: ((2 * k - 1 - x) * q - (k - 1) * p) / k, x != 0)
    return jnp.where((x == 0) & (n >= 0), jnp.ones_like(x), result)


def _legendre(x, n):
    is_edge = jnp.abs(x) == 1
    result = _recurrence(n, jnp.ones_like(x), x, lambda k, p, q: ((2 * k - 1) * x * q - (k - 1) * p) / k, ~is_edge)
    edge = jnp.where(x > 0, 1, _parity(n)).astype(x.dtype)
    return jnp.where(is_edge & (n >= 0), edge, result)


_POLYNOMIALS = {
    "chebyshev_polynomial_t": lambda x, n: _chebyshev(x, n, "t", 6),
    "chebyshev_polynomial_u": lambda x, n: _chebyshev(x, n, "u", 8),
    "chebyshev_polynomial_v": lambda x, n: _chebyshev(x, n, "v", 8),
    "chebyshev_polynomial_w": lambda x, n: _chebyshev(x, n, "w", 8),
    "shifted_chebyshev_polynomial_t": lambda x, n: _chebyshev(2 * x - 1, n, "t", 6),
    "shifted_chebyshev_polynomial_u": lambda x, n: _chebyshev(2 * x - 1, n, "u", 6),
    "shifted_chebyshev_polynomial_v": lambda x, n: _chebyshev(2 * x - 1, n, "v", 6),
    "shifted_chebyshev_polynomial_w": lambda x, n: _chebyshev(2 * x - 1, n, "w", 4),
    "hermite_polynomial_h": lambda x, n: _hermite(x, n, 2 * x, 2),
    "hermite_polynomial_he": lambda x, n: _hermite(x, n, x, 1),
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}


def _register_polynomial(name, function):
    def polynomial(x, n):
        return function(*_degrees(x, n))

    packet = getattr(aten, f"special_{name}")
    lower(packet.default, packet.x_scalar, packet.n_scalar, promote=Promote.INT_TO_FLOAT)(polynomial)


for _name, _function in _POLYNOMIALS.items():
    _register_polynomial(_name, _function)
