"""Attention of one pair of chunks on one device: by jax's Pallas kernel on TPUs, by cuDNN's on
GPUs, else in blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..core.extend import Dropout, Masking, attention, cudnn, splash


class Form(NamedTuple):
    """Functions of a pair. forward: (query, key, value, bias, dropout, masking) -> output,
    log-sum-exp. backward: (query, key, value, grad_out, out, logsumexp, bias, dropout,
    masking) -> the gradients of the first three. takes_ids: of documents that are data, in place of
    a bias."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    takes_ids: bool = False


def forms_of(
    query: Any,
    key: Any,
    value: Any,
    masking: Masking,
    bias: Any,
    is_dropped: bool,
    scale: float,
    shards: int,
) -> dict[str, Form]:
    """The forms that compute a pair, by platform; shards: the chunks of the sequence. masking: with
    the places of a pair."""
    forms = {
        "default": Form(
            partial(_forward_in_blocks, scale=scale), partial(_backward_in_blocks, scale=scale)
        )
    }
    case = query, key, value, masking, bias, float(is_dropped)
    of_cudnn, of_splash = cudnn.refusal(*case), splash.refusal(*case, shards)
    attention.note_form(masking, of_cudnn, of_splash)
    if not of_cudnn:
        forms["cuda"] = Form(
            partial(_cudnn_forward, scale=scale), partial(_cudnn_backward, scale=scale)
        )
    if not of_splash:
        forms["tpu"] = Form(
            partial(_splash_forward, scale=scale),
            partial(_splash_backward, scale=scale),
            takes_ids=masking.documents is not None,
        )
    return forms


def _forward_in_blocks(query, key, value, bias, dropout, masking, *, scale):
    return attention.of_blocks(query, key, value, dropout, bias, masking=masking, scale=scale)


def _backward_in_blocks(*arrays, scale):
    *operands, bias, dropout, masking = arrays
    how = {"masking": masking, "scale": scale, "wants_bias": False}
    return attention.grads_of_blocks(*operands, dropout, bias, **how)[:3]


def _splash_forward(query, key, value, ids, dropout, masking, *, scale):
    return splash.shard_forward(query, key, value, masking=masking, scale=scale, ids=ids)


def _splash_backward(*arrays, scale):
    *operands, ids, _, masking = arrays
    return splash.shard_backward(*operands, masking=masking, scale=scale, ids=ids)[:3]


def _cudnn_forward(query, key, value, bias, dropout, masking, *, scale):
    how = {"call": cudnn.call_of(masking, bias, scale), "masking": masking, "bias": bias}
    return cudnn.forward(query, key, value, **how, run=cudnn.run_forward)


def _cudnn_backward(*arrays, scale):
    *operands, bias, _, masking = arrays
    how = {"call": cudnn.call_of(masking, bias, scale), "masking": masking, "bias": bias}
    return cudnn.backward(*operands, **how, run=cudnn.run_backward)[:3]


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
