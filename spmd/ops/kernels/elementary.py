"""Elementary functions of complex numbers by their parts, with C99's values (Annex G) at zeros,
infinities and NaN.

XLA's own are right where all is finite; at the edges they return NaN for most infinities and lose
the sign of a zero, which decides the side of a branch cut.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

_PI_2 = math.pi / 2

Parts = tuple[jax.Array, jax.Array]


def _turned(parts: Callable[..., Parts]) -> Callable[..., Parts]:
    """-i f(iz): sin of sinh, tan of tanh, atan of atanh."""

    def function(x: jax.Array, y: jax.Array) -> Parts:
        real, imaginary = parts(-y, x)
        return imaginary, -real

    return function


def _plain(function: Callable[..., jax.Array], x: jax.Array, y: jax.Array) -> Parts:
    result = function(lax.complex(x, y))
    return lax.real(result), lax.imag(result)


def _wild(y: jax.Array) -> jax.Array:
    return ~jnp.isfinite(y)


def _with_signs(x: jax.Array, y: jax.Array, real: jax.Array, imaginary: jax.Array) -> Parts:
    """The parts of an odd function: each has the sign of the argument's part."""
    return jnp.copysign(jnp.abs(real), x), jnp.copysign(jnp.abs(imaginary), y)


# -- Exponentials. Past the largest exponent the exponential is taken in two halves: a small cosine
# may keep it finite.


def _halves(x: jax.Array) -> Parts:
    """(where exp(|x|) overflows, exp(|x| / 2))."""
    return jnp.abs(x) > math.log(float(jnp.finfo(x.dtype).max)), jnp.exp(jnp.abs(x) * 0.5)


def exp(x: jax.Array, y: jax.Array) -> Parts:
    whole, (big, half), cosine, sine = jnp.exp(x), _halves(x), jnp.cos(y), jnp.sin(y)
    big &= x > 0
    real = jnp.where(big, half * cosine * half, whole * cosine)
    imaginary = jnp.where(y == 0, y, jnp.where(big, half * sine * half, whole * sine))
    real = jnp.where(y == 0, whole, real)
    real = jnp.where(_wild(y) & (x == jnp.inf), jnp.inf, real)
    is_zero = _wild(y) & (x == -jnp.inf)
    return jnp.where(is_zero, 0, real), jnp.where(is_zero, 0, imaginary)


def cosh(x: jax.Array, y: jax.Array) -> Parts:
    (big, half), cosine, sine = _halves(x), jnp.cos(y), jnp.sin(y)
    real = jnp.where(big, half * cosine * (half * 0.5), jnp.cosh(x) * cosine)
    imaginary = jnp.where(big, jnp.copysign(half, x) * sine * (half * 0.5), jnp.sinh(x) * sine)
    zero = jnp.copysign(jnp.zeros_like(x), x) * jnp.copysign(jnp.ones_like(y), y)
    real = jnp.where(jnp.isinf(x) & _wild(y), jnp.inf, real)
    return real, jnp.where((x == 0) | (y == 0), zero, imaginary)


def sinh(x: jax.Array, y: jax.Array) -> Parts:
    (big, half), cosine, sine = _halves(x), jnp.cos(y), jnp.sin(y)
    real = jnp.where(big, jnp.copysign(half, x) * cosine * (half * 0.5), jnp.sinh(x) * cosine)
    imaginary = jnp.where(big, half * sine * (half * 0.5), jnp.cosh(x) * sine)
    real = jnp.where(_wild(y) & ((x == 0) | jnp.isinf(x)), x, real)
    return real, jnp.where(y == 0, y, imaginary)


def cos(x: jax.Array, y: jax.Array) -> Parts:
    return cosh(-y, x)


def tanh(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = _plain(jnp.tanh, x, y)
    zero = jnp.copysign(jnp.zeros_like(y), jnp.where(_wild(y), y, jnp.sin(2 * y)))
    real = jnp.where(x == 0, x, jnp.where(jnp.isinf(x), jnp.sign(x), real))
    imaginary = jnp.where(jnp.isinf(x), zero, jnp.where(y == 0, y, imaginary))
    return real, imaginary


def expm1(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = _plain(jnp.expm1, x, y)
    return jnp.where((y == 0) & (x == 0), x, real), jnp.where(y == 0, y, imaginary)


# -- Logarithms and roots.


def log(x: jax.Array, y: jax.Array) -> Parts:
    real, _ = _plain(jnp.log, x, y)
    return jnp.where(jnp.isinf(x) | jnp.isinf(y), jnp.inf, real), jnp.arctan2(y, x)


def _log_to(base: float) -> Callable[..., Parts]:
    def function(x: jax.Array, y: jax.Array) -> Parts:
        real, imaginary = log(x, y)
        return real / math.log(base), imaginary / math.log(base)

    return function


def sqrt(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = _plain(jnp.sqrt, x, y)
    real = jnp.where(x == jnp.inf, jnp.inf, jnp.where((x == -jnp.inf) & jnp.isfinite(y), 0, real))
    imaginary = jnp.where(
        (x == jnp.inf) & jnp.isfinite(y), 0, jnp.where(x == -jnp.inf, jnp.inf, imaginary)
    )
    real, imaginary = (
        jnp.where(jnp.isinf(y), jnp.inf, real),
        jnp.where(jnp.isinf(y), jnp.inf, imaginary),
    )
    return jnp.abs(real), jnp.copysign(jnp.abs(imaginary), y)


# -- Inverse functions.


def asinh(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = _plain(jnp.arcsinh, x, y)
    real = jnp.where(jnp.isnan(y) & jnp.isinf(x) | jnp.isnan(x) & jnp.isinf(y), jnp.inf, real)
    return _with_signs(x, y, real, jnp.where(jnp.isnan(x) & (y == 0), y, imaginary))


def acos(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = _plain(jnp.arccos, x, y)
    real = jnp.where((x == 0) & jnp.isnan(y), _PI_2, real)
    imaginary = jnp.where(
        jnp.isnan(y) & jnp.isinf(x) | jnp.isnan(x) & jnp.isinf(y), jnp.inf, imaginary
    )
    return real, jnp.copysign(imaginary, -y)


def acosh(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = acos(x, y)
    # |i acos(z)| on the side of the cut given by the sign of y.
    return jnp.abs(imaginary), jnp.copysign(real, y)


def atanh(x: jax.Array, y: jax.Array) -> Parts:
    real, imaginary = _plain(jnp.arctanh, x, y)
    unknown = jnp.isnan(x) | jnp.isnan(y)
    endless = jnp.isinf(x) | jnp.isinf(y)
    real = jnp.where(endless | (x == 0), 0, jnp.where(unknown, jnp.nan, real))
    quarter = jnp.where(jnp.isnan(y), jnp.nan, _PI_2)
    return _with_signs(
        x, y, real, jnp.where(endless, quarter, jnp.where(unknown, jnp.nan, imaginary))
    )


def exp2(x: jax.Array, y: jax.Array) -> Parts:
    return exp(x * math.log(2), y * math.log(2))


sin, tan, asin, atan = _turned(sinh), _turned(tanh), _turned(asinh), _turned(atanh)
log2, log10 = _log_to(2), _log_to(10)
