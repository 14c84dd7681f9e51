"""Elementwise rules: arithmetic, comparison, logic, bits, where, clamp.

Activation functions are in `activation`.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from jax.scipy import special
from torch._ops import OpOverload

from .floats import is_exact
from .kernels import elementary
from .registry import Function, Promote, lower

aten = torch.ops.aten


def _times(x, factor):
    """factor * x; an omitted factor arrives as the Python int 1 and costs nothing."""
    return x if isinstance(factor, int) and factor == 1 else factor * x


# -- Unary ops. May join: ops of one tensor and nothing else that are one JAX function of it, NaN
# and inf included.


def _rounding(function):
    return lambda self: self if is_exact(self) else function(self)


def _sign(self):
    # torch's sign of NaN is 0, JAX's is NaN. Complex numbers have a phase, which JAX computes as
    # torch's sgn does.
    if jnp.issubdtype(self.dtype, jnp.complexfloating) or self.dtype == jnp.bool_:
        return self if self.dtype == jnp.bool_ else jnp.sign(self)
    return (self > 0).astype(self.dtype) - (self < 0).astype(self.dtype)


def _by_parts(real, parts):
    """A function of real numbers, and of complex ones by their real and imaginary parts."""

    def function(z):
        if not jnp.issubdtype(z.dtype, jnp.complexfloating):
            return real(z)
        return lax.complex(*parts(lax.real(z), lax.imag(z)))

    return function


def _absolute(z):
    if not jnp.issubdtype(z.dtype, jnp.complexfloating):
        return z if z.dtype == jnp.bool_ else jnp.abs(z)
    return jnp.where(jnp.isinf(lax.real(z)) | jnp.isinf(lax.imag(z)), jnp.inf, jnp.abs(z))


def _erfcx(self):
    # exp(x^2) erfc(x) is overflow times underflow past 5, where jax's erfcx is 0 in places (26.6 in
    # float64): the continued fraction of this depth is exact in float64.
    big = jnp.maximum(self, 5.0)
    fraction = big
    for k in range(12, 0, -1):
        fraction = big + 0.5 * k / fraction
    return jnp.where(
        self > 5.0, 1.0 / (fraction * math.sqrt(math.pi)), jnp.exp(self * self) * special.erfc(self)
    )


def _incomplete_gamma(function, at_infinity):
    """An incomplete gamma function of jax's, which loses digits in float32. at_infinity: its limit
    at infinite self; at 0 it is the other of 0 and 1."""

    def rule(self, other):
        a, x = self.astype(jnp.float64), other.astype(jnp.float64)
        limit = jnp.where(a == 0, 1 - at_infinity, at_infinity)
        has_limit = jnp.where(a == 0, x > 0, (x >= 0) & jnp.isfinite(x))
        has_none = (a != 0) & (a != jnp.inf)
        return jnp.where(has_none, function(a, x), jnp.where(has_limit, limit, jnp.nan)).astype(
            self.dtype
        )

    return rule


def _digamma(self):
    # At 0 torch returns the limit from the side given by the zero's sign.
    return jnp.where(
        self == 0, jnp.copysign(jnp.asarray(jnp.inf, self.dtype), -self), special.digamma(self)
    )


def _is_pole(self):
    return (self <= 0) & (self == jnp.floor(self))


def _angle(self):
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.angle(self)
    if is_exact(self):
        return jnp.where(self < 0, jnp.float32(math.pi), jnp.float32(0))
    return jnp.where(
        jnp.isnan(self), self, jnp.where(self < 0, jnp.asarray(math.pi, self.dtype), 0)
    )


# By the name that torch has in common with jax, and of complex numbers with `elementary`.
_BY_PARTS = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "cos",
    "cosh",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log10",
    "log2",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
)
_SPECIAL = ("entr", "i0e", "i1", "i1e", "log_ndtr", "ndtri")
UNARY_FLOAT = {
    **{
        getattr(aten, name).default: _by_parts(getattr(jnp, name), getattr(elementary, name))
        for name in _BY_PARTS
    },
    **{
        getattr(aten, name).default: getattr(jnp, name)
        for name in ("deg2rad", "log1p", "rad2deg", "sinc")
    },
    **{
        getattr(aten, name).default: getattr(special, name)
        for name in ("erf", "erfc", "erfinv", "i0")
    },
    **{getattr(aten, f"special_{name}").default: getattr(special, name) for name in _SPECIAL},
    aten.digamma.default: _digamma,
    aten.lgamma.default: special.gammaln,
    aten.reciprocal.default: lambda self: 1 / self,
    aten.rsqrt.default: lax.rsqrt,
    aten.sigmoid.default: lax.logistic,
    aten.special_erfcx.default: _erfcx,
    aten.special_modified_bessel_i0.default: special.i0,
    aten.special_modified_bessel_i1.default: special.i1,
}

UNARY_DEFAULT = {
    aten.bitwise_not.default: jnp.bitwise_not,
    aten._conj_physical.default: jnp.conj,
    aten.ceil.default: _rounding(jnp.ceil),
    aten.floor.default: _rounding(jnp.floor),
    aten.frac.default: lambda self: self - jnp.trunc(self),
    aten.neg.default: jnp.negative,
    aten.relu.default: lambda self: jnp.maximum(self, jnp.zeros((), self.dtype)),
    aten.round.default: _rounding(jnp.round),
    aten.sgn.default: _sign,
    aten.sign.default: _sign,
    aten.trunc.default: _rounding(jnp.trunc),
}

_UNARY_BOOL = {
    **{
        getattr(aten, n).default: getattr(jnp, n)
        for n in ("isinf", "isnan", "isneginf", "isposinf", "logical_not")
    },
    aten.signbit.default: lambda self: self < 0 if is_exact(self) else jnp.signbit(self),
}
_UNARY_REAL = {aten.abs.default: _absolute, aten.angle.default: _angle}

# -- Binary ops, by their function. May join: two operands, no other argument; either may be a
# Python number.


def _floor_divide(self, other):
    if is_exact(self):
        return jnp.floor_divide(self, other)
    # torch computes the quotient from the remainder, so that q * other + remainder == self.
    remainder = lax.rem(*jnp.broadcast_arrays(self, other))
    quotient = (self - remainder) / other
    quotient = jnp.where(
        (remainder != 0) & ((other < 0) != (remainder < 0)), quotient - 1, quotient
    )
    floored = jnp.floor(quotient)
    floored = jnp.where(quotient - floored > 0.5, floored + 1, floored)
    floored = jnp.where(quotient == 0, jnp.copysign(jnp.zeros_like(floored), self / other), floored)
    return jnp.where(other == 0, self / other, floored)


def _fmod(self, other):
    return lax.rem(*jnp.broadcast_arrays(self, other))


def _trunc_divide(self, other):
    return (
        lax.div(*jnp.broadcast_arrays(self, other)) if is_exact(self) else jnp.trunc(self / other)
    )


def _xlogy(self, other):
    return jnp.where(
        jnp.isnan(other), other, jnp.where(self == 0, jnp.zeros_like(self), self * jnp.log(other))
    )


def _logaddexp(self, other):
    if not jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.logaddexp(self, other)
    # torch adds the angle of the greater one without wrapping it around, as jax does.
    is_less = self.real < other.real
    high, low = jnp.where(is_less, other, self), jnp.where(is_less, self, other)
    # where both are infinite
    equal = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
    return jnp.where(
        jnp.isinf(low.real) & (low.real == high.real), equal, high + jnp.log1p(jnp.exp(low - high))
    )


def _zeta(self, other):
    """Hurwitz' zeta function, infinite at its poles where torch's is; jax returns NaN there, or the
    other infinity."""
    result = jnp.where(_is_pole(other), jnp.inf, special.zeta(self, other))
    return jnp.where(self < 1, jnp.nan, jnp.where(self == 1, jnp.inf, result))


def _power(self, exponent):
    if not is_exact(self):
        return jnp.power(self, exponent)
    # Integers to negative powers are 0 in torch, except of 1 and -1, whose powers are themselves.
    result = jnp.power(self, jnp.maximum(exponent, 0))
    if jnp.issubdtype(exponent.dtype, jnp.signedinteger):
        odd = jnp.where(exponent % 2 != 0, self, jnp.ones_like(self))
        result = jnp.where(exponent < 0, jnp.where(jnp.abs(self) == 1, odd, 0), result)
    return result


_BINARY_DEFAULT = {
    _floor_divide: (aten.floor_divide.default, aten.floor_divide.Scalar),
    _fmod: (aten.fmod.Tensor, aten.fmod.Scalar),
    _logaddexp: (aten.logaddexp.default,),
    _power: (aten.pow.Tensor_Tensor, aten.pow.Scalar),
    jnp.left_shift: (
        aten.__lshift__.Scalar,
        aten.__lshift__.Tensor,
        aten.bitwise_left_shift.Tensor,
        aten.bitwise_left_shift.Scalar_Tensor,
        aten.bitwise_left_shift.Tensor_Scalar,
    ),
    **{
        getattr(jnp, name): (packet.Tensor, packet.Scalar, packet.Scalar_Tensor)
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "remainder")
        for packet in [getattr(aten, name)]
    },
    **{
        getattr(jnp, n): (getattr(aten, n).default,)
        for n in ("fmax", "fmin", "gcd", "hypot", "lcm", "logaddexp2")
    },
    jnp.maximum: (aten.maximum.default, aten.clamp_min.default, aten.clamp_min.Tensor),
    jnp.minimum: (aten.minimum.default, aten.clamp_max.default, aten.clamp_max.Tensor),
    jnp.multiply: (aten.mul.Tensor, aten.mul.Scalar),
    jnp.right_shift: (
        aten.__rshift__.Scalar,
        aten.__rshift__.Tensor,
        aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Scalar_Tensor,
        aten.bitwise_right_shift.Tensor_Scalar,
    ),
}

_BINARY_FLOAT = {
    _xlogy: (aten.xlogy.Tensor, aten.xlogy.Scalar_Other, aten.xlogy.Scalar_Self),
    _incomplete_gamma(special.gammainc, 0.0): (aten.igamma.default,),
    _incomplete_gamma(special.gammaincc, 1.0): (aten.igammac.default,),
    jnp.arctan2: (aten.atan2.default,),
    jnp.copysign: (aten.copysign.Tensor, aten.copysign.Scalar),
    jnp.divide: (aten.div.Tensor, aten.div.Scalar),
    _zeta: (
        aten.special_zeta.default,
        aten.special_zeta.other_scalar,
        aten.special_zeta.self_scalar,
    ),
}

_COMPARISONS = {
    jnp.equal: (aten.eq.Tensor, aten.eq.Scalar),
    jnp.greater: (aten.gt.Tensor, aten.gt.Scalar),
    jnp.greater_equal: (aten.ge.Tensor, aten.ge.Scalar),
    jnp.less: (aten.lt.Tensor, aten.lt.Scalar),
    jnp.less_equal: (aten.le.Tensor, aten.le.Scalar),
    **{
        getattr(jnp, f"logical_{name}"): (getattr(aten, f"logical_{name}").default,)
        for name in ("and", "or", "xor")
    },
    jnp.not_equal: (aten.ne.Tensor, aten.ne.Scalar),
}


def _of_operands(function):
    """The rule of operands alone: a Python number takes the array's dtype, wrapping around as
    torch's does."""

    def rule(*args):
        dtype = jnp.result_type(*(arg for arg in args if isinstance(arg, jax.Array)))
        arrays = (
            arg if isinstance(arg, jax.Array) else jnp.asarray(np.asarray(arg).astype(dtype))
            for arg in args
        )
        return function(*arrays)

    return rule


