"""The reference program at scale: a Llama and its training step, written by hand in JAX as an
expert would.

Nothing is allocated: the step is compiled from shapes alone, for a TPU slice that need not be
present (package libtpu). It imports neither torch nor spmd.

Layers are stacked and run by `lax.scan`, each under `jax.checkpoint`. Float32 masters are sharded
over the mesh, cast to bfloat16 *before* they are gathered, so that half the bytes travel, and
gathered in the loop's body, in forward and again in backward, also where the activations are kept.
Gradients leave the body sharded like their weights, so that it has a reduce-scatter and no
unsharded gradient. Residuals are sharded along the sequence where there is a tensor axis
(Korthikanti et al. 2022, arXiv:2205.05198). Attention is jax's own kernel for TPUs, grouped heads
are never repeated, softmax and norms are in float32, products in bfloat16, and the state is
donated.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.sharding import Mesh, NamedSharding, PartitionSpec

P = PartitionSpec
Tree = Any  # a pytree of arrays, shapes or shardings


@dataclass(frozen=True)
class Llama:
    """The shapes of a model: Llama 3's by default (arXiv:2407.21783)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 128_256
    theta: float = 500_000.0
    eps: float = 1e-5

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads

    def num_parameters(self) -> int:
        """The number of parameter elements of the model."""
        shapes = jax.tree.leaves(self.shapes(), is_leaf=lambda x: isinstance(x, tuple))
        return sum(int(np.prod(shape)) for shape in shapes)

    def shapes(self) -> Tree:
        """The shapes of the parameters; those of a layer have the number of layers as leading
        dim."""
        layer = {name: (self.layers, *shape) for name, (shape, _) in self._layer().items()}
        ends = {
            "embed": (self.vocabulary, self.width),
            "head": (self.width, self.vocabulary),
            "norm": (self.width,),
        }
        return {"layers": layer, **ends}

    def _layer(self) -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
        """The shape and the spec of each weight of a layer."""
        width, keys = self.width, self.kv_heads * self.head
        return {
            "norm1": ((width,), ("fsdp",)),
            "query": ((width, width), ("fsdp", "tensor")),
            "key": ((width, keys), ("fsdp", "tensor")),
            "value": ((width, keys), ("fsdp", "tensor")),
            "out": ((width, width), ("tensor", "fsdp")),
            "norm2": ((width,), ("fsdp",)),
            "gate": ((width, self.hidden), ("fsdp", "tensor")),
            "up": ((width, self.hidden), ("fsdp", "tensor")),
            "down": ((self.hidden, width), ("tensor", "fsdp")),
        }

    def specs(self) -> Tree:
        """The specs of the parameters over the axes fsdp and tensor; the dim of layers is not
        sharded."""
        layer = {name: P(None, *spec) for name, (_, spec) in self._layer().items()}
        return {
            "layers": layer,
            "embed": P("tensor", "fsdp"),
            "head": P("fsdp", "tensor"),
            "norm": P("fsdp"),
        }


LLAMA_1B = Llama(16, 2048, 32, 8, 8192)
LLAMA_8B = Llama(32, 4096, 32, 8, 14_336)
LLAMA_70B = Llama(80, 8192, 64, 8, 28_672)


@dataclass(frozen=True)
class AdamW:
    """AdamW as `torch.optim.AdamW` defines it."""

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1

    def update(self, state: Tree, gradients: Tree) -> Tree:
        """Returns the next (parameters, first moments, second moments, steps done)."""
        parameters, first, second, count = state
        count = count + 1
        correction1, correction2 = 1 - self.beta1**count, jnp.sqrt(1 - self.beta2**count)

        def one(parameter: Any, mean: Any, square: Any, gradient: Any) -> tuple[Any, Any, Any]:
            mean = self.beta1 * mean + (1 - self.beta1) * gradient
            square = self.beta2 * square + (1 - self.beta2) * jnp.square(gradient)
            step = (mean / correction1) / (jnp.sqrt(square) / correction2 + self.eps)
            return (
                parameter - self.learning_rate * (step + self.weight_decay * parameter),
                mean,
                square,
            )

        new = jax.tree.map(one, parameters, first, second, gradients)
        return *jax.tree.transpose(
            jax.tree.structure(parameters), jax.tree.structure((0, 0, 0)), new
        ), count


