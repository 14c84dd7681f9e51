"""Floating dtypes inside the rules: narrow ones (bfloat16, float16) are computed in float32 and rounded once."""

import jax.numpy as jnp

_NARROW = (jnp.bfloat16, jnp.float16)


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


def conj(x):
    """The complex conjugate; a real x as it is."""
    return jnp.conj(x) if jnp.issubdtype(x.dtype, jnp.complexfloating) else x


def missing(dtype):
    """The keyword arguments of jax's gather for an index that is out of range: NaN where the dtype has it, else the
    nearest element.

    CPU raises; the device cannot, and a wrong number would go unnoticed.
    """
    if jnp.issubdtype(dtype, jnp.inexact):
        return {"mode": "fill", "fill_value": jnp.nan}
    return {"mode": "clip"}
