"""Results in the shapes and dtypes that torch promises: a rule's `returns`, one or a tuple, with None for no result."""

import jax.numpy as jnp


def zeros(returns):
    """Zeros for each promised result."""
    if isinstance(returns, tuple):
        return tuple(map(zeros, returns))
    return None if returns is None else jnp.zeros(returns.shape, returns.dtype)


def as_promised(values, returns):
    """Each value in the promised shape and dtype; zeros for None, nothing where torch returns an empty tensor."""
    return tuple(
        zeros(like) if value is None or like is None or 0 in like.shape
        else value.reshape(like.shape).astype(like.dtype)
        for value, like in zip(values, returns, strict=True)
    )  # fmt: skip
