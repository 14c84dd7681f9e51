"""Writes into an array at computed positions, as `array.at[place]`, except where XLA partitions these wrongly."""

from functools import partialmethod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_COMBINE = {"add": jnp.add, "multiply": jnp.multiply, "max": jnp.maximum, "min": jnp.minimum}


def at(array: jax.Array, place: tuple[Any, ...]) -> Any:
    """`array.at[place]`, for a place of full slices and arrays of positions that are in bounds."""
    positions = [index for index in place if not isinstance(index, slice)]
    is_one = positions and np.prod(np.broadcast_shapes(*[np.shape(index) for index in positions])) == 1
    return _One(array, place) if is_one else array.at[place]


class _One:
    """A single position, by a slice update instead of a scatter.

    XLA writes a scatter of one position into a sharded array as: read the slice there, select, write it back. Where the
    array was replicated before it was sharded, XLA then reads the replicated array at the shard's position, and a
    device that has no such position overwrites its own first element with the value read (jaxlib 0.10.2, both
    partitioners).
    """

    def __init__(self, array: jax.Array, place: tuple[Any, ...]):
        self.array = array
        self.place = place

    def _write(self, method: str, values: Any, *, mode: Any = None, wrap_negative_indices: bool = True) -> jax.Array:
        array, starts, window = self.array, [], []
        for axis, size in enumerate(array.shape):
            index = self.place[axis] if axis < len(self.place) else slice(None)
            is_slice = isinstance(index, slice)
            start = jnp.zeros((), jnp.int64) if is_slice else jnp.asarray(index).reshape(()).astype(jnp.int64)
            starts.append(jnp.where(start < 0, start + size, start) if wrap_negative_indices else start)
            window.append(size if is_slice else 1)
        shape = jax.eval_shape(lambda full: full.at[self.place].get(), array).shape
        new = jnp.broadcast_to(jnp.asarray(values).astype(array.dtype), shape).reshape(window)
        if not new.size:
            return array
        if method != "set":
            new = _COMBINE[method](lax.dynamic_slice(array, starts, window), new)
        return lax.dynamic_update_slice(array, new, starts)

    set = partialmethod(_write, "set")
    add = partialmethod(_write, "add")
    multiply = partialmethod(_write, "multiply")
    max = partialmethod(_write, "max")
    min = partialmethod(_write, "min")