for _table, _promote in (
    (UNARY_FLOAT, Promote.INT_TO_FLOAT),
    (UNARY_DEFAULT, Promote.DEFAULT),
    (_UNARY_BOOL, Promote.ALWAYS_BOOL),
    (_UNARY_REAL, Promote.COMPLEX_TO_FLOAT),
):
    for _overload, _function in _table.items():
        lower(_overload, promote=_promote)(_of_operands(_function))

for _by_function, _promote in (
    (_BINARY_DEFAULT, Promote.DEFAULT),
    (_BINARY_FLOAT, Promote.INT_TO_FLOAT),
    (_COMPARISONS, Promote.ALWAYS_BOOL),
):
    for _function, _overloads in _by_function.items():
        lower(*_overloads, promote=_promote)(_of_operands(_function))


# -- Sums with a factor.


_WITH_FACTOR: dict[tuple[OpOverload, ...], Function] = {
    (aten.add.Tensor, aten.add.Scalar): lambda self, other, alpha=1: jnp.add(
        self, _times(other, alpha)
    ),
    (aten.sub.Tensor, aten.sub.Scalar): lambda self, other, alpha=1: jnp.subtract(
        self, _times(other, alpha)
    ),
    (aten.rsub.Tensor, aten.rsub.Scalar): lambda self, other, alpha=1: jnp.subtract(
        other, _times(self, alpha)
    ),
    (aten.addcmul.default,): lambda self, tensor1, tensor2, *, value=1: (
        self + _times(tensor1, value) * tensor2
    ),
    (aten.addcdiv.default,): lambda self, tensor1, tensor2, *, value=1: (
        self + _times(tensor1, value) / tensor2
    ),
}
for _overloads, _function in _WITH_FACTOR.items():
    lower(*_overloads, promote=Promote.DEFAULT)(_function)


