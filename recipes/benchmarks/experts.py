"""Mixture-of-experts steps with experts sharded over a mesh axis, next to JAX by hand, by the
compilers of real TPUs.

    python -m recipes.benchmarks.experts                          every row and side
    python -m recipes.benchmarks.experts --rows mixtral --sides ours jax

No TPU is needed, but libtpu is (extra `tpu`), except for the toy. Ours is Hugging Face's model on
meta, planned by `spmd.plan`: side "ours" with its experts marked, "off" the same as
`config.parallel = "off"` computes it. JAX's is `jax_experts.py`. Each side has a process of its
own; figures are those of `sides.py`, of one chip. The rounds of an exchange of rows depend on the
router: figures are of a balanced one.

A training step recomputes its layers, and AdamW's moments have the dtype of the weights;
DeepSeek-V3's 671 billion parameters are planned only. A row of a layer is the forward and backward
of a layer of its routed experts by a softmax router.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from recipes.benchmarks import sides

AXES = ("fsdp", "expert")  # the batch is sharded over both
MIXTRAL = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
TOY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
DEEPSEEK = {
    "hidden_size": 7168,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
}
DEEPSEEK_671B: dict[str, Any] = {
    "layers": 61,
    "shapes": {},
    "config": "DeepseekV3Config",
    "sides": ("ours",),
}


@dataclass(frozen=True)
class Row:
    """One step. shards: of fsdp and of expert; layers: 0 for a layer of experts alone; weights:
    their dtype; shapes: as transformers names them."""

    name: str
    target: str
    shards: tuple[int, int]
    batch: int
    sequence: int
    layers: int
    weights: str = "bfloat16"
    is_toy: bool = False
    experts: str = "grouped_mm"  # transformers' implementation
    shapes: Mapping[str, Any] = field(default_factory=lambda: MIXTRAL)
    config: str = "MixtralConfig"  # of transformers
    sides: tuple[str, ...] = ("ours", "off", "jax")

    @property
    def num_devices(self) -> int:
        return math.prod(self.shards)


ROWS = {
    row.name: row
    for row in (
        Row("toy", "cpu:8", (2, 4), 16, 64, 2, weights="float32", is_toy=True, shapes=TOY),
        Row("mixtral", "v5p:2x2x2", (2, 4), 16, 2048, 4),
        Row("mixtral-eager", "v5p:2x2x2", (2, 4), 16, 2048, 4, experts="eager"),
        Row("mixtral-batched", "v5p:2x2x2", (2, 4), 16, 2048, 4, experts="batched_mm"),
        Row("mixtral-8-sequences", "v5p:2x2x2", (2, 4), 64, 4096, 4),
        Row("mixtral-16-sequences", "v5p:2x2x2", (2, 4), 128, 4096, 4),
        Row("mixtral-h100", "h100:8", (2, 4), 16, 2048, 4, sides=("ours",)),
        Row("deepseek-layer", "v5p:4x4x4", (1, 64), 64, 4096, 0, shapes=DEEPSEEK),
        Row("deepseek-671b-v5p", "v5p:8x8x8", (8, 64), 512, 4096, **DEEPSEEK_671B),
        Row("deepseek-671b-tpu7x", "tpu7x:4x4x8", (4, 64), 256, 4096, **DEEPSEEK_671B),
        Row("deepseek-671b-h100", "64xh100:8", (8, 64), 512, 4096, **DEEPSEEK_671B),
    )
}


# -- Ours.


def ours(row: Row, side: str) -> dict[str, Any]:
    """The figures of the plan of an unmodified model."""
    import spmd

    if row.is_toy:
        spmd.simulate(row.num_devices)
    spmd.config.parallel = "off" if side == "off" else "auto"
    mesh = spmd.Mesh(range(row.num_devices), row.shards, AXES, target=row.target)
    step, batch = (_training if row.layers else _layer)(row, mesh)
    return sides.planned(step, batch)[1]


def _training(row: Row, mesh: Any) -> tuple[Callable[..., Any], Any]:
    """A training step of a model, and its tokens."""
    import torch
    import transformers

    import fsdp  # noqa: F401  carries out the units of the rules
    import spmd
    from spmd import P

    config = getattr(transformers, row.config)(
        **row.shapes,
        num_hidden_layers=row.layers,
        max_position_embeddings=row.sequence,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config).to(
            getattr(torch, row.weights)
        )
    model.config._experts_implementation = row.experts
    model.gradient_checkpointing_enable()
    rules = {"**.experts.*": P("expert", None, None)}
    spmd.ShardingRules(rules, units=["model.layers.*"], extra_data_axis="expert").apply(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(tokens: torch.Tensor) -> torch.Tensor:
        spmd.mark_sharding(tokens, mesh, P(AXES, None))
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, torch.zeros(row.batch, row.sequence, dtype=torch.int64, device="meta")


def _layer(row: Row, mesh: Any) -> tuple[Callable[..., Any], Any]:
    """The forward and backward of a layer of experts, and its hidden states."""
    import torch
    import transformers
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Experts

    import spmd
    from spmd import P

    config, dtype = transformers.DeepseekV3Config(**row.shapes), getattr(torch, row.weights)
    config._experts_implementation = "grouped_mm"
    with torch.device("meta"):
        experts = DeepseekV3Experts(config).to(dtype)
        router = torch.nn.Linear(
            row.shapes["hidden_size"], row.shapes["n_routed_experts"], bias=False, dtype=dtype
        )
    spmd.ShardingRules({"*": P("expert", None, None)}).apply(experts, mesh)
    spmd.ShardingRules({"*": P()}).apply(router, mesh)

    def step(hidden: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spmd.mark_sharding(hidden, mesh, P(AXES, None))
        hidden.requires_grad_()
        probabilities = torch.softmax(router(hidden).float(), dim=-1)
        weights, index = torch.topk(probabilities, row.shapes["num_experts_per_tok"], dim=-1)
        result = experts(hidden, index, weights / weights.sum(-1, keepdim=True))
        loss = result.float().sin().sum()
        return loss, *torch.autograd.grad(
            loss, [hidden, *router.parameters(), *experts.parameters()]
        )

    return step, torch.zeros(
        row.batch * row.sequence, row.shapes["hidden_size"], dtype=dtype, device="meta"
    )


# -- JAX's.


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the program of JAX's."""
    return sides.by_hand(row, AXES, partial(_lowered, row))


