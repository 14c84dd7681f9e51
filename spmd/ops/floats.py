"""Dtypes inside the rules: torch's conversions; narrow floats (bfloat16, float16) are computed in
float32 and rounded once."""

import jax
import jax.numpy as jnp
import torch

_NARROW = (jnp.bfloat16, jnp.float16)
# Past the largest number of e4m3fn, which has no infinities, torch 2.11 makes NaN; torch 2.13 and
# later saturate.
_E4M3FN_STOPS = not torch.tensor(1e30, device="cpu").to(torch.float8_e4m3fn).float().isnan().item()


def wide(dtype):
    """The dtype to compute and accumulate values of this dtype in."""
    return jnp.dtype(jnp.float32) if dtype in _NARROW else jnp.dtype(dtype)


def widened(x):
    """x in the dtype to compute in."""
    return x.astype(wide(x.dtype))


def widened_as(x, dtype):
    """x in the dtype to accumulate a result of `dtype` in."""
    return x.astype(wide(dtype))


def is_exact(x):
    """True if x has integers or booleans."""
    return not jnp.issubdtype(x.dtype, jnp.inexact)


def missing(dtype):
    """The keyword arguments of jax's gather for an index that is out of range: NaN where the dtype
    has it, else the nearest element.

    CPU raises; the device cannot, and a wrong number would go unnoticed.
    """
    if jnp.issubdtype(dtype, jnp.inexact):
        return {"mode": "fill", "fill_value": jnp.nan}
    return {"mode": "clip"}


def cast(array: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """torch's conversion between dtypes: complex to real keeps the real part, eight-bit floats
    round as torch's do."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating) and not jnp.issubdtype(
        dtype, jnp.complexfloating
    ):
        array = array != 0 if dtype == jnp.bool_ else array.real
    if jnp.issubdtype(array.dtype, jnp.floating) and jnp.issubdtype(dtype, jnp.integer):
        return _integers(array, jnp.dtype(dtype))
    if (
        jnp.issubdtype(dtype, jnp.floating)
        and jnp.dtype(dtype).itemsize == 1
        and array.dtype != dtype
    ):
        return jax.lax.bitcast_convert_type(_eight_bits(array.astype(jnp.float32), dtype), dtype)
    return array.astype(dtype)


def _integers(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The integer parts of floats. For numbers outside of the dtype's range int32 and int64 take
    their nearest number, as on GPUs (NaN is 0); the narrower and the unsigned dtypes take the low
    bits of that, as torch's conversions do everywhere."""
    if dtype in (jnp.int32, jnp.int64):
        return x.astype(dtype)
    if dtype.itemsize < 4:
        return x.astype(jnp.int32).astype(dtype)
    whole = x.astype(jnp.int64).astype(dtype)
    return jnp.where(x < 0, whole, x.astype(dtype)) if dtype == jnp.uint64 else whole


def _eight_bits(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """The bits of float32 numbers as eight-bit floats."""
    if dtype == jnp.float8_e8m0fnu:
        # The exponent alone: torch rounds the magnitude, jax returns NaN for a negative number.
        bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
        exponent, mantissa = bits >> 23 & 0xFF, bits & 0x7FFFFF
        is_up = (mantissa > 0x400000) | (mantissa == 0x400000) & (exponent > 0)
        return jnp.where(exponent == 0xFF, exponent, exponent + is_up).astype(jnp.uint8)
    # jax returns NaN past the largest number of e4m3fn.
    bounded = jnp.clip(x, -448, 448) if dtype == jnp.float8_e4m3fn and _E4M3FN_STOPS else x
    result = jax.lax.bitcast_convert_type(bounded.astype(dtype), jnp.uint8)
    # of their NaNs torch returns this one, with the sign
    if dtype in (jnp.float8_e4m3fn, jnp.float8_e5m2):
        nan = jnp.where(jnp.signbit(x), 0xFF, 0x7F).astype(jnp.uint8)
        result = jnp.where(jnp.isnan(x), nan, result)
    return result
