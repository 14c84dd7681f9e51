"""A Llama whose rows are sharded over a mesh axis, and its training step, written by hand in JAX as
an expert would.

Nothing is allocated: the step is compiled from shapes alone. It imports neither torch nor spmd.

Attention is a ring in zigzag order (Liu et al. 2023, arXiv:2310.01889; Brandon et al. 2023,
arXiv:2311.09431): device i has the chunks i and 2n-1-i of the rows, so that a step of the ring is
two whole pairs of chunks on each device. Keys and values travel, in backward their gradients with
them, and outputs are merged by their log-sum-exp. A pair is jax's kernel for TPUs, whose private
backward takes the log-sum-exp of all keys. Tokens, targets and positions come in zigzag order.
Master weights are sharded over all devices, cast, and gathered in the loop's body; layers are
recomputed; logits are computed in chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recipes.benchmarks.jax_llama import AdamW, Llama, Tree, all_but_constrained, rms_norm, rope

P = PartitionSpec
ALL = ("fsdp", "context")  # the axes of the mesh; weights are sharded over both
_BLOCK, _STEP = 1024, 512  # rows and columns of a kernel's block, columns of a step in it
_ROWS_OF_LOGITS = 2048


def zigzag(length: int, num_devices: int) -> np.ndarray:
    """The positions of the rows, device by device."""
    chunks = np.arange(length).reshape(2 * num_devices, -1)
    return np.concatenate([np.concatenate([chunks[i], chunks[-1 - i]]) for i in range(num_devices)])


# -- One pair of chunks: query [batch, heads, rows, width], key and value with their own heads and
# columns.


class Pair(NamedTuple):
    """forward: (query, key, value, is_causal) -> output, log-sum-exp; backward: (query, key, value,
    output, log-sum-exp, gradient, is_causal) -> the gradients of the first three. Results are in
    float32."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def _grouped(x: jax.Array, like: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], like.shape[1], -1, *x.shape[2:])


def _scores(query: jax.Array, key: jax.Array, is_causal: bool) -> jax.Array:
    scores = jnp.einsum(
        "bkgrd,bkcd->bkgrc", _grouped(query, key), key, preferred_element_type=jnp.float32
    )
    allowed = jnp.tri(*scores.shape[-2:], dtype=bool) if is_causal else True
    return jnp.where(allowed, scores * query.shape[-1] ** -0.5, -1e30)


def _forward_by_products(
    query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool
) -> Any:
    scores = _scores(query, key, is_causal)
    logsumexp = jax.nn.logsumexp(scores, axis=-1)
    weights = jnp.exp(scores - logsumexp[..., None])
    output = jnp.einsum("bkgrc,bkcd->bkgrd", weights, value)
    return output.reshape(query.shape), logsumexp.reshape(query.shape[:3])


def _backward_by_products(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    output: Any,
    logsumexp: Any,
    gradient: Any,
    is_causal: bool,
) -> Any:
    weights = jnp.exp(_scores(query, key, is_causal) - _grouped(logsumexp, key)[..., None])
    gradient, products = _grouped(gradient, key), _grouped(jnp.sum(output * gradient, axis=-1), key)
    of_weights = jnp.einsum("bkgrd,bkcd->bkgrc", gradient, value)
    of_scores = weights * (of_weights - products[..., None]) * query.shape[-1] ** -0.5
    return (
        jnp.einsum("bkgrc,bkcd->bkgrd", of_scores, key).reshape(query.shape),
        jnp.einsum("bkgrc,bkgrd->bkcd", of_scores, _grouped(query, key)),
        jnp.einsum("bkgrc,bkgrd->bkcd", weights, gradient),
    )


BY_PRODUCTS = Pair(_forward_by_products, _backward_by_products)


def _kernel(query: jax.Array, key: jax.Array, is_causal: bool, *, saves_residuals: bool) -> Any:
    shape = query.shape[2], key.shape[2]
    mask = masks.CausalMask(shape) if is_causal else masks.FullMask(shape)
    block, step = min(_BLOCK, *shape), min(_STEP, *shape)
    # Of a causal mask in this library's block sizes: wider ones would compute more of the masked
    # half.
    rows, columns = (step, step) if is_causal else (block, block)
    sizes = kernels.BlockSizes(
        block_q=rows,
        block_kv=columns,
        block_kv_compute=step,
        block_q_dkv=rows,
        block_kv_dkv=block,
        block_kv_dkv_compute=step,
        use_fused_bwd_kernel=True,
    )
    return kernels.make_splash_mha(
        mask=masks.MultiHeadMask([mask] * query.shape[1]),
        block_sizes=sizes,
        head_shards=1,
        q_seq_shards=1,
        save_residuals=saves_residuals,
    )


