"""The gradient of an embedding of sharded tokens: each device adds up its own, and the sums are
added once.

Of several sequences a device, merged with their sharded rows into one dim, a partitioner would
gather the gradients of all hidden states.
"""

import jax
import torch

from ..core import config
from ..core.extend import partitioning, rules

aten = torch.ops.aten


@partitioning.partition(aten.embedding_dense_backward.default)
def gradient(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq, *, returns):
    """The gradient over mesh axes of the rows of a batch."""
    dims = [(grad_output, dim) for dim in range(grad_output.ndim)]
    axes_of = partitioning.axes_of_dims(*dims)
    if (
        config.parallel == "off"
        or axes_of is None
        or scale_grad_by_freq
        or not any(axes_of[1][1:-1])
    ):
        return None
    mesh, axes = axes_of

    def body(grad: jax.Array, tokens: jax.Array) -> tuple[jax.Array]:
        promised = jax.ShapeDtypeStruct((num_weights, grad.shape[-1]), returns.dtype)
        rule = rules.RULES[aten.embedding_dense_backward.default].function
        return (rule(grad, tokens, num_weights, padding_idx, False, returns=promised),)

    rows = [f"r{dim}" for dim in range(indices.ndim)]
    over = dict(zip([*rows, "d"], axes, strict=True))
    words = f"{' '.join(rows)} d, {' '.join(rows)} -> v d"
    return partitioning.per_shard(body, words, mesh, over, [returns.shape])(grad_output, indices)[0]
