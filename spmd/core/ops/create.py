"""Factories and copies: tensors made from numbers, and tensors made from tensors of the same values."""

import jax
import jax.numpy as jnp
import torch

from .registry import lower

aten = torch.ops.aten


@lower(aten.full.default)
def aten_full(size, fill_value, *, dtype=None, returns):
    return jnp.full(returns.shape, fill_value, returns.dtype)


@lower(aten.full_like.default)
def aten_full_like(self, fill_value, *, dtype=None, returns):
    return jnp.full(returns.shape, fill_value, returns.dtype)


@lower(aten.new_full.default)
def aten_new_full(self, size, fill_value, *, dtype=None, returns):
    return jnp.full(returns.shape, fill_value, returns.dtype)


@lower(aten.fill.Scalar)
def aten_fill(self, value, *, returns):
    return jnp.full(returns.shape, value, returns.dtype)


@lower(aten.fill.Tensor)
def aten_fill_tensor(self, value, *, returns):
    return jnp.broadcast_to(value.astype(returns.dtype), returns.shape)


@lower(aten.zero.default)
def aten_zero(self):
    return jnp.zeros(self.shape, self.dtype)


@lower(aten.zeros_like.default)
def aten_zeros_like(self, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.ones_like.default)
def aten_ones_like(self, *, dtype=None, returns):
    return jnp.ones(returns.shape, returns.dtype)


@lower(aten.new_zeros.default)
def aten_new_zeros(self, size, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.new_ones.default)
def aten_new_ones(self, size, *, dtype=None, returns):
    return jnp.ones(returns.shape, returns.dtype)


# torch leaves new memory as it finds it; zeros are as good as any garbage and the same on every run.
@lower(aten.empty_like.default)
def aten_empty_like(self, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.new_empty.default)
def aten_new_empty(self, size, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.new_empty_strided.default)
def aten_new_empty_strided(self, size, stride, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.empty_strided.default)
def aten_empty_strided(size, stride, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.empty.memory_format)
def aten_empty(size, *, dtype=None, returns):
    return jnp.zeros(returns.shape, returns.dtype)


@lower(aten.scalar_tensor.default)
def aten_scalar_tensor(s, *, dtype=None, returns):
    return jnp.asarray(s).astype(returns.dtype)


def _arange(start: float, step: float, returns: jax.ShapeDtypeStruct) -> jax.Array:
    """start + i * step in the wide type, as torch accumulates it, then narrowed."""
    wide = jnp.int64 if jnp.issubdtype(returns.dtype, jnp.integer) else jnp.float64
    return (start + jax.lax.iota(wide, returns.shape[0]) * step).astype(returns.dtype)


@lower(aten.arange.default)
def aten_arange(end, *, dtype=None, returns):
    return _arange(0, 1, returns)


@lower(aten.arange.start)
def aten_arange_start(start, end, *, dtype=None, returns):
    return _arange(start, 1, returns)


@lower(aten.arange.start_step)
def aten_arange_start_step(start, end, step=1, *, dtype=None, returns):
    return _arange(start, step, returns)


@lower(aten.linspace.default)
def aten_linspace(start, end, steps, *, dtype=None, returns):
    return jnp.linspace(start, end, steps).astype(returns.dtype)


@lower(aten.eye.default)
def aten_eye(n, *, dtype=None, returns):
    return jnp.eye(n, dtype=returns.dtype)


@lower(aten.eye.m)
def aten_eye_m(n, m, *, dtype=None, returns):
    return jnp.eye(n, m, dtype=returns.dtype)


@lower(aten.clone.default)
def aten_clone(self):
    return self


@lower(aten.lift_fresh_copy.default)
def aten_lift_fresh_copy(self):
    return self


@lower(aten._to_copy.default)
def aten__to_copy(self, *, dtype=None, returns):
    return cast(self, returns.dtype)


@lower(aten.copy.default)
def aten_copy(self, src):
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


def cast(array: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """torch's conversion between dtypes: complex to real keeps the real part."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
        array = array != 0 if dtype == jnp.bool_ else array.real
    return array.astype(dtype)
