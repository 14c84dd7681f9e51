"""Sums over dims that may be sharded, by their op's name: the results that have the promised dtype in their rules."""

import math

import jax.numpy as jnp
from jax import lax

from . import sharded

# The results that are sums over the batch: the gradients of weights, say. Narrow ones accumulate in float32.
SUMS: dict[str, tuple[int, ...]] = {
    "aten.mm": (0,),
    "aten.bmm": (0,),
    "aten.linear_backward": (1, 2),
    "aten.convolution_backward": (1, 2),
    "aten.embedding_dense_backward": (0,),
    "aten.native_layer_norm_backward": (1, 2),
    "aten.native_group_norm_backward": (1, 2),
    "aten.native_batch_norm_backward": (1, 2),
    "aten._fused_rms_norm_backward": (1,),
    "aten.sum": (0,),
    "aten.sum.dim_IntList": (0,),
}


def is_narrowed(operand, dtype):
    """True if an op's sum is to be narrower than its operand: devices then exchange the narrow partial sums."""
    is_floating = all(jnp.issubdtype(one, jnp.floating) for one in (operand.dtype, dtype))
    return is_floating and jnp.dtype(dtype).itemsize < operand.dtype.itemsize and sharded.num_devices() > 1


def is_rounded(operand, dtype):
    """True if an op's sum is to be narrower than its accumulator: each device's is rounded, and then exchanged."""
    return (operand.dtype == dtype == jnp.bfloat16 and sharded.num_devices() > 1) or is_narrowed(operand, dtype)


def shards(array, mesh, axes):
    """An array whose first dims are sharded over these axes, one entry a dim, as its shards: [shards, ...]."""
    count = len(axes)
    cut = [sharded.num_shards(mesh, one) for one in axes]
    sizes = [size for ways, whole in zip(cut, array.shape, strict=False) for size in (ways, whole // ways)]
    apart = array.reshape(*sizes, *array.shape[count:])
    order = (*range(0, 2 * count, 2), *range(1, 2 * count, 2), *range(2 * count, apart.ndim))
    return apart.transpose(order).reshape(math.prod(cut), *sizes[1::2], *array.shape[count:])


def exchanged(parts, dtype):
    """The sum of parts [shards, ...], each on its device, rounded before devices exchange it, as a product is."""
    ones = jnp.ones(parts.shape[0], parts.dtype)
    return lax.dot_general(ones, parts, (((0,), (0,)), ((), ())), preferred_element_type=dtype)


def total(x, axes, operand, dtype):
    """The sum of x over axes, in the dtype of the op's result. Where that is narrower than its operand the sum is a
    product, which rounds each device's sum of its own part once, before devices exchange it."""
    if not is_narrowed(operand, dtype) or not axes:
        return jnp.sum(x, axis=axes)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    rows = jnp.transpose(x, (*axes, *kept)).reshape(math.prod(x.shape[axis] for axis in axes), -1)
    ones = jnp.ones((1, rows.shape[0]), x.dtype)
    result = jnp.matmul(ones, rows, preferred_element_type=dtype)
    return result.reshape([x.shape[axis] for axis in kept])
