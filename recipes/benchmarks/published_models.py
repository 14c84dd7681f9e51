"""Models of published steps on meta, sharded and recomputed as their rows say, with their losses
and optimizers.

The values that a row keeps or offloads have MaxText's names, by hooks on the modules of a layer.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.mixtral.modeling_mixtral import MixtralDecoderLayer
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeDecoderLayer

import fsdp
import spmd
from recipes.benchmarks.experts_of_capacity import use_experts_of_capacity
from recipes.benchmarks.published_rows import (
    CONTEXT,
    INPUT,
    KEY,
    MLP_OUT,
    OUT,
    QUERY,
    VALUE,
    Recompute,
    Row,
)
from recipes.llama import Llama, LlamaConfig, cross_entropy, fully_sharded

Loss = Callable[[nn.Module, Tensor], Tensor]


@dataclass(frozen=True)
class Model:
    """A sharded model, its layers' number, and its loss of tokens."""

    module: nn.Module
    loss_of: Loss


def model_of(row: Row, mesh: spmd.Mesh, layers: int | None) -> Model:
    """The model of a row over a mesh; layers: their number instead of the model's own."""
    if row.model in _LLAMAS:
        return _llama(row, mesh, layers)
    if row.context > 1:
        return _long(row, mesh, layers)
    module, layer_class = _HUGGING_FACE[row.model](row, mesh, layers)
    module.to(getattr(torch, row.weights))
    stack = module.transformer.h if row.model == "gpt2-16b" else module.model.layers
    _recompute(stack, row.recompute)
    module.train()
    if row.expert > 1:
        return _over_experts(row, module, mesh)
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={layer_class})
    precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    wrapped = fsdp.FullyShardedDataParallel(
        module, mesh, auto_wrap_policy=policy, mp_policy=precision
    )
    return Model(wrapped, lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)


def _over_experts(row: Row, module: nn.Module, mesh: spmd.Mesh) -> Model:
    """A model whose experts an axis shards; FSDP shards all weights over the other axis, if there
    is one."""
    rules = {"**.experts.*": spmd.P("expert", None, None)}
    if row.expert < row.devices:
        precision = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        units = spmd.ShardingRules(rules, units=["model.layers.*"], extra_data_axis="expert")
        units.apply(module, mesh, mp_policy=precision)
    else:
        spmd.ShardingRules(rules | {"**": spmd.P()}).apply(module, mesh)
    return Model(module, lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)


# layers, width, heads, heads of keys, hidden, vocabulary
_LLAMAS = {
    "llama3-1b": (16, 2048, 32, 8, 8192, 128_256),
    "llama3-8b": (32, 4096, 32, 8, 14_336, 128_256),
    "llama2-70b": (80, 8192, 64, 8, 28_672, 32_000),
    "llama3-70b": (80, 8192, 64, 8, 28_672, 128_256),
    "llama3-405b": (126, 16_384, 128, 8, 53_248, 128_256),
}


def _llama(row: Row, mesh: spmd.Mesh, layers: int | None) -> Model:
    num_layers, *shapes = _LLAMAS[row.model]
    with torch.device("meta"):
        llama = Llama(LlamaConfig(layers or num_layers, *shapes, row.sequence)).to(
            getattr(torch, row.weights)
        )
    _recompute(llama.blocks, row.recompute)
    return Model(
        fully_sharded(llama, mesh), lambda model, tokens: cross_entropy(model(tokens), tokens)
    )