def _scaled(query: jax.Array) -> jax.Array:
    return query * query.shape[-1] ** -0.5


def _forward_by_kernel(query: jax.Array, key: jax.Array, value: jax.Array, is_causal: bool) -> Any:
    kernel = _kernel(query, key, is_causal, saves_residuals=True)
    output, (logsumexp,) = jax.vmap(kernel)(_scaled(query), key, value)
    return output.astype(jnp.float32), logsumexp


def _backward_by_kernel(query: jax.Array, key: jax.Array, value: jax.Array, *rest: Any) -> Any:
    *saved, is_causal = rest
    kernel = _kernel(query, key, is_causal, saves_residuals=False)
    how = {
        "save_residuals": False,
        "residual_checkpoint_name": None,
        "mask_function": None,
        "attn_logits_soft_cap": None,
        "interpret": False,
    } | kernel.kwargs
    names = (
        "save_residuals",
        "mask_value",
        "is_mqa",
        "block_sizes",
        "residual_checkpoint_name",
        "mask_function",
        "attn_logits_soft_cap",
        "interpret",
    )

    def one(query: Any, key: Any, value: Any, output: Any, logsumexp: Any, gradient: Any) -> Any:
        infos = kernel.dq_mask_info, kernel.dkv_mask_info
        residuals = (query, key, value, None, None, output, logsumexp, *infos)
        return kernels._splash_attention_bwd(*(how[name] for name in names), residuals, gradient)[
            3:6
        ]

    grads = [grad.astype(jnp.float32) for grad in jax.vmap(one)(_scaled(query), key, value, *saved)]
    return _scaled(grads[0]), *grads[1:]


BY_KERNEL = Pair(_forward_by_kernel, _backward_by_kernel)


# -- The ring.


def _merged(one: Any, other: Any) -> Any:
    """The output and the log-sum-exp of the keys of both."""
    both = jnp.logaddexp(one[1], other[1])
    weights = (jnp.exp(part[1] - both)[..., None] for part in (one, other))
    return sum(part[0] * weight for part, weight in zip((one, other), weights, strict=True)), both


def _passed_on(tree: Tree) -> Tree:
    n = lax.axis_size("context")
    return lax.ppermute(tree, "context", [(i, (i + 1) % n) for i in range(n)])


def _halves(tree: Tree) -> tuple[Tree, Tree]:
    """The two chunks of a device: that of low positions, that of high ones."""
    parts, structure = jax.tree.flatten(tree)
    low, high = zip(*(jnp.split(part, 2, axis=2) for part in parts), strict=True)
    return jax.tree.unflatten(structure, low), jax.tree.unflatten(structure, high)


def _joined(low: Tree, high: Tree) -> Tree:
    return jax.tree.map(lambda one, other: jnp.concatenate([one, other], axis=2), low, high)


