"""Mamba-2's training step (arXiv:2405.21060), written by hand in JAX as an expert would.

Around the layer it is `jax_llama.py`. In it B and C stay one a group, decays are differences of
cumulative sums, and chunks hand their states on in one product with a triangle of decays. Sums
over time are float32, products JAX's default.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from recipes.benchmarks.jax_llama import Llama, Step, Tree, rms_norm


@dataclass(frozen=True)
class Mamba2(Llama):
    """hidden: the width inside of a layer; kv_heads: groups of heads that share B and C; window:
    that of the convolution."""

    state: int = 128
    chunk: int = 256
    window: int = 4

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The columns of the first projection: gates, what the convolution reads, time steps."""
        return self.hidden, self.hidden + 2 * self.kv_heads * self.state, self.heads

    def _layer(self) -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
        convolved = self.sizes[1]
        return {
            "norm": ((self.width,), ("fsdp",)),
            "in": ((self.width, sum(self.sizes)), ("fsdp", None)),
            "window": ((convolved, self.window), ("fsdp", None)),
            "bias": ((convolved,), ("fsdp",)),
            "dt_bias": ((self.heads,), ("fsdp",)),
            "decay": ((self.heads,), ("fsdp",)),
            "skip": ((self.heads,), ("fsdp",)),
            "gated_norm": ((self.hidden,), ("fsdp",)),
            "out": ((self.hidden, self.width), ("fsdp", None)),
        }


def convolved(x: jax.Array, window: jax.Array, bias: jax.Array) -> jax.Array:
    """Causal convolution of each channel of x [batch, length, channels]."""
    size, length = window.shape[1], x.shape[1]
    padded = jnp.pad(x, ((0, 0), (size - 1, 0), (0, 0)))
    return bias + sum(padded[:, i : i + length] * window[:, i] for i in range(size))


def decays(log: jax.Array) -> jax.Array:
    """The decay from row s to row l of log [..., rows]: [..., l, s]; 0 for later s."""
    sums = jnp.cumsum(log, axis=-1)
    lower = jnp.tri(log.shape[-1], dtype=bool)
    return jnp.exp(jnp.where(lower, sums[..., :, None] - sums[..., None, :], -jnp.inf))


def scanned(x: jax.Array, log: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """The outputs of the states. x: [batch, chunks, l, groups, heads of a group, head], log: the
    same without head, b and c: [batch, chunks, l, groups, state]."""
    log = jnp.moveaxis(log, 2, -1)  # [batch, chunks, groups, heads, l]
    sums = jnp.cumsum(log, axis=-1)
    scores = jnp.einsum("zclgn,zcsgn->zcgls", c, b)
    inside = jnp.einsum("zcghls,zcsghp->zclghp", scores[:, :, :, None] * decays(log), x)
    rest = jnp.exp(sums[..., -1:] - sums)
    states = jnp.einsum("zclgn,zcghl,zclghp->zcghpn", b, rest, x)
    # The state before a chunk is that of each earlier one, decayed by the chunks between.
    ends = jnp.moveaxis(sums[..., -1], 1, -1)
    between = jnp.pad(decays(ends)[..., :-1, :-1], ((0, 0),) * 3 + ((1, 0), (0, 1)))
    before = jnp.einsum("zghcd,zdghpn->zcghpn", between, states)
    off = jnp.einsum("zclgn,zcghpn->zclghp", c, before)
    return inside + off * jnp.moveaxis(jnp.exp(sums), -1, 2)[..., None]


@dataclass(frozen=True)
class MambaStep(Step):
    """A training step over a mesh with an axis fsdp (and tensor, of size 1)."""

    model: Mamba2

    def layer(self, x: jax.Array, stored: Tree) -> jax.Array:
        model, parts = self.model, self.model._layer()
        weights = {
            name: self.gathered(weight, jax.P(*parts[name][1])) for name, weight in stored.items()
        }
        batch, length, _ = x.shape
        groups, wide = model.kv_heads, jnp.float32
        chunks = (batch, length // model.chunk, model.chunk, groups)
        normed = rms_norm(x, weights["norm"], model.eps).astype(self.dtype)
        projected = normed @ weights["in"]
        gate, mixed, dt = jnp.split(projected, (model.sizes[0], sum(model.sizes[:2])), axis=-1)
        mixed = jax.nn.silu(convolved(mixed, weights["window"], weights["bias"]))
        values, b, c = jnp.split(
            mixed, (model.hidden, model.hidden + groups * model.state), axis=-1
        )
        dt = jax.nn.softplus(dt + weights["dt_bias"]).astype(wide).reshape(*chunks, -1)
        values = values.astype(wide).reshape(*chunks, -1, model.head)
        decay = -jnp.exp(weights["decay"].astype(wide)).reshape(groups, -1)
        b, c = (part.astype(wide).reshape(*chunks, -1) for part in (b, c))
        y = scanned(values * dt[..., None], decay * dt, b, c)
        y = y + weights["skip"].reshape(groups, -1, 1) * values
        y = y.reshape(batch, length, -1) * jax.nn.silu(gate.astype(wide))
        normed = rms_norm(y, weights["gated_norm"], model.eps).astype(self.dtype)
        return self.constrained(x + normed @ weights["out"], "fsdp", None, None)
