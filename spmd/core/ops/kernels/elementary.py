"""Elementary functions of complex numbers, with C99's values (Annex G) at zeros, infinities and NaN.

XLA's own are right where all is finite; at the edges they return NaN for most infinities and lose the sign of a zero,
which decides the side of a branch cut. Real numbers go to XLA's functions as they are.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

_PI_2 = math.pi / 2

_Parts = tuple[jax.Array, jax.Array]


def _by_parts(real: Callable[..., jax.Array], parts: Callable[..., _Parts]) -> Callable[[jax.Array], jax.Array]:
    """A function of real numbers, and of complex ones by their real and imaginary parts."""

    def function(z: jax.Array) -> jax.Array:
        if not jnp.issubdtype(z.dtype, jnp.complexfloating):
            return real(z)
        return lax.complex(*parts(lax.real(z), lax.imag(z)))

    return function


def _turned(parts: Callable[..., _Parts]) -> Callable[..., _Parts]:
    """-i f(iz): sin of sinh, tan of tanh, atan of atanh."""

    def function(x: jax.Array, y: jax.Array) -> _Parts:
        real, imaginary = parts(-y, x)
        return imaginary, -real

    return function


def _plain(function: Callable[..., jax.Array], x: jax.Array, y: jax.Array) -> _Parts:
    result = function(lax.complex(x, y))
    return lax.real(result), lax.imag(result)


def _wild(y: jax.Array) -> jax.Array:
    return ~jnp.isfinite(y)


def _with_signs(x: jax.Array, y: jax.Array, real: jax.Array, imaginary: jax.Array) -> _Parts:
    """The parts of an odd function: each has the sign of the argument's part."""
    return jnp.copysign(jnp.abs(real), x), jnp.copysign(jnp.abs(imaginary), y)


# -- Exponentials. Past the largest exponent the exponential is taken in two halves: a small cosine may keep it finite.


def _halves(x: jax.Array) -> _Parts:
    """(where exp(|x|) overflows, exp(|x| / 2))."""
    return jnp.abs(x) > math.log(float(jnp.finfo(x.dtype).max)), jnp.exp(jnp.abs(x) * 0.5)


def _exp(x: jax.Array, y: jax.Array) -> _Parts:
    whole, (big, half), cosine, sine = jnp.exp(x), _halves(x), jnp.cos(y), jnp.sin(y)
    big &= x > 0
    real = jnp.where(big, half * cosine * half, whole * cosine)
    imaginary = jnp.where(y == 0, y, jnp.where(big, half * sine * half, whole * sine))
    real = jnp.where(y == 0, whole, real)
    real = jnp.where(_wild(y) & (x == jnp.inf), jnp.inf, real)
    nothing = _wild(y) & (x == -jnp.inf)
    return jnp.where(nothing, 0, real), jnp.where(nothing, 0, imaginary)


def _cosh(x: jax.Array, y: jax.Array) -> _Parts:
    (big, half), cosine, sine = _halves(x), jnp.cos(y), jnp.sin(y)
    real = jnp.where(big, half * cosine * (half * 0.5), jnp.cosh(x) * cosine)
    imaginary = jnp.where(big, jnp.copysign(half, x) * sine * (half * 0.5), jnp.sinh(x) * sine)
    zero = jnp.copysign(jnp.zeros_like(x), x) * jnp.copysign(jnp.ones_like(y), y)
    real = jnp.where(jnp.isinf(x) & _wild(y), jnp.inf, real)
    return real, jnp.where((x == 0) | (y == 0), zero, imaginary)


def _sinh(x: jax.Array, y: jax.Array) -> _Parts:
    (big, half), cosine, sine = _halves(x), jnp.cos(y), jnp.sin(y)
    real = jnp.where(big, jnp.copysign(half, x) * cosine * (half * 0.5), jnp.sinh(x) * cosine)
    imaginary = jnp.where(big, half * sine * (half * 0.5), jnp.cosh(x) * sine)
    real = jnp.where(_wild(y) & ((x == 0) | jnp.isinf(x)), x, real)
    return real, jnp.where(y == 0, y, imaginary)


def _cos(x: jax.Array, y: jax.Array) -> _Parts:
    return _cosh(-y, x)