def _one_of(condition: Any, one: Tree, other: Tree) -> Tree:
    return jax.tree.map(lambda one, other: jnp.where(condition, one, other), one, other)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def ring(pair: Pair, query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    """Causal attention of a device's two chunks of rows to the keys of all devices, inside of
    `shard_map`."""
    return _ring_forward(pair, query, key, value)[0]


def _ring_forward(pair: Pair, query: jax.Array, key: jax.Array, value: jax.Array) -> Any:
    at = lax.axis_index("context")
    low_rows, high_rows = _halves(query)
    low_keys, high_keys = _halves((key, value))
    low = pair.forward(low_rows, *low_keys, True)
    high = _merged(
        pair.forward(high_rows, *high_keys, True), pair.forward(high_rows, *low_keys, False)
    )

    def step(carry: Any, distance: Any) -> Any:
        """The keys of device `at - distance`: high rows see its low ones; low rows too, or high
        rows its high ones."""
        keys, low, high = carry
        keys = _passed_on(keys)
        low_keys, high_keys = _halves(keys)
        high = _merged(high, pair.forward(high_rows, *low_keys, False))
        is_low = distance <= at
        rows, of_rows = _one_of(is_low, low_rows, high_rows), _one_of(is_low, low_keys, high_keys)
        more = _merged(_one_of(is_low, low, high), pair.forward(rows, *of_rows, False))
        return (keys, _one_of(is_low, more, low), _one_of(is_low, high, more)), None

    carry = (key, value), low, high
    (_, low, high), _ = lax.scan(step, carry, jnp.arange(1, lax.axis_size("context")))
    output, logsumexp = _joined(low, high)
    output = output.astype(query.dtype)
    return output, (query, key, value, output, logsumexp)


def _ring_backward(pair: Pair, saved: Any, gradient: jax.Array) -> Any:
    query, key, value, output, logsumexp = saved
    at = lax.axis_index("context")
    low_rows, high_rows = _halves((query, output, logsumexp, gradient))

    def grads(rows: Any, keys: Any, is_causal: bool = False) -> Any:
        of_query, *of_keys = pair.backward(rows[0], *keys, *rows[1:], is_causal)
        return of_query, tuple(of_keys)

    def sums(*trees: Tree) -> Tree:
        return jax.tree.map(lambda *parts: sum(parts), *trees)

    low_keys, high_keys = _halves((key, value))
    (of_low, low_low), (of_high, high_high) = (
        grads(low_rows, low_keys, True),
        grads(high_rows, high_keys, True),
    )
    of_high_too, high_low = grads(high_rows, low_keys)

    def step(carry: Any, distance: Any) -> Any:
        keys, of_keys, of_low, of_high = carry
        keys, of_keys = _passed_on((keys, of_keys))
        low_keys, high_keys = _halves(keys)
        is_low = distance <= at
        first, of_low_keys = grads(high_rows, low_keys)
        second, more = grads(
            _one_of(is_low, low_rows, high_rows), _one_of(is_low, low_keys, high_keys)
        )
        zero = jax.tree.map(jnp.zeros_like, more)
        of_pair = _joined(
            sums(of_low_keys, _one_of(is_low, more, zero)), _one_of(is_low, zero, more)
        )
        of_low = of_low + jnp.where(is_low, second, 0)
        of_high = of_high + first + jnp.where(is_low, 0, second)
        return (keys, sums(of_keys, of_pair), of_low, of_high), None

    carry = (key, value), _joined(sums(low_low, high_low), high_high), of_low, of_high + of_high_too
    (_, of_keys, of_low, of_high), _ = lax.scan(
        step, carry, jnp.arange(1, lax.axis_size("context"))
    )
    of_keys = _passed_on(of_keys)
    return tuple(
        grad.astype(x.dtype)
        for grad, x in zip((_joined(of_low, of_high), *of_keys), (query, key, value), strict=True)
    )


ring.defvjp(_ring_forward, _ring_backward)


# -- The step.


@dataclass(frozen=True)
class Step:
    """A training step over a mesh with the axes fsdp (of sequences) and context (of their rows)."""

    model: Llama
    mesh: Mesh
    batch: int
    sequence: int
    checkpointed: bool = True
    pair: Pair = BY_KERNEL
    stored: Any = jnp.float32  # the dtype of master weights and of AdamW's moments
    dtype: Any = jnp.bfloat16  # the dtype of gathered weights and of the layers' computation
    optimizer: AdamW = AdamW()

    def sharding(self, *spec: Any) -> NamedSharding:
        return NamedSharding(self.mesh, P(*spec))

    def rows(self, x: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(
            x, self.sharding("fsdp", "context", *(None,) * (x.ndim - 2))
        )

    def gathered(self, weight: jax.Array) -> jax.Array:
        return lax.with_sharding_constraint(weight.astype(self.dtype), self.sharding())

    def mixed(self, *arrays: jax.Array) -> jax.Array:
        """Attention of query, key and value, all [batch, length, heads, width]."""
        spec = P("fsdp", None, "context")
        body = jax.shard_map(
            partial(ring, self.pair),
            mesh=self.mesh,
            in_specs=(spec,) * 3,
            out_specs=spec,
            check_vma=False,
        )
        return body(*(x.transpose(0, 2, 1, 3) for x in arrays)).transpose(0, 2, 1, 3)

    def layer(self, x: jax.Array, stored: Tree, positions: jax.Array) -> jax.Array:
        model, weights = self.model, jax.tree.map(self.gathered, stored)
        shape = (*x.shape[:2], -1, model.head)
        normed = rms_norm(x, weights["norm1"], model.eps)
        query, key, value = (
            (normed @ weights[name]).reshape(shape) for name in ("query", "key", "value")
        )
        mixed = self.mixed(
            rope(query, model.theta, positions), rope(key, model.theta, positions), value
        )
        x = self.rows(x + mixed.reshape(x.shape) @ weights["out"])
        normed = rms_norm(x, weights["norm2"], model.eps)
        hidden = jax.nn.silu(normed @ weights["gate"]) * (normed @ weights["up"])
        return self.rows(x + hidden @ weights["down"])

    def loss(
        self, parameters: Tree, tokens: jax.Array, targets: jax.Array, positions: jax.Array
    ) -> jax.Array:
        """The mean cross entropy of tokens and targets, both [batch, length], at positions
        [length]."""
        x = self.rows(jnp.take(self.gathered(parameters["embed"]), tokens, axis=0))
        kept = (
            jax.checkpoint_policies.nothing_saveable if self.checkpointed else all_but_constrained
        )
        layer = jax.checkpoint(self.layer, prevent_cse=False, policy=kept)
        x, _ = lax.scan(
            lambda x, stored: (layer(x, stored, positions), None), x, parameters["layers"]
        )
        x = rms_norm(x, self.gathered(parameters["norm"]), self.model.eps)
        spec = P("fsdp", "context")
        losses = jax.shard_map(
            _summed_losses,
            mesh=self.mesh,
            in_specs=(P(*spec, None), P(), spec),
            out_specs=P(),
            check_vma=False,
        )
        return losses(x, self.gathered(parameters["head"]), targets) / targets.size

    def __call__(self, state: Tree, *batch: jax.Array) -> tuple[Tree, jax.Array]:
        value, gradients = jax.value_and_grad(self.loss)(state[0], *batch)
        return self.optimizer.update(state, gradients), value

    def lower(self) -> Any:
        """Returns the step as a `jax.stages.Lowered`, from shapes alone."""

        def sharded(shape: tuple[int, ...], is_stacked: bool) -> Any:
            return jax.ShapeDtypeStruct(
                shape, self.stored, sharding=self.sharding(*[None] * is_stacked, ALL)
            )

        shapes = self.model.shapes()
        layers = {name: sharded(shape, True) for name, shape in shapes.pop("layers").items()}
        weights = {
            "layers": layers,
            **{name: sharded(shape, False) for name, shape in shapes.items()},
        }
        count = jax.ShapeDtypeStruct((), jnp.float32, sharding=self.sharding())
        batch = (self.batch, self.sequence)
        tokens = jax.ShapeDtypeStruct(batch, jnp.int32, sharding=self.sharding("fsdp", "context"))
        positions = jax.ShapeDtypeStruct(batch[1:], jnp.int32, sharding=self.sharding("context"))
        state = (weights, weights, weights, count)
        out_shardings = (jax.tree.map(lambda x: x.sharding, state), self.sharding())
        jitted = jax.jit(self, donate_argnums=0, out_shardings=out_shardings)
        return jitted.lower(state, tokens, tokens, positions)


def _summed_losses(x: jax.Array, head: jax.Array, targets: jax.Array) -> jax.Array:
    """The sum of the cross entropies of all devices, from one's rows; never with the logits of all
    its rows."""

    def chunk(total: jax.Array, operands: Any) -> Any:
        rows, targets = operands
        logits = jnp.einsum("bsd,dv->bsv", rows, head, preferred_element_type=jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
        return total + jnp.sum(jax.nn.logsumexp(logits, axis=-1) - chosen), None

    size = min(_ROWS_OF_LOGITS, x.shape[1])
    chunks = [
        part.reshape(part.shape[0], -1, size, *part.shape[2:]).swapaxes(0, 1)
        for part in (x, targets)
    ]
    total, _ = lax.scan(jax.checkpoint(chunk), jnp.zeros((), jnp.float32), tuple(chunks))
    return lax.psum(total, ALL)
