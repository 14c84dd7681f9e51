"""A Llama that decodes greedily with a static cache, by hand in JAX: one jitted call makes each
token."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, jax.Array]
# of each layer, keys and values [batch, heads, length, width of a head]
Cache = list[tuple[jax.Array, jax.Array]]


@dataclass(frozen=True)
class Shapes:
    """The sizes of a Llama, as transformers names them."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float
    rms_norm_eps: float

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class Decoder:
    """A model with the weights of transformers' state dict. length: of the cache."""

    def __init__(self, shapes: Shapes, weights: Mapping[str, np.ndarray], length: int):
        self.shapes, self.length = shapes, length
        self.params = {name: jnp.asarray(x) for name, x in weights.items()}
        self._step = jax.jit(partial(_step, shapes), donate_argnums=(1,))

    def empty(self, batch: int) -> Cache:
        """A cache without tokens."""
        shape = batch, self.shapes.num_key_value_heads, self.length, self.shapes.head_dim
        dtype = self.params["lm_head.weight"].dtype
        return [
            (jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
            for _ in range(self.shapes.num_hidden_layers)
        ]

    def generate(self, prompt: np.ndarray, count: int, end: int) -> np.ndarray:
        """The prompt [batch, length] with so many tokens behind it, fewer where all sequences have
        ended."""
        cache, tokens, start = self.empty(len(prompt)), jnp.asarray(prompt), 0
        found = [prompt]
        for _ in range(count):
            following, cache = self._step(self.params, cache, tokens, start)
            start, tokens = start + tokens.shape[1], following[:, None]
            found.append(np.asarray(tokens))  # the loop reads each token, as it ends by one
            if (found[-1] == end).all():
                break
        return np.concatenate(found, axis=1)


def _step(
    shapes: Shapes, params: Params, cache: Cache, tokens: jax.Array, start: jax.Array
) -> tuple[jax.Array, Cache]:
    """The best token after these [batch, count], which stand from `start` on, and the cache with
    them."""
    x, new = params["model.embed_tokens.weight"][tokens], []
    for layer, pair in enumerate(cache):
        of = {
            name.split(".", 3)[3]: x
            for name, x in params.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        attended, pair = _attention(
            shapes, of, _norm(x, of["input_layernorm.weight"], shapes), pair, start
        )
        x = x + attended
        hidden = _norm(x, of["post_attention_layernorm.weight"], shapes)
        gate, up = (hidden @ of[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        x = x + (jax.nn.silu(gate) * up) @ of["mlp.down_proj.weight"].T
        new.append(pair)
    last = _norm(x[:, -1], params["model.norm.weight"], shapes)
    return jnp.argmax(last @ params["lm_head.weight"].T, axis=-1), new


def _norm(x: jax.Array, weight: jax.Array, shapes: Shapes) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + shapes.rms_norm_eps)
    return (wide * scale).astype(x.dtype) * weight


def _attention(
    shapes: Shapes, of: Params, x: jax.Array, pair: tuple[jax.Array, jax.Array], start: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    batch, count, width = x.shape
    heads, groups = (
        shapes.num_key_value_heads,
        shapes.num_attention_heads // shapes.num_key_value_heads,
    )
    q, k, v = (
        (x @ of[f"self_attn.{name}_proj.weight"].T)
        .reshape(batch, count, -1, shapes.head_dim)
        .swapaxes(1, 2)
        for name in "qkv"
    )
    places = start + jnp.arange(count)
    q, k = _rotated(q, places, shapes), _rotated(k, places, shapes)
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, new, start, axis=2)
        for old, new in zip(pair, (k, v), strict=True)
    )
    q = q.reshape(batch, heads, groups, count, shapes.head_dim)
    scores = jnp.einsum(
        "bhgqd,bhkd->bhgqk", q, keys, preferred_element_type=jnp.float32
    ) / math.sqrt(shapes.head_dim)
    is_seen = jnp.arange(keys.shape[2]) <= places[:, None]
    seen = jax.nn.softmax(jnp.where(is_seen, scores, -jnp.inf)).astype(x.dtype)
    result = jnp.einsum("bhgqk,bhkd->bhgqd", seen, values)
    result = (
        result.reshape(batch, -1, count, shapes.head_dim)
        .swapaxes(1, 2)
        .reshape(batch, count, width)
    )
    return result @ of["self_attn.o_proj.weight"].T, (keys, values)


def _rotated(x: jax.Array, places: jax.Array, shapes: Shapes) -> jax.Array:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864), in halves as transformers has them."""
    half = shapes.head_dim // 2
    angles: Any = places[:, None] / shapes.rope_theta ** (jnp.arange(half) / half)
    cos, sin = (jnp.concatenate([f(angles)] * 2, axis=-1) for f in (jnp.cos, jnp.sin))
    wide = x.astype(jnp.float32)
    return (
        wide * cos + jnp.concatenate([-wide[..., half:], wide[..., :half]], axis=-1) * sin
    ).astype(x.dtype)
