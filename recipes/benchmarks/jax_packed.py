"""Decoders with windows over packed batches, and their training step, written by hand in JAX as an
expert would: Gemma 3 and Qwen 3.

As `jax_llama.py`, whose step this is: layers in `lax.scan`, each under `jax.checkpoint`, masters
cast before they are gathered in the loop's body. An iteration is a period of layers, each with a
kernel of its own: splash with a local mask or causality, and the ids of documents as its segment
ids. The loss is computed in chunks of a sequence, so that there are no logits of all tokens.
"""

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import PartitionSpec

from recipes.benchmarks import jax_llama
from recipes.benchmarks.jax_llama import Tree, rms_norm

P = PartitionSpec
# Tokens whose logits exist at once.
_CHUNK = 1024


@dataclass(frozen=True)
class Decoder:
    """The shapes of a model. windows: of the layers of a period, None for causality alone. thetas:
    of the layers without and with a window. is_gemma: norms behind attention and MLP, too, GELU,
    scaled embeddings, and a head that is the embedding."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    hidden: int
    vocabulary: int
    windows: tuple[int | None, ...] = (None,)
    thetas: tuple[float, float] = (1e6, 1e4)
    is_gemma: bool = False
    eps: float = 1e-6

    def with_layers(self, layers: int | None) -> "Decoder":
        """The model with so many layers; None: its own number."""
        return dataclasses.replace(self, layers=layers or self.layers)

    @property
    def num_periods(self) -> int:
        return self.layers // len(self.windows)

    def _layer(self) -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
        """The shape and the spec of each weight of a layer."""
        width, query, keys = self.width, self.heads * self.head, self.kv_heads * self.head
        norms = ("norm1", "norm2", *(("after1", "after2") if self.is_gemma else ()))
        return {
            **dict.fromkeys(norms, ((width,), ("fsdp",))),
            **dict.fromkeys(("query_norm", "key_norm"), ((self.head,), (None,))),
            "query": ((width, query), ("fsdp", None)),
            "key": ((width, keys), ("fsdp", None)),
            "value": ((width, keys), ("fsdp", None)),
            "out": ((query, width), (None, "fsdp")),
            "gate": ((width, self.hidden), ("fsdp", None)),
            "up": ((width, self.hidden), ("fsdp", None)),
            "down": ((self.hidden, width), (None, "fsdp")),
        }

    def shapes(self) -> Tree:
        """The shapes of the parameters: of layers in whole periods, of the rest, of the ends."""
        period = len(self.windows)
        stacks = {
            "periods": (self.num_periods, period),
            "rest": (self.layers - self.num_periods * period,),
        }
        layers = {
            stack: {name: (*dims, *shape) for name, (shape, _) in self._layer().items()}
            for stack, dims in stacks.items()
            if dims[0]
        }
        head = {} if self.is_gemma else {"head": (self.vocabulary, self.width)}
        return {
            **layers, "embed": (self.vocabulary, self.width), **head, "norm": (self.width,)
        }  # fmt: skip

    def specs(self) -> Tree:
        """The specs of the parameters over the axis fsdp."""
        leading = {"periods": (None, None), "rest": (None,)}
        ends = {"embed": P(None, "fsdp"), "head": P(None, "fsdp"), "norm": P("fsdp")}
        return {
            name: {part: P(*leading[name], *spec) for part, (_, spec) in self._layer().items()}
            if name in leading
            else ends[name]
            for name in self.shapes()
        }


MODELS = {
    "gemma3-4b": Decoder(34, 2560, 8, 4, 256, 10_240, 262_208, (*[1024] * 5, None), is_gemma=True),
    "qwen3-8b": Decoder(36, 4096, 32, 8, 128, 12_288, 151_936),
}


def rope(x: jax.Array, theta: float, positions: jax.Array) -> jax.Array:
    """Rotary position embedding of x [batch, length, heads, width] at positions [batch, length]."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = (positions.astype(jnp.float32)[..., None] * frequencies)[:, :, None]
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    turned = jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1)
    return turned.astype(x.dtype)


def attention(
    window: int | None, query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array
) -> jax.Array:
    """Attention of one device's shard [batch, length, heads, width] by splash: causal, or a window
    of each row, within documents."""
    length, heads, width = query.shape[1:]
    shape = length, length
    mask = (
        splash.CausalMask(shape) if window is None else splash.LocalMask(shape, (window - 1, 0), 0)
    )
    rows = min(512, length)
    columns = min(1024 if width <= 128 else 512, length)
    sizes = splash.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=rows,
        block_q_dkv=rows,
        block_kv_dkv=columns,
        block_kv_dkv_compute=rows,
        use_fused_bwd_kernel=True,
    )
    kernel = splash.make_splash_mha(
        mask=splash.MultiHeadMask([mask] * heads), head_shards=1, q_seq_shards=1, block_sizes=sizes
    )
    scaled = (query * width**-0.5).astype(query.dtype)

    def of_row(query: jax.Array, key: jax.Array, value: jax.Array, ids: jax.Array) -> jax.Array:
        result: jax.Array = kernel(query, key, value, splash.SegmentIds(ids, ids))
        return result

    output = jax.vmap(of_row)(*(x.transpose(0, 2, 1, 3) for x in (scaled, key, value)), ids)
    return output.transpose(0, 2, 1, 3)


