"""Softmax and the activation functions of torch.nn, each next to its gradient."""

import math

import jax.numpy as jnp
import torch
from jax import lax
from jax.scipy import special
from torch._ops import OpOverload

from . import folds
from .floats import wide, widened
from .registry import Function, Promote, lower

aten = torch.ops.aten

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


# -- Softmax.


def _softmax(self, dim, dtype):
    x = self.astype(dtype)
    if x.ndim == 0 or not x.size:
        return jnp.exp(x - x)
    dim = dim if dim < 0 else dim - x.ndim

    def normalised(x):
        weights = jnp.exp(x - jnp.max(x, axis=dim, keepdims=True))
        return weights / jnp.sum(weights, axis=dim, keepdims=True)

    return folds.along((dim,), normalised, x)


@lower(aten._softmax.default)
def aten_softmax(self, dim, half_to_float, *, returns):
    return _softmax(self, dim, wide(returns.dtype)).astype(returns.dtype)


@lower(aten._safe_softmax.default)
def aten_safe_softmax(self, dim, dtype=None, *, returns):
    # A row of only -inf attends to nothing: zeros, not NaN.
    dead = jnp.all(self == -jnp.inf, axis=dim if self.ndim else None, keepdims=True)
    weights = _softmax(self, dim, wide(returns.dtype))
    return jnp.where(dead, jnp.zeros((), weights.dtype), weights).astype(returns.dtype)


@lower(aten._softmax_backward_data.default)
def aten_softmax_backward_data(grad_output, output, dim, input_dtype):
    dim = dim if dim < 0 else dim - output.ndim

    def gradient(grad_output, output):
        weighted = grad_output * output
        total = jnp.sum(weighted, axis=dim, keepdims=True) if output.ndim else weighted
        return weighted - output * total

    return folds.along((dim,), gradient, widened(grad_output), widened(output)).astype(input_dtype)


@lower(aten._log_softmax.default)
def aten_log_softmax(self, dim, half_to_float, *, returns):
    x = self.astype(wide(returns.dtype))
    if x.ndim == 0 or not x.size:
        return (x - x).astype(returns.dtype)
    shifted = x - jnp.max(x, axis=dim, keepdims=True)
    return (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))).astype(
        returns.dtype
    )


@lower(aten._log_softmax_backward_data.default)
def aten_log_softmax_backward_data(grad_output, output, dim, input_dtype):
    grad = widened(grad_output)
    total = jnp.sum(grad, axis=dim, keepdims=True) if grad.ndim else grad
    return (grad - jnp.exp(widened(output)) * total).astype(input_dtype)


# -- GELU, SiLU and similar functions.


@lower(aten.gelu.default, promote=Promote.DEFAULT)
def aten_gelu(self, *, approximate="none"):
    if approximate == "tanh":
        return (
            0.5
            * self
            * (1 + jnp.tanh(_SQRT_2_OVER_PI * (self + _GELU_CUBIC * (self * self * self))))
        )
    return 0.5 * self * (1 + special.erf(self * _SQRT_HALF))


@lower(aten.gelu_backward.default, promote=Promote.DEFAULT)
def aten_gelu_backward(grad_output, self, *, approximate="none"):
    if approximate == "tanh":
        square = self * self
        tanh = jnp.tanh(_SQRT_2_OVER_PI * (self + _GELU_CUBIC * (square * self)))
        inner = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * square)
        return grad_output * (0.5 * (1 + tanh) + 0.5 * self * (1 - tanh * tanh) * inner)
    below = 0.5 * (1 + special.erf(self * _SQRT_HALF))
    density = jnp.exp(-0.5 * self * self) * (1 / math.sqrt(2 * math.pi))
    return grad_output * (below + self * density)


@lower(aten.silu_backward.default, promote=Promote.DEFAULT)
def aten_silu_backward(grad_output, self):
    gate = lax.logistic(self)
    return grad_output * gate * (1 + self * (1 - gate))


def _mish_gate(x):
    """(tanh(softplus(x)), sigmoid(x)) of one n = exp(x): w / (w + 2) where w = n (n + 2), and n /
    (n + 1)."""
    # From 40 on both are 1 in every dtype; bounded there, the square of n stays finite.
    power = jnp.exp(jnp.minimum(x, 40))
    product = power * (power + 2)
    return product / (product + 2), power / (power + 1)


@lower(aten.mish_backward.default, promote=Promote.DEFAULT)
def aten_mish_backward(grad_output, self):
    tanh, sigmoid = _mish_gate(self)
    return grad_output * (tanh + self * sigmoid * (1 - tanh * tanh))


@lower(aten.softplus.default, promote=Promote.DEFAULT)
def aten_softplus(self, beta=1, threshold=20):
    scaled = self * beta
    return jnp.where(scaled > threshold, self, jnp.log1p(jnp.exp(scaled)) / beta)


@lower(aten.softplus_backward.default, promote=Promote.DEFAULT)
def aten_softplus_backward(grad_output, self, beta, threshold):
    return jnp.where(self * beta > threshold, grad_output, grad_output * lax.logistic(self * beta))


@lower(aten.log_sigmoid_forward.default)
def aten_log_sigmoid_forward(self, *, returns):
    x = widened(self)
    output = jnp.minimum(x, 0) - jnp.log1p(jnp.exp(-jnp.abs(x)))
    # The buffer is the CPU kernel's scratch; the gradient below does not read it.
    return output.astype(returns[0].dtype), jnp.zeros(returns[1].shape, returns[1].dtype)


