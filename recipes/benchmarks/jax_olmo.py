"""OLMo 2's training step (arXiv:2501.00656), written by hand in JAX: `jax_llama.py` with norms
behind attention and the MLP, and of all queries and keys of a token."""

from dataclasses import dataclass
from typing import Any

import jax

from recipes.benchmarks.jax_llama import Llama, P, Step, Tree, rms_norm, rope


@dataclass(frozen=True)
class Olmo2(Llama):
    eps: float = 1e-6

    def _layer(self) -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
        norms = {
            "query_norm": ((self.width,), ("fsdp",)),
            "key_norm": ((self.kv_heads * self.head,), ("fsdp",)),
        }
        return {**super()._layer(), **norms}


@dataclass(frozen=True)
class OlmoStep(Step):
    model: Olmo2

    def layer(self, x: jax.Array, stored: Tree) -> jax.Array:
        model, parts = self.model, self.model._layer()
        weights = {
            name: self.gathered(weight, P(*parts[name][1])) for name, weight in stored.items()
        }
        # Else the stack of layer inputs that backward reads would be unsharded along the sequence.
        x = self.constrained(x, "fsdp", "tensor", None)
        batch, length, _ = x.shape
        shape = (batch, length, model.kv_heads, -1, model.head)
        whole = self.constrained(x, "fsdp", None, None)
        query = rms_norm(whole @ weights["query"], weights["query_norm"], model.eps)
        key = rms_norm(whole @ weights["key"], weights["key_norm"], model.eps)
        query, key = (rope(y.reshape(shape), model.theta) for y in (query, key))
        value = (whole @ weights["value"]).reshape(shape)[:, :, :, 0]
        mixed = self.mixed(query, key[:, :, :, 0], value).reshape(batch, length, -1)
        out = self.constrained(mixed, "fsdp", None, "tensor") @ weights["out"]
        out = self.constrained(out, "fsdp", "tensor", None)
        x = x + rms_norm(out, weights["norm1"], model.eps)
        whole = self.constrained(x, "fsdp", None, None)
        hidden = jax.nn.silu(whole @ weights["gate"]) * (whole @ weights["up"])
        down = self.constrained(hidden, "fsdp", None, "tensor") @ weights["down"]
        down = self.constrained(down, "fsdp", "tensor", None)
        return x + rms_norm(down, weights["norm2"], model.eps)
