"""The causal language models of transformers that have a plan: their list, a tiny one of each, and
its step on one device and sharded by its plan."""

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers as hf
from support import check
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

import fsdp  # noqa: F401  (makes the units of rules)
import spmd

BATCH, SEQUENCE, VOCABULARY = 4, 12, 64
SEED = 0
NEAR = 1e-4  # as in tests/models

# The sizes of a tiny model, by the names that configurations have. All are divisible by 2, most by
# 4.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "d_model": 32, "intermediate_size": 64,
    "ffn_hidden_size": 64, "num_hidden_layers": 2, "num_layers": 2, "n_layers": 2,
    "num_attention_heads": 4, "n_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "global_head_dim": 8, "max_position_embeddings": 64, "max_seq_len": 64, "sliding_window": 8,
    "initializer_range": 0.1,
    # experts
    "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "moe_k": 2, "top_k_experts": 2,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "dense_intermediate_size": 64, "expert_ffn_hidden_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1,
    # latent attention and its index
    "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "qk_head_dim": 16, "index_head_dim": 16, "index_n_heads": 16, "index_topk": 4,
    # linear attention and state spaces
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_num_heads": 8,
    "mamba_head_dim": 8, "mamba_d_state": 8, "ssm_state_size": 8, "mamba_n_groups": 2,
    "n_groups": 2, "mamba_chunk_size": 8, "chunk_size": 8,
    # vectors of each layer's own
    "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}

# What single configurations, and those of single models, need besides: sizes that have no common
# name.
SPECIAL: dict[str, dict[str, Any]] = {
    "CohereCompassTextConfig": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    },
    "DbrxAttentionConfig": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
    "DbrxFFNConfig": {"moe_top_k": 2},
    "FalconH1Config": {"mamba_d_ssm": 64},
    "Gemma3nTextConfig": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "laurel_rank": 8,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    "Gemma4AssistantForCausalLM": {
        "vocab_size_per_layer_input": 0,
        "hidden_size_per_layer_input": 0,
    },
    "Lfm2MoeConfig": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "Qwen4ExpTextConfig": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 4,
        "indexer_compress_ratio": 2,
        "ple_layer_ids": [1],
        "heads_per_ngram": 4,
        "ngram_vocab_size_base": VOCABULARY,
        "make_ngram_vocab_size_divisible_by": 8,
        "split_ngram_parts": 2,
    },
    "ZayaConfig": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}


def plan_classes() -> dict[str, type[Any]]:
    """The classes of `AutoModelForCausalLM` that have a plan of their own or by their
    configuration, by name.

    The plan that every configuration inherits, of `embed_tokens`, `layers` and `norm`, alone is
    none.
    """
    found = {}
    for entry in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        for name in (entry,) if isinstance(entry, str) else entry:
            cls = getattr(hf, name)
            own = (cls._tp_plan, cls._ep_plan, cls._fsdp_plan)
            config = (
                getattr(cls.config_class, f"base_model_{kind}_plan", None) for kind in ("tp", "ep")
            )
            if any(own) or any(config):
                found[name] = cls
    return found


def tiny_config(cls: type[Any], config_class: type[Any] | None = None, sizes: Any = SIZES) -> Any:
    """The configuration of a model class with the sizes of a tiny one, without dropout."""
    config_class = cls.config_class if config_class is None else config_class
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    given = {name: value for name, value in sizes.items() if name in fields}
    given |= {name: 0.0 for name in fields if _drops(name)}
    given |= _layer_kinds(config_class, fields)
    if "kv_lora_rank" in fields:  # latent attention has no groups of heads
        given["num_key_value_heads"] = SIZES["num_attention_heads"]
    for name, part in _parts(config_class).items():
        given[name] = tiny_config(
            cls, part, VISION if name in ("vision_config", "audio_config") else SIZES
        )
    given |= {
        name: value for name, value in SPECIAL.get(cls.__name__, {}).items() if name in fields
    }
    return config_class(**given | SPECIAL.get(config_class.__name__, {}))