def _long(row: Row, mesh: spmd.Mesh, layers: int | None) -> Model:
    """A model of long sequences, whose weights all devices shard."""
    shapes = {
        "vocab_size": 128_256,
        "hidden_size": 8192,
        "intermediate_size": 28_672,
        "num_hidden_layers": layers or 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "use_cache": False,
    }
    with torch.device("meta"):
        if row.model == "llama3.1-70b":
            module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shapes))
        else:
            shapes |= {
                "vocab_size": 151_936,
                "hidden_size": 4096,
                "intermediate_size": 12_288,
                "num_hidden_layers": layers or 36,
                "num_attention_heads": 32,
                "head_dim": 128,
            }
            module = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**shapes))
    module.to(getattr(torch, row.weights))
    _recompute(module.model.layers, row.recompute)
    module.train()
    both = ("fsdp", "context")
    rules = spmd.ShardingRules(
        {"**.*norm.weight": spmd.P(both), "**.weight": spmd.P(both, None)}, units=["model.layers.*"]
    )
    rules.apply(module, mesh, mp_policy=fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    return Model(module, lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)


def _mixtral(row: Row, mesh: spmd.Mesh, layers: int | None) -> tuple[nn.Module, type[nn.Module]]:
    """Mixtral 8x7B and 8x22B."""
    config = transformers.MixtralConfig(num_hidden_layers=layers or 32, use_cache=False)
    if row.model == "mixtral-8x22b":
        config = transformers.MixtralConfig(
            hidden_size=6144,
            intermediate_size=16_384,
            num_hidden_layers=layers or 56,
            num_attention_heads=48,
            num_key_value_heads=8,
            vocab_size=32_768,
            use_cache=False,
        )
    _use_experts(config, mesh, row)
    with torch.device("meta"):
        return transformers.MixtralForCausalLM(config), MixtralDecoderLayer


def _deepseek(row: Row, mesh: spmd.Mesh, layers: int | None) -> tuple[nn.Module, type[nn.Module]]:
    """DeepSeek-V3 without its module of further tokens, which MaxText leaves out, too."""
    num_dense = {} if layers is None else {"num_hidden_layers": layers, "first_k_dense_replace": 1}
    config = transformers.DeepseekV3Config(
        max_position_embeddings=row.sequence,
        num_nextn_predict_layers=0,
        use_cache=False,
        **num_dense,
    )
    _use_experts(config, mesh, row)
    with torch.device("meta"):
        return transformers.DeepseekV3ForCausalLM(config), DeepseekV3DecoderLayer


def _qwen(row: Row, mesh: spmd.Mesh, layers: int | None) -> tuple[nn.Module, type[nn.Module]]:
    """Qwen3-235B-A22B and 30B-A3B."""
    # layers, width, heads, an expert's width
    num_layers, width, heads, inner = (
        (94, 4096, 64, 1536) if row.model == "qwen3-235b" else (48, 2048, 32, 768)
    )
    config = transformers.Qwen3MoeConfig(
        vocab_size=151_936,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers or num_layers,
        num_attention_heads=heads,
        num_key_value_heads=4,
        head_dim=128,
        moe_intermediate_size=inner,
        num_experts_per_tok=8,
        num_experts=128,
        norm_topk_prob=True,
        use_cache=False,
    )
    _use_experts(config, mesh, row)
    with torch.device("meta"):
        return transformers.Qwen3MoeForCausalLM(config), Qwen3MoeDecoderLayer


def _use_experts(config: Any, mesh: spmd.Mesh, row: Row) -> None:
    if row.capacity:
        use_experts_of_capacity(
            config, mesh, "fsdp", row.capacity, expert="expert" if row.expert > 1 else None
        )


def _gpt2(row: Row, mesh: spmd.Mesh, layers: int | None) -> tuple[nn.Module, type[nn.Module]]:
    """GPT-2 with 16 billion parameters."""
    shapes = {"n_embd": 6144, "n_head": 48, "n_layer": layers or 32, "n_positions": row.sequence}
    config = transformers.GPT2Config(
        **shapes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    with torch.device("meta"):
        return transformers.GPT2LMHeadModel(config), GPT2Block


_HUGGING_FACE = {
    "mixtral-8x7b": _mixtral,
    "mixtral-8x22b": _mixtral,
    "deepseek-v3": _deepseek,
    "qwen3-235b": _qwen,
    "qwen3-30b": _qwen,
    "gpt2-16b": _gpt2,
}


# -- What backward computes again.

_GATE = "mlpwi_0"
_MODULES = {  # of a layer of ours, and of Hugging Face's
    QUERY: ("attention.query", "self_attn.q_proj"),
    KEY: ("attention.key", "self_attn.k_proj"),
    VALUE: ("attention.value", "self_attn.v_proj"),
    OUT: ("attention.out", "self_attn.o_proj"),
    _GATE: ("gate",),
    MLP_OUT: ("down",),
}
_ATTENTION = "aten._scaled_dot_product_fused_attention_overrideable"


def _recompute(layers: nn.ModuleList, recompute: Recompute) -> None:
    """Checkpoints the layers."""
    if recompute.layers == "none":
        return
    policy = policy_of(recompute)
    for index in range(0, len(layers), 2 if recompute.layers == "alternate" else 1):
        name_values(layers[index], {name for rule in policy.rules for name in rule.names})
        layers[index] = spmd.remat(layers[index], policy=policy)


def policy_of(recompute: Recompute) -> spmd.checkpoint_policies.Policy:
    """The policy of a layer. MaxText's "context" names what the backward pass of attention reads: a
    rule on the op. torchtitan keeps, "by op", attention and the first, third, ... product of a
    layer."""
    policies = spmd.checkpoint_policies
    kept = (QUERY, VALUE, CONTEXT, _GATE, MLP_OUT) if recompute.ops else recompute.kept
    named = policies.save_and_offload_only_these_names(
        names_which_can_be_saved=_without_context(kept),
        names_which_can_be_offloaded=_without_context(recompute.offloaded),
    )
    of_attention = policies.save_and_offload_only_these_ops(
        ops_which_can_be_saved=[_ATTENTION] * (CONTEXT in kept),
        ops_which_can_be_offloaded=[_ATTENTION] * (CONTEXT in recompute.offloaded),
    )
    return policies.save_from_both_policies(named, of_attention)


def _without_context(names: Iterable[str]) -> list[str]:
    return [name for name in names if name != CONTEXT]


def name_values(layer: nn.Module, names: Iterable[str]) -> None:
    """Names the input of a layer and results of its modules, by hooks."""
    for name in names:
        if name == INPUT:
            layer.register_forward_pre_hook(_named_input)
            continue
        paths = [path for path in _MODULES[name] if _has_module(layer, path)]
        if not paths:
            raise ValueError(f"name_values: {type(layer).__name__} has no module for {name!r}")
        layer.get_submodule(paths[0]).register_forward_hook(partial(_named_output, name))


def _has_module(layer: nn.Module, path: str) -> bool:
    return path in {known for known, _ in layer.named_modules()}


def _named_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return spmd.checkpoint_name(args[0], INPUT), *args[1:]


def _named_output(name: str, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    return spmd.checkpoint_name(output, name)


# -- The optimizer.


class AdamW(torch.optim.AdamW):
    """torch's AdamW, whose first moments have another dtype between its steps, as optax's
    `mu_dtype`."""

    moment: torch.dtype | None = None

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self._cast(torch.float32)
        super().step(closure)
        self._cast(self.moment)

    def _cast(self, dtype: torch.dtype | None) -> None:
        for state in self.state.values() if self.moment else ():
            state["exp_avg"] = state["exp_avg"].to(dtype)


def optimizer_of(row: Row, module: nn.Module) -> AdamW:
    """MaxText's default."""
    optimizer = AdamW(module.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer.moment = getattr(torch, row.moment) if row.moment else None
    return optimizer
