"""Whole training steps of models with windows, over packed batches, beside JAX by hand.

    python -m recipes.benchmarks.packed_steps  # by the v5p compiler; needs libtpu
    python -m recipes.benchmarks.packed_steps --rows gemma3-4b gemma3-4b-long --words
    python -m recipes.benchmarks.packed_steps --rows gemma3-4b-h100 --sides ours  # extra `gpu-plan`

Ours is transformers' model under FSDP, each layer recomputed, with AdamW: masters in float32,
products in bfloat16. A batch is packed as `DataCollatorWithFlattening` packs it, tokens and
positions of one row on each of eight chips. The ids that transformers makes of positions are data,
so both sides count all blocks of causality or of a window, as of one document a row.

JAX by hand (`jax_packed.py`) has the same layers in scans, a period of windows in each iteration,
and splash with its own local mask and the ids as segment ids. gpt-oss has none: its experts are
another comparison (`experts.py`).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch

from recipes.benchmarks import sides

SIDES = ("ours", "jax")


@dataclass(frozen=True)
class Row:
    """A model's step; sequence: tokens of a chip. layers: fewer than the model's, or None."""

    name: str
    model: str
    sequence: int = 8192
    target: str = "v5p:2x2x2"
    layers: int | None = None
    shards: tuple[int, ...] = (8,)
    is_toy: bool = False
    sides: tuple[str, ...] = SIDES


ROWS = {
    row.name: row
    for row in (
        Row("gemma3-4b", "gemma3-4b"),
        Row("gemma3-4b-6", "gemma3-4b", layers=6),
        Row("qwen3-8b-4", "qwen3-8b", layers=4),
        Row("qwen3-8b-4-long", "qwen3-8b", 32_768, layers=4),
        Row("gpt-oss-20b-4", "gpt-oss-20b", layers=4, sides=("ours",)),
        Row("gemma3-4b-long", "gemma3-4b", 32_768),
        Row("qwen3-8b", "qwen3-8b"),
        Row("qwen3-8b-long", "qwen3-8b", 32_768),
        Row("gpt-oss-20b", "gpt-oss-20b", sides=("ours",)),
        Row("gemma3-4b-h100", "gemma3-4b", target="h100:8", sides=("ours",)),
        Row("qwen3-8b-h100", "qwen3-8b", target="h100:8", sides=("ours",)),
        Row("gpt-oss-20b-h100", "gpt-oss-20b", target="h100:8", sides=("ours",)),
    )
}


def model_of(row: Row) -> tuple[torch.nn.Module, type[torch.nn.Module]]:
    """transformers' model of a row on meta, and the class of its layers."""
    import transformers
    from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssDecoderLayer
    from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

    how: dict[str, Any] = {"use_cache": False, "max_position_embeddings": row.sequence}
    config: Any
    if row.model == "gemma3-4b":
        config = transformers.Gemma3TextConfig(
            vocab_size=262_208,
            hidden_size=2560,
            intermediate_size=10_240,
            num_hidden_layers=row.layers or 34,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=256,
            sliding_window=1024,
            attn_implementation="sdpa",
            **how,
        )
        classes: Any = (transformers.Gemma3ForCausalLM, Gemma3DecoderLayer)
    elif row.model == "qwen3-8b":
        config = transformers.Qwen3Config(
            vocab_size=151_936,
            hidden_size=4096,
            intermediate_size=12_288,
            num_hidden_layers=row.layers or 36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            attn_implementation="sdpa",
            **how,
        )
        classes = (transformers.Qwen3ForCausalLM, Qwen3DecoderLayer)
    else:
        layers = {} if row.layers is None else {"num_hidden_layers": row.layers}
        config = transformers.GptOssConfig(
            **how, **layers, num_local_experts=32, attn_implementation="flex_attention"
        )
        classes = (transformers.GptOssForCausalLM, GptOssDecoderLayer)
    model_class, layer_class = classes
    with torch.device("meta"):
        return model_class(config), layer_class


def _documents(position_ids: torch.Tensor) -> torch.Tensor:
    """The ids of transformers' `find_packed_sequence_indices`, which looks first whether there is
    one document: a plan has no values."""
    started = torch.diff(position_ids, prepend=position_ids[:, :1] - 1, dim=-1) != 1
    return started.cumsum(-1)


def ours(row: Row, _: str) -> dict[str, Any]:
    """The figures of our program."""
    import transformers

    import fsdp
    import spmd

    mesh = spmd.Mesh(range(8), row.shards, ("fsdp",), target=row.target)
    model, layer_class = model_of(row)
    model.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
    model.train()
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={layer_class})
    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    module = fsdp.FullyShardedDataParallel(
        model, mesh, auto_wrap_policy=policy, mp_policy=precision
    )
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)

    def step(batch: Any) -> torch.Tensor:
        tokens, positions = (spmd.mark_sharding(x, mesh, ("fsdp", None)) for x in batch)
        loss = module(input_ids=tokens, labels=tokens, position_ids=positions).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        result: torch.Tensor = loss
        return result

    shape = math.prod(row.shards), row.sequence
    batch = [torch.zeros(shape, dtype=torch.int64, device="meta") for _ in range(2)]
    masks = transformers.masking_utils
    with mock.patch.object(masks, "find_packed_sequence_indices", _documents):
        plan, figures = sides.planned(step, batch)
    words = [*figures["words"], *(f"{finding.kind}: {finding.text}" for finding in plan.findings)]
    return {**figures, "words": words}


def by_hand(row: Row, _: str) -> dict[str, Any]:
    """The figures of the JAX program."""
    from recipes.benchmarks import jax_packed

    def lower(mesh: Any) -> Any:
        model = jax_packed.MODELS[row.model].with_layers(row.layers)
        return jax_packed.Step(model, mesh, math.prod(row.shards), row.sequence).lower()

    return sides.by_hand(row, ("fsdp",), lower)


def _title(row: Row) -> str:
    return f"{row.name}: {row.model}, {row.sequence:,} packed tokens a device on {row.target}"


if __name__ == "__main__":
    sides.main(
        "recipes.benchmarks.packed_steps",
        __doc__,
        ROWS,
        {"ours": ours, "jax": by_hand},
        _title,
    )