@lower(aten.log_sigmoid_backward.default)
def aten_log_sigmoid_backward(grad_output, self, buffer, *, returns):
    return (widened(grad_output) * lax.logistic(-widened(self))).astype(returns.dtype)


@lower(aten.glu.default, promote=Promote.DEFAULT)
def aten_glu(self, dim=-1):
    value, gate = jnp.split(self, 2, axis=dim)
    return value * lax.logistic(gate)


@lower(aten.glu_backward.default, promote=Promote.DEFAULT)
def aten_glu_backward(grad_output, self, dim):
    value, gate = jnp.split(self, 2, axis=dim)
    gate = lax.logistic(gate)
    grad_value = grad_output * gate
    return jnp.concatenate([grad_value, grad_value * (1 - gate) * value], axis=dim)


# -- Piecewise linear functions.


@lower(aten.leaky_relu_backward.default, promote=Promote.DEFAULT)
def aten_leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lower(aten._prelu_kernel_backward.default, promote=Promote.DEFAULT)
def aten_prelu_kernel_backward(grad_output, self, weight):
    positive = self > 0
    grad_self = jnp.where(positive, grad_output, weight * grad_output)
    return grad_self, jnp.where(positive, jnp.zeros((), self.dtype), self * grad_output)


@lower(aten.elu.default, promote=Promote.DEFAULT)
def aten_elu(self, alpha=1, scale=1, input_scale=1):
    return jnp.where(self <= 0, jnp.expm1(self * input_scale) * (alpha * scale), self * scale)


@lower(aten.elu_backward.default, promote=Promote.DEFAULT)
def aten_elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    x = self_or_result
    if is_result:
        negative = grad_output * input_scale * (x + alpha * scale)
    else:
        negative = grad_output * (input_scale * alpha * scale) * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, negative, grad_output * scale)


@lower(aten.hardtanh.default, promote=Promote.DEFAULT)
def aten_hardtanh(self, min_val=-1, max_val=1):
    low, high = jnp.asarray(min_val, self.dtype), jnp.asarray(max_val, self.dtype)
    return jnp.minimum(jnp.maximum(self, low), high)


@lower(aten.hardtanh_backward.default, promote=Promote.DEFAULT)
def aten_hardtanh_backward(grad_output, self, min_val, max_val):
    return jnp.where(
        (self <= min_val) | (self >= max_val), jnp.zeros((), grad_output.dtype), grad_output
    )


@lower(aten.hardsigmoid_backward.default, promote=Promote.DEFAULT)
def aten_hardsigmoid_backward(grad_output, self):
    # torch's kernels hold the sixth in float32, in float64 as well.
    slope = jnp.where((self > -3) & (self < 3), jnp.float32(1 / 6), 0).astype(grad_output.dtype)
    return grad_output * slope


@lower(aten.hardswish_backward.default, promote=Promote.DEFAULT)
def aten_hardswish_backward(grad_output, self):
    middle = grad_output * (self / 3 + 0.5)
    zero = jnp.zeros((), grad_output.dtype)
    return jnp.where(self <= -3, zero, jnp.where(self < 3, middle, grad_output))


@lower(aten.hardshrink_backward.default, aten.softshrink_backward.default, promote=Promote.DEFAULT)
def aten_shrink_backward(grad_output, /, self, lambd):
    return jnp.where(
        (self >= -lambd) & (self <= lambd), jnp.zeros((), grad_output.dtype), grad_output
    )


@lower(aten.hardshrink.default, promote=Promote.DEFAULT)
def aten_hardshrink(self, lambd=0.5):
    return jnp.where((self >= -lambd) & (self <= lambd), jnp.zeros((), self.dtype), self)


@lower(aten.softshrink.default, promote=Promote.DEFAULT)
def aten_softshrink(self, lambd=0.5):
    # self * 0 keeps NaN.
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@lower(aten.threshold.default, promote=Promote.DEFAULT)
def aten_threshold(self, threshold, value):
    return jnp.where(self <= threshold, jnp.asarray(value, self.dtype), self)


@lower(aten.threshold_backward.default, promote=Promote.DEFAULT)
def aten_threshold_backward(grad_output, self, threshold):
    return jnp.where(self <= threshold, jnp.zeros((), grad_output.dtype), grad_output)


# -- Rules of one expression.

_EXPRESSIONS: dict[OpOverload, Function] = {
    aten.silu.default: lambda self: self * lax.logistic(self),
    aten.mish.default: lambda self: self * _mish_gate(self)[0],
    aten.leaky_relu.default: lambda self, negative_slope=0.01: jnp.where(
        self > 0, self, self * negative_slope
    ),
    aten._prelu_kernel.default: lambda self, weight: jnp.where(self > 0, self, weight * self),
    aten.celu.default: lambda self, alpha=1.0: aten_elu(self, alpha, 1, 1.0 / alpha),
    aten.hardsigmoid.default: lambda self: jnp.minimum(jnp.maximum(self + 3, 0), 6) / 6,
    aten.hardswish.default: lambda self: self * jnp.minimum(jnp.maximum(self + 3, 0), 6) / 6,
    aten.tanh_backward.default: lambda grad_output, output: (
        grad_output * jnp.conj(1 - output * output)
    ),
    aten.sigmoid_backward.default: lambda grad_output, output: (
        grad_output * jnp.conj((1 - output) * output)
    ),
}
for _overload, _function in _EXPRESSIONS.items():
    lower(_overload, promote=Promote.DEFAULT)(_function)