def _tanh(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _plain(jnp.tanh, x, y)
    zero = jnp.copysign(jnp.zeros_like(y), jnp.where(_wild(y), y, jnp.sin(2 * y)))
    real = jnp.where(x == 0, x, jnp.where(jnp.isinf(x), jnp.sign(x), real))
    imaginary = jnp.where(jnp.isinf(x), zero, jnp.where(y == 0, y, imaginary))
    return real, imaginary


def _expm1(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _plain(jnp.expm1, x, y)
    return jnp.where((y == 0) & (x == 0), x, real), jnp.where(y == 0, y, imaginary)


# -- Logarithms and roots.


def _log(x: jax.Array, y: jax.Array) -> _Parts:
    real, _ = _plain(jnp.log, x, y)
    return jnp.where(jnp.isinf(x) | jnp.isinf(y), jnp.inf, real), jnp.arctan2(y, x)


def _log_to(base: float) -> Callable[..., _Parts]:
    def function(x: jax.Array, y: jax.Array) -> _Parts:
        real, imaginary = _log(x, y)
        return real / math.log(base), imaginary / math.log(base)

    return function


def _sqrt(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _plain(jnp.sqrt, x, y)
    real = jnp.where(x == jnp.inf, jnp.inf, jnp.where((x == -jnp.inf) & jnp.isfinite(y), 0, real))
    imaginary = jnp.where((x == jnp.inf) & jnp.isfinite(y), 0, jnp.where(x == -jnp.inf, jnp.inf, imaginary))
    real, imaginary = jnp.where(jnp.isinf(y), jnp.inf, real), jnp.where(jnp.isinf(y), jnp.inf, imaginary)
    return jnp.abs(real), jnp.copysign(jnp.abs(imaginary), y)


def _abs(z: jax.Array) -> jax.Array:
    if not jnp.issubdtype(z.dtype, jnp.complexfloating):
        return z if z.dtype == jnp.bool_ else jnp.abs(z)
    return jnp.where(jnp.isinf(lax.real(z)) | jnp.isinf(lax.imag(z)), jnp.inf, jnp.abs(z))


# -- Inverse functions.


def _asinh(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _plain(jnp.arcsinh, x, y)
    real = jnp.where(jnp.isnan(y) & jnp.isinf(x) | jnp.isnan(x) & jnp.isinf(y), jnp.inf, real)
    return _with_signs(x, y, real, jnp.where(jnp.isnan(x) & (y == 0), y, imaginary))


def _acos(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _plain(jnp.arccos, x, y)
    real = jnp.where((x == 0) & jnp.isnan(y), _PI_2, real)
    imaginary = jnp.where(jnp.isnan(y) & jnp.isinf(x) | jnp.isnan(x) & jnp.isinf(y), jnp.inf, imaginary)
    return real, jnp.copysign(imaginary, -y)


def _acosh(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _acos(x, y)
    # |i acos(z)| on the side of the cut given by the sign of y.
    return jnp.abs(imaginary), jnp.copysign(real, y)


def _atanh(x: jax.Array, y: jax.Array) -> _Parts:
    real, imaginary = _plain(jnp.arctanh, x, y)
    unknown = jnp.isnan(x) | jnp.isnan(y)
    endless = jnp.isinf(x) | jnp.isinf(y)
    real = jnp.where(endless | (x == 0), 0, jnp.where(unknown, jnp.nan, real))
    quarter = jnp.where(jnp.isnan(y), jnp.nan, _PI_2)
    return _with_signs(x, y, real, jnp.where(endless, quarter, jnp.where(unknown, jnp.nan, imaginary)))


exp = _by_parts(jnp.exp, _exp)
exp2 = _by_parts(jnp.exp2, lambda x, y: _exp(x * math.log(2), y * math.log(2)))
expm1 = _by_parts(jnp.expm1, _expm1)
cosh = _by_parts(jnp.cosh, _cosh)
sinh = _by_parts(jnp.sinh, _sinh)
tanh = _by_parts(jnp.tanh, _tanh)
cos = _by_parts(jnp.cos, _cos)
sin = _by_parts(jnp.sin, _turned(_sinh))
tan = _by_parts(jnp.tan, _turned(_tanh))
log = _by_parts(jnp.log, _log)
log2 = _by_parts(jnp.log2, _log_to(2))
log10 = _by_parts(jnp.log10, _log_to(10))
sqrt = _by_parts(jnp.sqrt, _sqrt)
asinh = _by_parts(jnp.arcsinh, _asinh)
asin = _by_parts(jnp.arcsin, _turned(_asinh))
acosh = _by_parts(jnp.arccosh, _acosh)
acos = _by_parts(jnp.arccos, _acos)
atanh = _by_parts(jnp.arctanh, _atanh)
atan = _by_parts(jnp.arctan, _turned(_atanh))
absolute = _abs