def _lowered(row: Row, mesh: Any) -> Any:
    import jax.numpy as jnp

    from recipes.benchmarks import jax_experts
    from recipes.benchmarks.jax_llama import dot_attention

    products = jax_experts.BY_RAGGED_DOT if row.is_toy else jax_experts.BY_KERNEL
    stored = getattr(jnp, row.weights)
    if not row.layers:
        experts = jax_experts.Experts(
            row.shapes["hidden_size"],
            row.shapes["moe_intermediate_size"],
            row.shapes["n_routed_experts"],
            row.shapes["num_experts_per_tok"],
            products,
        )
        return experts.lower(mesh, row.batch * row.sequence, stored)
    model = jax_experts.Mixtral(
        row.layers,
        row.shapes["hidden_size"],
        row.shapes["num_attention_heads"],
        row.shapes["num_key_value_heads"],
        row.shapes["intermediate_size"],
        row.shapes["vocab_size"],
        row.shapes["num_local_experts"],
        row.shapes["num_experts_per_tok"],
        products=products,
    )
    how: dict[str, Any] = {"attention": dot_attention, "dtype": jnp.float32} if row.is_toy else {}
    return jax_experts.Step(model, mesh, row.batch, row.sequence, stored=stored, **how).lower()


def _title(row: Row) -> str:
    shards = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, row.shards, strict=True))
    kind = f"{row.layers} layers" if row.layers else "a layer of experts"
    return (
        f"{row.name}: {kind} on {row.target}, {shards}, {row.batch} x {row.sequence:,}, masters "
        f"in {row.weights}"
    )


if __name__ == "__main__":
    sides.main(
        "recipes.benchmarks.experts",
        __doc__,
        ROWS,
        {"ours": ours, "off": ours, "jax": by_hand},
        _title,
    )