@lower(aten.lerp.Scalar, aten.lerp.Tensor, promote=Promote.DEFAULT)
def aten_lerp(self, end, weight):
    # torch starts from the nearer end, so that weight 1 gives exactly `end`; one select takes the
    # end, one the factor.
    near = (jnp.abs(weight) if jnp.iscomplexobj(weight) else weight) < 0.5
    base = jnp.where(near, self, end)
    return base + jnp.where(near, weight, weight - 1) * (end - self)


@lower(aten.ldexp.Tensor, promote=Promote.INT_TO_FLOAT)
def aten_ldexp(self, other):
    return self * jnp.exp2(other)


# -- Division and powers whose meaning depends on a static argument.


@lower(aten.div.Tensor_mode, aten.div.Scalar_mode, promote=Promote.DEFAULT)
def aten_div_mode(self, other, *, rounding_mode):
    if rounding_mode is None:
        return self / other
    return _floor_divide(self, other) if rounding_mode == "floor" else _trunc_divide(self, other)


@lower(aten.pow.Tensor_Scalar, promote=Promote.DEFAULT)
def aten_pow_scalar(self, exponent):
    if self.dtype == jnp.bool_:
        return self if exponent else jnp.ones_like(self)
    if exponent == 0.5:
        return jnp.sqrt(self)
    if exponent == -0.5:
        return lax.rsqrt(self)
    if not isinstance(exponent, complex) and exponent == int(exponent) and abs(exponent) <= 32:
        return lax.integer_pow(self, int(exponent))
    return jnp.power(self, jnp.asarray(exponent, self.dtype))


