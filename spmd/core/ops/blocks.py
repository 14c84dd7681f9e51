"""Blocks of rows: a dim sharded over several mesh axes, cut by some of these axes."""

import math

import jax.numpy as jnp


def blocks(array, dim, sizes, kept):
    """The array as a stack of blocks of a dim, each with the rows of one place along the axes `kept` (places in
    `sizes`, the sizes of the axes that shard the dim, the outermost first)."""
    rows = jnp.moveaxis(array, dim, 0)
    apart = rows.reshape(*sizes, rows.shape[0] // math.prod(sizes), *rows.shape[1:])
    others = [place for place in range(apart.ndim) if place not in kept]
    count = math.prod(sizes[place] for place in kept)
    stack = apart.transpose(*kept, *others).reshape(count, rows.shape[0] // count, *rows.shape[1:])
    return jnp.moveaxis(stack, 1, dim + 1)
