"""Fake quantization: values rounded to the levels of an integer dtype and back, and the gradients
of learned levels."""

from typing import Any

import jax.numpy as jnp
import torch

from .registry import Function, lower

aten = torch.ops.aten


def _fake(self, scale, zero_point, low, high, axis=None):
    """(rounded values, True where a value is within the levels); axis: of the scales and zero
    points."""
    scale, zero_point = (_along(x, self.ndim, axis) for x in (scale, zero_point))
    levels = _levels(self, scale, zero_point)
    rounded = (jnp.fmin(jnp.fmax(levels, low), high) - zero_point) * scale
    return rounded.astype(self.dtype), (levels >= low) & (levels <= high)


def _levels(self, scale, zero_point):
    # torch adds an integer zero point after it has rounded, a float before.
    scaled = self.astype(jnp.float32) * (1 / scale)
    if jnp.issubdtype(zero_point.dtype, jnp.integer):
        return jnp.round(scaled) + zero_point
    return jnp.round(scaled + zero_point)


def _along(x, rank, axis):
    x = jnp.asarray(x)
    x = x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x
    return x.reshape([-1 if dim == axis else 1 for dim in range(rank)])


def _learned(self, scale, zero_point, low, high, axis=None):
    # One zero point is rounded half up, those of channels half to even.
    rounded = jnp.floor(zero_point + 0.5) if axis is None else jnp.round(zero_point)
    return _fake(self, scale, jnp.clip(rounded, low, high).astype(jnp.int32), low, high, axis)[0]


def _learned_backward(grad, self, scale, zero_point, low, high, factor, axis=None):
    shape, (scale, zero_point) = (
        scale.shape,
        (_along(x, self.ndim, axis) for x in (scale, zero_point)),
    )
    zero_point = jnp.clip(jnp.round(zero_point), low, high)
    levels = _levels(self, scale, zero_point)  # a float: in its gradients torch rounds the sum
    inside, bound = (
        (levels >= low) & (levels <= high),
        jnp.fmin(jnp.fmax(levels, low), high) - zero_point,
    )
    slopes = jnp.where(inside, bound - self / scale, bound)
    grads = grad * slopes * factor, jnp.where(inside, 0, -grad * scale) * factor
    summed_dims = [dim for dim in range(self.ndim) if dim != axis]
    return jnp.where(inside, grad, 0), *(jnp.sum(x, axis=summed_dims).reshape(shape) for x in grads)


_RULES: dict[Any, Function] = {
    aten.fake_quantize_per_tensor_affine_cachemask: (
        lambda self, scale, zero_point, quant_min, quant_max: _fake(
            self, scale, zero_point, quant_min, quant_max
        )
    ),
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams: (
        lambda self, scale, zero_point, fake_quant_enabled, quant_min, quant_max: [
            jnp.where(fake_quant_enabled.reshape(()) != 0, new, old)
            for new, old in zip(
                _fake(self, scale, zero_point, quant_min, quant_max), (self, True), strict=True
            )
        ]
    ),
    aten.fake_quantize_per_channel_affine_cachemask: (
        lambda self, scale, zero_point, axis, quant_min, quant_max: _fake(
            self, scale, zero_point, quant_min, quant_max, axis % self.ndim
        )
    ),
    aten._fake_quantize_learnable_per_tensor_affine: (
        lambda self, scale, zero_point, quant_min, quant_max, grad_factor=1.0: _learned(
            self, scale, zero_point, quant_min, quant_max
        )
    ),
    aten._fake_quantize_learnable_per_channel_affine: (
        lambda self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0: _learned(
            self, scale, zero_point, quant_min, quant_max, axis % self.ndim
        )
    ),
    aten._fake_quantize_learnable_per_tensor_affine_backward: (
        lambda grad, self, scale, zero_point, quant_min, quant_max, grad_factor=1.0: (
            _learned_backward(grad, self, scale, zero_point, quant_min, quant_max, grad_factor)
        )
    ),
    aten._fake_quantize_learnable_per_channel_affine_backward: (
        lambda grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor=1.0: (
            _learned_backward(
                grad, self, scale, zero_point, quant_min, quant_max, grad_factor, axis % self.ndim
            )
        )
    ),
}
for _packet, _rule in _RULES.items():
    lower(_packet.default)(_rule)
