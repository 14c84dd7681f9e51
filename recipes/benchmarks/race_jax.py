"""Hand-written JAX of the race on one GPU: the GPT of `recipes/gpt.py`, and `jax_llama.py` with
cuDNN's attention.

Float32 masters are cast to bfloat16 for the products, residuals are in bfloat16, norms, softmax and
losses in float32, the state is donated. It imports neither torch nor spmd.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from recipes.benchmarks import jax_gpt, jax_llama

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Program:
    """step(state, tokens, targets) -> (state, loss); batch: numpy tokens -> tokens and targets."""

    step: Callable[..., Any]
    state: Any
    batch: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def attention(query: jax.Array, key: jax.Array, value: jax.Array, is_cpu: bool) -> jax.Array:
    """Causal attention of [batch, length, heads, width], by cuDNN's kernel on a GPU."""
    kernel = "xla" if is_cpu else "cudnn"
    return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation=kernel)


# --- the GPT --------------------------------------------------------------------------------------


def gpt(weights: Weights, heads: int, learning_rate: float, *, is_cpu: bool) -> Program:
    optimizer = jax_llama.AdamW(learning_rate, beta2=0.999, weight_decay=0.01)

    @partial(jax.jit, donate_argnums=0)
    def step(state: Any, tokens: jax.Array, targets: jax.Array) -> Any:
        loss = partial(_gpt_loss, tokens=tokens, targets=targets, heads=heads, is_cpu=is_cpu)
        value, gradients = jax.value_and_grad(loss)(state[0])
        return optimizer.update(state, gradients), value

    return Program(step, _state(dict(weights)), lambda tokens: (tokens[:, :-1], tokens[:, 1:]))


def _gpt_loss(
    weights: Any, *, tokens: jax.Array, targets: jax.Array, heads: int, is_cpu: bool
) -> jax.Array:
    batch, length = tokens.shape
    cast = {name: value.astype(jnp.bfloat16) for name, value in weights.items()}
    x = (cast["tokens.weight"][tokens] + cast["positions.weight"][:length]).reshape(
        batch * length, -1
    )
    for number in range(jax_gpt.num_layers(weights)):
        name = f"blocks.{number}"
        normed = _norm(x, weights, f"{name}.norm1")
        qkv = jax_gpt.linear(normed, cast, f"{name}.attention.qkv").reshape(
            batch, length, 3, heads, -1
        )
        mixed = attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_cpu).reshape(
            batch * length, -1
        )
        x = x + jax_gpt.linear(mixed, cast, f"{name}.attention.out")
        hidden = jax_gpt.linear(_norm(x, weights, f"{name}.norm2"), cast, f"{name}.mlp.up")
        x = x + jax_gpt.linear(jax.nn.gelu(hidden, approximate=True), cast, f"{name}.mlp.down")
    logits = (_norm(x, weights, "norm") @ cast["head.weight"].T).astype(jnp.float32)
    scores = jnp.take_along_axis(logits, targets.reshape(-1, 1), axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - scores)


def _norm(x: jax.Array, weights: Any, name: str) -> jax.Array:
    return jax_gpt.layer_norm(x.astype(jnp.float32), weights, name).astype(jnp.bfloat16)


# --- the Llama ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuStep(jax_llama.Step):
    """The step of `jax_llama.py` with attention for one GPU, or in dots on a CPU."""

    is_cpu: bool = False

    def mixed(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        batch, length, kv_heads, groups, width = query.shape
        rows = query.reshape(batch, length, kv_heads * groups, width)
        return attention(rows, key, value, self.is_cpu).reshape(query.shape)


def llama(
    weights: Weights, config: Any, batch: tuple[int, int], learning_rate: float, *, is_cpu: bool
) -> Program:
    """config: of transformers; weights: of its state dict. batch: sequences, and tokens of one."""
    model = jax_llama.Llama(
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.intermediate_size,
        config.vocab_size,
        config.rope_parameters["rope_theta"],
        config.rms_norm_eps,
    )
    mesh = Mesh(np.array(jax.local_devices()[:1]).reshape(1, 1), ("fsdp", "tensor"))
    optimizer = jax_llama.AdamW(learning_rate, beta2=0.999, weight_decay=0.01)
    step = GpuStep(model, mesh, *batch, optimizer=optimizer, is_cpu=is_cpu)
    names = {
        "norm1": "input_layernorm",
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "out": "self_attn.o_proj",
        "norm2": "post_attention_layernorm",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    }
    layers = {
        name: np.stack(
            [weights[f"model.layers.{n}.{theirs}.weight"].T for n in range(model.layers)]
        )
        for name, theirs in names.items()
    }
    parameters = {
        "layers": layers,
        "embed": weights["model.embed_tokens.weight"],
        "head": weights["lm_head.weight"].T,
        "norm": weights["model.norm.weight"],
    }
    # The last token has no next one: its place gets the first, one of 4,096 terms of the mean that
    # transformers omits.
    jitted = jax.jit(step, donate_argnums=0)
    return Program(jitted, _state(parameters), lambda tokens: (tokens, np.roll(tokens, -1, axis=1)))


def _state(parameters: Any) -> Any:
    first, second = (
        jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), parameters) for _ in range(2)
    )
    return jax.tree.map(jnp.asarray, parameters), first, second, jnp.zeros((), jnp.float32)
