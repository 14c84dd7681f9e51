"""Windows as columns, and padding with the values at the border: reflection and replication."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from .floats import widened
from .promised import zeros
from .registry import lower
from .windows import per_dim

aten = torch.ops.aten

# -- Windows as columns.


def _windows(x, kernel_size, dilation, padding, stride):
    """[N, C, kernel places, window places] of x [N, C, H, W]."""
    pads = [(0, 0, 0)] * 2 + [(pad, pad, 0) for pad in padding]
    padded = lax.pad(x, jnp.zeros((), x.dtype), pads)
    counts = [(padded.shape[2 + d] - dilation[d] * (kernel_size[d] - 1) - 1) // stride[d] + 1 for d in range(2)]
    parts = []
    for place in np.ndindex(*kernel_size):
        start = [0, 0] + [place[d] * dilation[d] for d in range(2)]
        stop = list(x.shape[:2]) + [start[2 + d] + (counts[d] - 1) * stride[d] + 1 for d in range(2)]
        parts.append(lax.slice(padded, start, stop, (1, 1, *stride)).reshape(*x.shape[:2], -1))
    return jnp.stack(parts, axis=2)


def _of_planes(*parameters):
    return (per_dim(values, 2) for values in parameters)


@lower(aten.im2col.default)
def aten_im2col(self, kernel_size, dilation, padding, stride, *, returns):
    if 0 in returns.shape:
        return zeros(returns)
    batched = self.reshape(-1, *self.shape[-3:])
    result = _windows(batched, *_of_planes(kernel_size, dilation, padding, stride))
    return result.reshape(returns.shape)


@lower(aten.col2im.default)
def aten_col2im(self, output_size, kernel_size, dilation, padding, stride, *, returns):
    kernel_size, dilation, padding, stride = _of_planes(kernel_size, dilation, padding, stride)
    shape = (math.prod(returns.shape[:-3]), *returns.shape[-3:])
    if self.size == 0:
        return zeros(returns)
    wide = widened(self)
    like = jax.ShapeDtypeStruct(shape, wide.dtype)
    function = lambda x: _windows(x, kernel_size, dilation, padding, stride)  # noqa: E731
    columns = wide.reshape(jax.eval_shape(function, like).shape)
    (result,) = jax.linear_transpose(function, like)(columns)
    return result.reshape(returns.shape).astype(self.dtype)


# -- Padding by reflection ("reflect") and by repetition ("edge"); negative padding cuts.


def _bordered(x, padding, mode):
    pairs = [(padding[2 * i], padding[2 * i + 1]) for i in reversed(range(len(padding) // 2))]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [(max(low, 0), max(high, 0)) for low, high in pairs]
    result = jnp.pad(x, widths, mode=mode)
    lead = x.ndim - len(pairs)
    for dim, (low, high) in enumerate(pairs):
        result = lax.slice_in_dim(result, max(-low, 0), result.shape[lead + dim] - max(-high, 0), axis=lead + dim)
    return result


def _register_padding(name, mode):
    def forward(self, padding):
        return _bordered(self, padding, mode)

    def backward(grad_output, self, padding):
        wide = widened(grad_output)
        like = jax.ShapeDtypeStruct(self.shape, wide.dtype)
        (result,) = jax.linear_transpose(lambda x: _bordered(x, padding, mode), like)(wide)
        return result.astype(grad_output.dtype)

    for rank in (1, 2, 3):
        lower(getattr(aten, f"{name}{rank}d").default)(forward)
        lower(getattr(aten, f"{name}{rank}d_backward").default)(backward)


_register_padding("reflection_pad", "reflect")
_register_padding("replication_pad", "edge")
