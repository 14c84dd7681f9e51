"""Factories and copies: tensors made from numbers, and copies of tensors, also under a name or in
other memory."""

import jax
import jax.numpy as jnp
import torch
from torch._ops import OpOverload

from .floats import cast
from .registry import Function, lower

aten = torch.ops.aten


@lower(aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar)
def aten_full(*arguments, returns, **options):
    return jnp.full(returns.shape, arguments[-1], returns.dtype)


# torch leaves new memory uninitialized; zeros are as valid as any content, and the same on every
# run.
@lower(
    aten.zero.default,
    aten.zeros_like.default,
    aten.new_zeros.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    number=0,
)
@lower(aten.ones_like.default, aten.new_ones.default, number=1)
def aten_filled(*arguments, number, returns, **options):
    return jnp.full(returns.shape, number, returns.dtype)


@lower(aten.fill.Tensor, aten.copy.default)
def aten_copy(self, src, /):
    return jnp.broadcast_to(cast(src, self.dtype), self.shape)


@lower(aten._to_copy.default, aten.scalar_tensor.default)
def aten__to_copy(source, /, *, dtype=None, returns):
    return cast(jnp.asarray(source), returns.dtype)


@lower(aten.arange.default, aten.arange.start, aten.arange.start_step)
def aten_arange(*bounds, dtype=None, returns):
    """start + i * step in the wide dtype, as torch accumulates it, then narrowed."""
    start, _, *steps = bounds if len(bounds) > 1 else (0, *bounds)
    wide, step = jnp.float64, steps[0] if steps else 1
    if jnp.issubdtype(returns.dtype, jnp.integer):
        wide, start, step = jnp.int64, int(start), int(step)
    return (start + jax.lax.iota(wide, returns.shape[0]) * step).astype(returns.dtype)


@lower(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def aten_linspace(start, end, steps, *, dtype=None, returns):
    if not jnp.issubdtype(returns.dtype, jnp.integer):
        return jnp.linspace(start, end, steps).astype(returns.dtype)
    # torch drops the fractions of the ends first, counts from both of them, and drops those of the
    # results.
    start, end = (jnp.trunc(jnp.asarray(number, jnp.float64)) for number in (start, end))
    # XLA divides by a number that it does not know; by one it knows it would multiply with the
    # rounded inverse.
    step, index = (
        (end - start) / jax.lax.optimization_barrier(jnp.float64(max(steps - 1, 1))),
        jnp.arange(steps),
    )
    near = max(steps // 2, 1)
    return jnp.where(index < near, start + step * index, end - step * (steps - 1 - index)).astype(
        returns.dtype
    )


@lower(aten.eye.default, aten.eye.m)
def aten_eye(n, m=None, *, dtype=None, returns):
    return jnp.eye(n, m, dtype=returns.dtype)


# -- Copies that change how a value is kept: its name for a checkpoint's policy, its memory kind.
# The gradient of a value that was taken to the host is on the device again, and the other way
# round.

_library = torch.library.Library("spmd", "FRAGMENT")


def _define(schema: str, backward: Function) -> OpOverload:
    """A differentiable op that returns a new tensor of the same value."""
    name = schema.partition("(")[0]
    _library.define(schema)
    _library.impl(name, lambda x, *static: x.clone(), "CompositeExplicitAutograd")
    torch.library.register_autograd(f"spmd::{name}", backward, lib=_library)
    return getattr(torch.ops.spmd, name).default


CHECKPOINT_NAME = _define(
    "checkpoint_name(Tensor x, str name) -> Tensor", lambda context, gradient: (gradient, None)
)
TO_HOST: OpOverload = _define(
    "place_to_host(Tensor x) -> Tensor", lambda context, gradient: TO_DEVICE(gradient)
)
TO_DEVICE: OpOverload = _define(
    "place_to_device(Tensor x) -> Tensor", lambda context, gradient: TO_HOST(gradient)
)


# Every op reads its operands on the device: see `lower.lower`.
@lower(aten.clone.default, aten.lift_fresh_copy.default, CHECKPOINT_NAME, TO_DEVICE)
def aten_clone(self, /, name=None):
    return self


@lower(TO_HOST)
def spmd_place_to_host(x):
    return jax.device_put(x, jax.memory.Space.Host)