_MOST_TERMS = 4096


def _hurwitz_zeta(s, q):
    """zeta(s, q) for integer s: terms of negative q are summed one by one, up to where JAX's
    function is defined."""

    def goes_on(state):
        return jnp.any(state[1] <= 0) & (state[2] < _MOST_TERMS)

    def add(state):
        total, shifted_q, count = state
        is_left = shifted_q <= 0
        return (
            jnp.where(is_left, total + jnp.power(shifted_q, -s), total),
            jnp.where(is_left, shifted_q + 1, shifted_q),
            count + 1,
        )

    total, shifted_q, _ = lax.while_loop(goes_on, add, (jnp.zeros_like(q), q, 0))
    return jnp.where(_is_pole(q), jnp.inf, total + special.zeta(s, shifted_q))


@lower(aten.polygamma.default, promote=Promote.INT_TO_FLOAT)
def aten_polygamma(n, self):
    if n == 0:
        return _digamma(self)
    if n > 1:
        order = jnp.asarray(n + 1.0, self.dtype)
        return (1 if n % 2 else -1) * jnp.exp(lax.lgamma(order)) * _hurwitz_zeta(order, self)
    # Left of 1/2 by reflection, as torch computes it, near the poles too.
    is_left = self < 0.5
    right = special.zeta(jnp.asarray(2.0, self.dtype), jnp.where(is_left, 1 - self, self))
    sine = jnp.sin(math.pi * jnp.where(is_left, self, jnp.asarray(0.5, self.dtype)))
    return jnp.where(is_left, (math.pi / sine) ** 2 - right, right)


# -- Selection.


@lower(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def aten_where(condition, self, other, *, returns):
    return jnp.where(
        condition, jnp.asarray(self).astype(returns.dtype), jnp.asarray(other).astype(returns.dtype)
    )


@lower(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def aten_masked_fill(self, mask, value):
    return jnp.where(mask, jnp.asarray(value).astype(self.dtype), self)


@lower(aten.clamp.default, aten.clamp.Tensor, promote=Promote.DEFAULT)
def aten_clamp(self, min=None, max=None):
    # NaN passes through both; where min > max the result is max, as in torch.
    result = self if min is None else jnp.maximum(self, min)
    return result if max is None else jnp.minimum(result, max)


lower(aten.nextafter.default)(lambda self, other: jnp.nextafter(self, other))


@lower(aten.frexp.Tensor)
def aten_frexp(self):
    mantissa, exponent = jnp.frexp(self)
    return mantissa.astype(self.dtype), exponent.astype(np.int32)


@lower(aten.nan_to_num.default)
def aten_nan_to_num(self, nan=None, posinf=None, neginf=None):
    if is_exact(self):
        return self
    return jnp.nan_to_num(self, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)