def _parts(config_class: type[Any]) -> dict[str, type[Any]]:
    """The classes of the configurations within one, by name."""
    found = {}
    for name, told in (
        getattr(config_class, "sub_configs_defaults", None) or config_class.sub_configs or {}
    ).items():
        part = getattr(told, "config_class", told)
        found[name] = hf.CONFIG_MAPPING[told.model_type] if part is hf.AutoConfig else part
    return found


def _layer_kinds(config_class: type[Any], fields: Any) -> dict[str, Any]:
    """A layer of each kind that the configuration has by default, at least two."""
    found: dict[str, Any] = {}
    if "layer_types" in fields:
        kinds = [*dict.fromkeys(config_class().layer_types or ())]
        if kinds:
            found["layer_types"] = kinds if len(kinds) > 1 else kinds * 2
            found["num_hidden_layers"] = len(found["layer_types"])
    return found


def _drops(name: str) -> bool:
    return (
        "dropout" in name or name.endswith("pdrop") or "jitter" in name
    ) and "classifier" not in name


def tiny_model(cls: type[Any]) -> nn.Module:
    """A tiny model with random weights, the same at each call. What a model begins with as a
    constant is random, too: a router of zeros scores all experts alike, and which of equals are the
    top is left open by torch."""
    torch.manual_seed(SEED)
    model = cls(tiny_config(cls)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def step(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """The loss, and the gradients of all parameters that it reads, by name."""
    loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    return {"loss": loss} | {
        name: one.grad for name, one in model.named_parameters() if one.grad is not None
    }


def compare(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Asserts that a loss and gradients agree: each element within the table of `support`, and each
    gradient, however small, within `NEAR` of its norm (or of a thousandth of the largest: a smaller
    one is the rounding of others)."""
    assert actual.keys() == expected.keys(), (
        f"gradients of other parameters: {actual.keys() ^ expected.keys()}"
    )
    largest = max(one.norm().item() for name, one in expected.items() if name != "loss")
    failures = []
    for name, wanted in expected.items():
        try:
            check(actual[name], wanted)
            norm = max(wanted.norm().item(), 1e-3 * largest)
            difference = (actual[name].detach().cpu() - wanted.detach()).norm().item() / norm
            assert difference < NEAR, (
                f"differs by {difference:.1e} of its norm, expected below {NEAR}"
            )
        except AssertionError as error:
            failures.append(f"{name}: {error}")
    assert not failures, f"{len(failures)} of {len(expected)} tensors differ\n" + "\n".join(
        failures
    )


def run(cls: type[Any], mesh: spmd.Mesh) -> list[str]:
    """Asserts that a tiny model's step, sharded by its plan, agrees with torch on the CPU; returns
    what `ShardingRules.of` warned of."""
    model = tiny_model(cls)
    torch.manual_seed(SEED)
    tokens = torch.randint(3, VOCABULARY, (BATCH, SEQUENCE))
    expected = step(copy.deepcopy(model), tokens)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rules = spmd.ShardingRules.of(model)
    rules.apply(model, mesh)
    model.to("xla")
    assert_sharded(model, rules)
    compare(step(model, tokens.to("xla")), expected)
    return [str(one.message) for one in caught if "ShardingRules" in str(one.message)]


def assert_sharded(model: nn.Module, rules: spmd.ShardingRules) -> None:
    """Asserts that parameters with a rule are sharded over tensor, and most over fsdp."""
    axes = {name: set(_axes(parameter)) for name, parameter in model.named_parameters()}
    for name, found in axes.items():
        assert rules.match(name) is None or "tensor" in found, f"{name} is sharded over {found}"
    assert sum("fsdp" in found for found in axes.values()) > len(axes) / 2, axes


def _axes(parameter: Tensor) -> Iterator[Any]:
    sharding = spmd.get_sharding(parameter)
    assert sharding is not None
    for entry in sharding.partition_spec(parameter.dim()):
        yield from entry if isinstance(entry, tuple) else (entry,)
