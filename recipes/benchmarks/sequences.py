"""Long sequences from a mark on the tokens, next to a ring by hand in JAX, compiled by the
compilers of real TPUs.

    python -m recipes.benchmarks.sequences                      every row and side
    python -m recipes.benchmarks.sequences --rows 8b --sides ours jax
    python -m recipes.benchmarks.sequences --rows h100          extra `gpu-plan`

No TPU is needed, but libtpu is (extra `tpu`), except for the toy. Ours is Hugging Face's Llama on
meta, planned by `spmd.plan`: sides "ours" with its tokens marked alone, "marked" with the outputs
of its layers as well, and "off" the same as `config.parallel = "off"` computes it. JAX's is
`jax_sequences.py`. Each side has a process of its own; figures are those of `sides.py`, of one
chip. AdamW's moments have the dtype of the weights.
"""

import math
from dataclasses import dataclass
from typing import Any

from recipes.benchmarks import sides


@dataclass(frozen=True)
class Row:
    """One step. shards: of fsdp and of context; weights: the dtype that they are kept in."""

    name: str
    target: str
    shards: tuple[int, int]
    batch: int
    sequence: int
    layers: int
    weights: str = "float32"
    checkpointed: bool = True
    is_toy: bool = False
    sides: tuple[str, ...] = ("ours", "marked", "off", "jax")


ROWS = {
    row.name: row
    for row in (
        Row("toy", "cpu:8", (2, 4), 2, 4096, 2, checkpointed=False, is_toy=True),
        Row("2-layers", "v5p:4x4x4", (4, 16), 4, 32_768, 2, weights="bfloat16", checkpointed=False),
        Row("2-layers-float32", "v5p:4x4x4", (4, 16), 4, 32_768, 2),
        Row("8b", "v5p:4x4x4", (1, 64), 1, 1 << 20, 32),
        Row("h100", "h100:8", (2, 4), 2, 8192, 2, "bfloat16", checkpointed=False, sides=("ours",)),
    )
}


def ours(row: Row, side: str) -> dict[str, Any]:
    """The figures of the plan of an unmodified model."""
    import torch
    import transformers

    import fsdp
    import spmd
    from spmd import P

    if row.is_toy:
        spmd.simulate(math.prod(row.shards))
    spmd.config.parallel = "off" if side == "off" else "auto"
    mesh = spmd.Mesh(
        range(math.prod(row.shards)), row.shards, ("fsdp", "context"), target=row.target
    )
    config = transformers.LlamaConfig(
        **_shapes(row),
        num_hidden_layers=row.layers,
        max_position_embeddings=row.sequence,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config).to(getattr(torch, row.weights))
    if row.checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    both = ("fsdp", "context")
    rules: dict[str, Any] = {"**.*norm.weight": P(both), "**.weight": P(both, None)}
    if side == "marked":
        rules |= {
            f"{name}:output": P("fsdp", "context", None)
            for name in ("model.layers.*", "model.embed_tokens")
        }
    low = {} if row.is_toy else {"mp_policy": fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
    spmd.ShardingRules(rules, units=["model.layers.*"]).apply(model, mesh, **low)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    tokens = torch.zeros(row.batch, row.sequence, dtype=torch.int64, device="meta")

    def step(tokens: torch.Tensor) -> torch.Tensor:
        spmd.mark_sharding(tokens, mesh, P("fsdp", "context"))
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    plan, figures = sides.planned(step, tokens)
    return {**figures, "attention": plan.kernel_flops / attention_flops(row)}


def attention_flops(row: Row) -> float:
    """The operations of a device's equal part of causal attention: two products of forward, which
    recomputation has twice, and five of backward, of the scores below the diagonal."""
    width, products = _shapes(row)["hidden_size"], 9 if row.checkpointed else 7
    return (
        row.layers * row.batch * row.sequence**2 / 2 * 2 * width * products / math.prod(row.shards)
    )


def _shapes(row: Row) -> dict[str, int]:
    if row.is_toy:
        return {
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "vocab_size": 256,
        }
    return {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "rope_theta": 500_000,
    }


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the program of JAX's."""
    import jax.numpy as jnp

    from recipes.benchmarks import jax_sequences
    from recipes.benchmarks.jax_llama import Llama

    shapes = _shapes(row)
    model = Llama(
        row.layers,
        shapes["hidden_size"],
        shapes["num_attention_heads"],
        shapes["num_key_value_heads"],
        shapes["intermediate_size"],
        shapes["vocab_size"],
    )
    how = {"pair": jax_sequences.BY_PRODUCTS, "dtype": jnp.float32} if row.is_toy else {}

    def lower(mesh: Any) -> Any:
        stored = getattr(jnp, row.weights)
        return jax_sequences.Step(
            model, mesh, row.batch, row.sequence, row.checkpointed, stored=stored, **how
        ).lower()

    return sides.by_hand(row, jax_sequences.ALL, lower)


def _title(row: Row) -> str:
    shards = f"fsdp={row.shards[0]}, context={row.shards[1]}"
    size = (
        f"{row.name}: {row.layers} layers on {row.target}, {shards}, {row.batch} x {row.sequence:,}"
    )
    return f"{size}, masters in {row.weights}"


if __name__ == "__main__":
    every = {**dict.fromkeys(("ours", "marked", "off"), ours), "jax": by_hand}
    sides.main("recipes.benchmarks.sequences", __doc__, ROWS, every, _title)