@dataclass(frozen=True)
class Step(jax_llama.Step):
    """A training step over a mesh with the axis fsdp; the batch is tokens and positions."""

    model: Decoder  # type: ignore[assignment]  # shapes and specs of the same names

    def packed_layer(
        self, window: int | None, x: jax.Array, stored: Tree, positions: jax.Array, ids: jax.Array
    ) -> jax.Array:
        model, parts = self.model, self.model._layer()
        weights = {
            name: self.gathered(weight, P(*parts[name][1])) for name, weight in stored.items()
        }
        norm = partial(rms_norm, eps=model.eps)
        theta = model.thetas[window is not None]

        def heads(name: str) -> jax.Array:
            projected = (normed @ weights[name]).reshape(*x.shape[:2], -1, model.head)
            if name == "value":
                return projected
            return rope(norm(projected, weights[f"{name}_norm"]), theta, positions)

        def after(name: str, result: jax.Array) -> jax.Array:
            return norm(result, weights[name]) if model.is_gemma else result

        normed = norm(x, weights["norm1"])
        split = P("fsdp", None)
        mixed = jax.shard_map(
            partial(attention, window), mesh=self.mesh, in_specs=split, out_specs=split,
            check_vma=False,
        )(*map(heads, ("query", "key", "value")), ids)  # fmt: skip
        x = x + after("after1", mixed.reshape(*x.shape[:2], -1) @ weights["out"])
        normed = norm(x, weights["norm2"])
        activated = (partial(jax.nn.gelu, approximate=True) if model.is_gemma else jax.nn.silu)(
            normed @ weights["gate"]
        )
        x = x + after("after2", (activated * (normed @ weights["up"])) @ weights["down"])
        return self.constrained(x, "fsdp", None, None)

    def loss(self, parameters: Tree, tokens: jax.Array, positions: jax.Array) -> jax.Array:
        """The mean cross entropy of the next tokens, of [batch, sequence] with positions."""
        model, specs = self.model, self.model.specs()
        started = jnp.diff(positions, prepend=positions[:, :1] - 1) != 1
        ids = jnp.cumsum(started, -1, dtype=jnp.int32)
        embed = self.gathered(parameters["embed"], specs["embed"])
        x = self.constrained(jnp.take(embed, tokens, axis=0), "fsdp", None, None)
        x = x * jnp.asarray(model.width**0.5 if model.is_gemma else 1, x.dtype)
        layers = [
            jax.checkpoint(
                partial(self.packed_layer, window),
                prevent_cse=False,
                policy=jax.checkpoint_policies.nothing_saveable,
            )
            for window in model.windows
        ]

        def period(x: jax.Array, stored: Tree) -> tuple[jax.Array, None]:
            for index, layer in enumerate(layers):
                x = layer(x, jax.tree.map(lambda stack, i=index: stack[i], stored), positions, ids)
            return x, None

        x, _ = jax.lax.scan(period, x, parameters["periods"])
        if "rest" in parameters:
            x, _ = jax.lax.scan(
                lambda x, stored: (layers[0](x, stored, positions, ids), None),
                x,
                parameters["rest"],
            )
        x = rms_norm(x, self.gathered(parameters["norm"], specs["norm"]), model.eps)
        name = "embed" if model.is_gemma else "head"
        head = self.gathered(parameters[name], specs[name])
        # The last token of a row has no next one; the first of a document is no target.
        targets = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        counted = jnp.pad(~started[:, 1:], ((0, 0), (0, 1)))
        chunks = [
            jnp.moveaxis(part.reshape(part.shape[0], -1, _CHUNK, *part.shape[2:]), 1, 0)
            for part in (x, targets, counted)
        ]

        def chunk(total: jax.Array, parts: Tree) -> tuple[jax.Array, None]:
            x, targets, counted = parts
            logits = jnp.einsum("bsd,vd->bsv", x, head, preferred_element_type=jnp.float32)
            chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
            lost = jax.nn.logsumexp(logits, axis=-1) - chosen
            return total + jnp.sum(jnp.where(counted, lost, 0)), None

        total, _ = jax.lax.scan(jax.checkpoint(chunk, prevent_cse=False), jnp.zeros(()), chunks)
        return total / jnp.maximum(jnp.sum(counted), 1)