def rms_norm(x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight


def rope(x: jax.Array, theta: float, positions: jax.Array | None = None) -> jax.Array:
    """Rotary position embedding of x [batch, length, heads..., width] (Su et al. 2021,
    arXiv:2104.09864). positions: [length]; None: the rows are in their order."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    places = jnp.arange(x.shape[1]) if positions is None else positions
    angles = places.astype(jnp.float32)[:, None] * frequencies
    angles = angles.reshape(x.shape[1], *(1,) * (x.ndim - 3), half)
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(
        x.dtype
    )


def dot_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention: query [batch, length, kv heads, queries per kv head, width], key and value
    without the 4th."""
    scores = jnp.einsum("bskgd,blkd->bkgsl", query, key, preferred_element_type=jnp.float32)
    length = query.shape[1]
    allowed = jax.lax.iota(jnp.int32, length)[:, None] >= jax.lax.iota(jnp.int32, length)
    scores = jnp.where(allowed, scores * query.shape[-1] ** -0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    return jnp.einsum("bkgsl,blkd->bskgd", weights, value)


def splash_attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """`dot_attention` of one device's shard by jax's own kernel for TPUs, without an array of
    length x length, in the block sizes of this library's call of it: wider ones forward would
    compute more of the masked half."""
    length, width = query.shape[1], query.shape[-1]
    num_heads = query.shape[2] * query.shape[3]
    mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * num_heads)
    rows, wide = min(512, length), min(1024, length)
    sizes = splash.BlockSizes(
        block_q=rows,
        block_kv=rows,
        block_kv_compute=rows,
        block_q_dkv=rows,
        block_kv_dkv=wide,
        block_kv_dkv_compute=rows,
        use_fused_bwd_kernel=True,
    )
    kernel = splash.make_splash_mha(mask=mask, head_shards=1, q_seq_shards=1, block_sizes=sizes)
    scaled = (query * width**-0.5).astype(query.dtype).reshape(*query.shape[:2], num_heads, width)
    output = jax.vmap(kernel)(*(x.transpose(0, 2, 1, 3) for x in (scaled, key, value)))
    return output.transpose(0, 2, 1, 3).reshape(query.shape)


def all_but_constrained(primitive: Any, *_: Any, **__: Any) -> bool:
    """A checkpoint policy that keeps all values but gathered weights, which are the results of
    constraints."""
    # Not `save_anything_except_these_names`: the unnamed operand of the name would be kept, which
    # has the same value.
    return primitive.name != "sharding_constraint"


@dataclass(frozen=True)
class Step:
    """A training step of a model over a mesh with axes fsdp and tensor (one may have size 1)."""

    model: Llama
    mesh: Mesh
    batch: int
    sequence: int
    checkpointed: bool = True
    scanned: bool = True
    attention: Literal["splash", "dot"] = "splash"
    optimizer: AdamW = AdamW()
    dtype: Any = jnp.bfloat16  # the dtype of gathered weights and of the layers' computation

    def constrained(self, x: jax.Array, *spec: Any) -> jax.Array:
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, P(*spec)))

    def gathered(self, weight: jax.Array, spec: PartitionSpec) -> jax.Array:
        """A master weight, cast and then gathered over fsdp; its gradient is sharded as the
        weight."""
        weight = self.constrained(self.constrained(weight, *spec).astype(self.dtype), *spec)
        return self.constrained(weight, *(None if axis == "fsdp" else axis for axis in spec))

    def mixed(self, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        if self.attention == "dot":
            return dot_attention(
                self.constrained(query, "fsdp", None, "tensor", None, None), key, value
            )
        narrow = P("fsdp", None, "tensor", None)
        specs = (P(*narrow, None), narrow, narrow)
        kernel = jax.shard_map(
            splash_attention, mesh=self.mesh, in_specs=specs, out_specs=specs[0], check_vma=False
        )
        return kernel(query, key, value)

    def layer(self, x: jax.Array, stored: Tree) -> jax.Array:
        model, parts = self.model, self.model._layer()
        weights = {
            name: self.gathered(weight, P(*parts[name][1])) for name, weight in stored.items()
        }
        batch, length, _ = x.shape
        shape = (batch, length, model.kv_heads, -1, model.head)
        normed = self.constrained(rms_norm(x, weights["norm1"], model.eps), "fsdp", None, None)
        query = rope((normed @ weights["query"]).reshape(shape), model.theta)
        key = rope((normed @ weights["key"]).reshape(shape)[:, :, :, 0], model.theta)
        value = (normed @ weights["value"]).reshape(shape)[:, :, :, 0]
        mixed = self.mixed(query, key, value).reshape(batch, length, -1)
        x = x + self.constrained(
            self.constrained(mixed, "fsdp", None, "tensor") @ weights["out"], "fsdp", "tensor", None
        )
        normed = self.constrained(rms_norm(x, weights["norm2"], model.eps), "fsdp", None, None)
        hidden = jax.nn.silu(normed @ weights["gate"]) * (normed @ weights["up"])
        hidden = self.constrained(hidden, "fsdp", None, "tensor")
        return x + self.constrained(hidden @ weights["down"], "fsdp", "tensor", None)

    def loss(self, parameters: Tree, tokens: jax.Array, targets: jax.Array) -> jax.Array:
        """The mean cross entropy of tokens and targets, both [batch, sequence]."""
        specs = self.model.specs()
        embed = self.gathered(parameters["embed"], specs["embed"])
        x = self.constrained(jnp.take(embed, tokens, axis=0), "fsdp", "tensor", None)
        kept = (
            jax.checkpoint_policies.nothing_saveable if self.checkpointed else all_but_constrained
        )
        layer = jax.checkpoint(self.layer, prevent_cse=not self.scanned, policy=kept)
        if self.scanned:
            x, _ = jax.lax.scan(lambda x, stored: (layer(x, stored), None), x, parameters["layers"])
        else:
            for i in range(self.model.layers):
                x = layer(x, jax.tree.map(lambda stack, i=i: stack[i], parameters["layers"]))
        x = self.constrained(
            rms_norm(x, self.gathered(parameters["norm"], specs["norm"]), self.model.eps),
            "fsdp",
            None,
            None,
        )
        head = self.gathered(parameters["head"], specs["head"])
        logits = jnp.einsum("bsd,dv->bsv", x, head, preferred_element_type=jnp.float32)
        logits = self.constrained(logits, "fsdp", None, "tensor")
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    def __call__(
        self, state: Tree, tokens: jax.Array, targets: jax.Array
    ) -> tuple[Tree, jax.Array]:
        value, gradients = jax.value_and_grad(self.loss)(state[0], tokens, targets)
        return self.optimizer.update(state, gradients), value

    def lower(self) -> Any:
        """Returns the step as a `jax.stages.Lowered`, from shapes alone."""
        sharded = jax.tree.map(
            lambda spec: NamedSharding(self.mesh, spec),
            self.model.specs(),
            is_leaf=lambda x: isinstance(x, P),
        )
        replicated, batched = (
            NamedSharding(self.mesh, P()),
            NamedSharding(self.mesh, P("fsdp", None)),
        )
        weights = jax.tree.map(
            lambda shape, sharding: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding),
            self.model.shapes(),
            sharded,
            is_leaf=lambda x: isinstance(x, tuple),
        )
        count = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated)
        tokens = jax.ShapeDtypeStruct((self.batch, self.sequence), jnp.int32, sharding=batched)
        out_shardings = ((sharded, sharded, sharded, replicated), replicated)
        jitted = jax.jit(self, donate_argnums=0, out_shardings=out_shardings)
        return jitted.lower((weights, weights, weights, count), tokens, tokens)
