"""Attention of one pair of chunks on one device: by jax's Pallas kernel on TPUs, by cuDNN's on
GPUs, else in blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..core.extend import Dropout, attention, cudnn, splash


class Form(NamedTuple):
    """Functions of a pair. forward: (query, key, value, bias, dropout, is_causal) -> output,
    log-sum-exp. backward: (query, key, value, grad_out, out, logsumexp, bias, dropout,
    is_causal) -> the gradients of the first three."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def forms_of(
    query: Any, key: Any, value: Any, bias: Any, is_dropped: bool, scale: float, shards: int
) -> dict[str, Form]:
    """The forms that compute a pair, by platform; shards: the chunks of the sequence."""
    forms = {
        "default": Form(
            partial(_forward_in_blocks, scale=scale), partial(_backward_in_blocks, scale=scale)
        )
    }
    case = query, key, value, bias, float(is_dropped)
    if cudnn.takes(*case):
        forms["cuda"] = Form(
            partial(_cudnn_forward, scale=scale), partial(_cudnn_backward, scale=scale)
        )
    if splash.takes(*case, shards):
        forms["tpu"] = Form(
            partial(_splash_forward, scale=scale), partial(_splash_backward, scale=scale)
        )
    return forms


def _forward_in_blocks(query, key, value, bias, dropout, is_causal, *, scale):
    how = {"bias": bias, "dropout": dropout, "is_causal": is_causal, "scale": scale}
    return attention.blocks_forward(query, key, value, devices=None, **how)


def _backward_in_blocks(*arrays, scale):
    *operands, bias, dropout, is_causal = arrays
    how = {"bias": bias, "dropout": dropout, "is_causal": is_causal, "scale": scale}
    return attention.blocks_backward(*operands, wants_bias=False, devices=None, **how)[:3]


def _splash_forward(query, key, value, bias, dropout, is_causal, *, scale):
    return splash.shard_forward(query, key, value, is_causal=is_causal, scale=scale)


def _splash_backward(*arrays, scale):
    *operands, _, _, is_causal = arrays
    return splash.shard_backward(*operands, is_causal=is_causal, scale=scale)[:3]


def _cudnn_forward(query, key, value, bias, dropout, is_causal, *, scale):
    return cudnn.shard_forward.fun(query, key, value, is_causal, scale)


def _cudnn_backward(
    query, key, value, grad_out, out, logsumexp, bias, dropout, is_causal, *, scale
):
    return cudnn.shard_backward.fun(query, key, value, logsumexp, out, grad_out, is_causal, scale)


@partial(
    jax.tree_util.register_dataclass, data_fields=("words", "first"), meta_fields=("probability",)
)
@dataclass(frozen=True, slots=True)
class DropoutOfColumns(Dropout):
    """The dropout of columns from a first one on."""

    first: jax.Array = None  # type: ignore[assignment]  # a field after those with defaults

    def rows(self, cut: Callable[[jax.Array], jax.Array]) -> "DropoutOfColumns":
        return DropoutOfColumns(cut(self.words), self.probability, self.first)

    def apply(self, x: jax.Array, first_column: int | jax.Array = 0) -> jax.Array:
        return Dropout(self.words, self.probability).apply(
            x, self.first + jnp.asarray(first_column)
        )
