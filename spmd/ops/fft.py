"""Fourier transforms: the three ops to which torch reduces all of its transforms."""

import jax.numpy as jnp
import torch

from .registry import lower

aten = torch.ops.aten

# torch's modes (no scaling, division by the root of the length, division by the length) as jax's
# `norm`, which is relative to the direction.
_FORWARD, _INVERSE = (None, "ortho", "forward"), ("forward", "ortho", None)


@lower(aten._fft_c2c.default)
def aten_fft_c2c(self, dim, normalization, forward):
    if not dim:
        return self
    if forward:
        return jnp.fft.fftn(self, axes=dim, norm=_FORWARD[normalization])
    return jnp.fft.ifftn(self, axes=dim, norm=_INVERSE[normalization])


@lower(aten._fft_r2c.default)
def aten_fft_r2c(self, dim, normalization, onesided):
    if onesided:
        return jnp.fft.rfftn(self, axes=dim, norm=_FORWARD[normalization])
    complex_self = self + jnp.zeros((), jnp.result_type(self, jnp.complex64))
    return aten_fft_c2c(complex_self, dim, normalization, True)


@lower(aten._fft_c2r.default)
def aten_fft_c2r(self, dim, normalization, last_dim_size, *, returns):
    others = aten_fft_c2c(self, dim[:-1], normalization, False)
    result = jnp.fft.irfft(others, n=last_dim_size, axis=dim[-1], norm=_INVERSE[normalization])
    return result.astype(returns.dtype)
