"""Fourier transforms: the three ops to which torch reduces all of its transforms."""

import math

import jax.numpy as jnp
import torch

from .registry import lower

aten = torch.ops.aten

# torch's modes: no scaling, division by the root of the length, division by the length.
_NONE, _ROOT, _LENGTH = 0, 1, 2


def _normalized(x, sizes, normalization):
    if normalization == _NONE:
        return x
    length = math.prod(sizes)
    return x * jnp.asarray(
        1 / math.sqrt(length) if normalization == _ROOT else 1 / length, x.real.dtype
    )


def _complex_transform(x, dims, forward):
    """The sum over e^(-+2 pi i k n / N), unscaled."""
    if not dims:
        return x
    if forward:
        return jnp.fft.fftn(x, axes=dims)
    return jnp.fft.ifftn(x, axes=dims, norm="forward")


def _dims(dim, ndim):
    return tuple(axis % ndim for axis in dim)


@lower(aten._fft_c2c.default)
def aten_fft_c2c(self, dim, normalization, forward):
    dims = _dims(dim, self.ndim)
    result = _complex_transform(self, dims, forward)
    return _normalized(result, [self.shape[axis] for axis in dims], normalization)


@lower(aten._fft_r2c.default)
def aten_fft_r2c(self, dim, normalization, onesided):
    dims = _dims(dim, self.ndim)
    if onesided:
        result = _complex_transform(jnp.fft.rfft(self, axis=dims[-1]), dims[:-1], True)
    else:
        result = _complex_transform(
            self + jnp.zeros((), jnp.result_type(self, jnp.complex64)), dims, True
        )
    return _normalized(result, [self.shape[axis] for axis in dims], normalization)


@lower(aten._fft_c2r.default)
def aten_fft_c2r(self, dim, normalization, last_dim_size, *, returns):
    dims = _dims(dim, self.ndim)
    result = _complex_transform(self, dims[:-1], False)
    result = jnp.fft.irfft(result, n=last_dim_size, axis=dims[-1], norm="forward")
    return _normalized(result, [returns.shape[axis] for axis in dims], normalization).astype(
        returns.dtype
    )
