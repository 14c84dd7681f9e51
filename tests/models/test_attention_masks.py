"""Masks as transformers makes them, of unmodified models: logits and gradients of torch on the CPU,
the share of the scores that is computed in each layer, and whether a TPU takes its kernel."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch

import spmd
from spmd import P
from spmd.ops.kernels import flash, splash
from spmd.ops.kernels.document_ids import Documents

transformers = pytest.importorskip("transformers")
pytestmark = [
    # transformers' own call
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask"),
    # torch's own lines, at the import of inductor and in traces
    pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"
    ),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]

LENGTH, WINDOW, BATCH = 1024, 256, 2
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
    "head_dim": 16,
    "max_position_embeddings": LENGTH,
}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2}
LATENT = {
    **{"q_lora_rank": 16, "kv_lora_rank": 16, "v_head_dim": 16, "num_key_value_heads": 2},
    **{"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "head_dim": 8, "n_routed_experts": 4},
    **{"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16},
    **{"first_k_dense_replace": 1, "n_shared_experts": 1},
}
# A window of 256 touches 21 of 64 blocks of 128, chunks of 256 have 12 of them, and causality 10 of
# 16 blocks of 256.
CAUSAL, LOCAL, CHUNKED = 10 / 16, 21 / 64, 12 / 64


@dataclass(frozen=True)
class Case:
    """A model with its settings. shares: by layer the share of the scores in the blocks that are
    computed. form: "sdpa", or flex_attention where a model's own code refuses sdpa."""

    name: str
    settings: dict[str, Any]
    shares: list[float]
    form: str = "sdpa"
    inputs: Callable[[], dict[str, torch.Tensor]] = field(default=lambda: {"input_ids": tokens()})


def tokens() -> torch.Tensor:
    return torch.arange(BATCH * LENGTH).view(BATCH, -1) * 7919 // 13 % 61


CASES = [
    Case("mistral", {"sliding_window": WINDOW}, [LOCAL, LOCAL]),
    Case("gemma2", {**SLIDING, "query_pre_attn_scalar": 16}, [LOCAL, CAUSAL], "flex_attention"),
    Case("gemma3_text", SLIDING, [LOCAL, CAUSAL]),
    Case("qwen3", {}, [CAUSAL, CAUSAL]),
    Case("olmo3", SLIDING, [LOCAL, CAUSAL]),
    Case("gpt_oss", {**SLIDING, **EXPERTS}, [LOCAL, CAUSAL], "flex_attention"),
    Case(
        "llama4_text",
        {**EXPERTS, "attention_chunk_size": WINDOW, "no_rope_layers": [1, 0]},
        [CHUNKED, CAUSAL],
    ),
    Case("deepseek_v3", LATENT, [CAUSAL, CAUSAL]),
]


@dataclass
class Reached:
    """Of each traced attention, forward and then backward: the share of the scores in the blocks of
    its table; of a mask or bias that is data its dtype, and True if its blocks are looked at; why a
    TPU would take blocks, empty for its kernel."""

    shares: list[float]
    data: list[tuple[str, bool]]
    on_tpu: list[str]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Reached:
    found, of, refusal = Reached([], [], []), flash._Scores.with_block, splash.refusal

    def noted(query: Any, key: Any, value: Any, masking: Any, bias: Any, *how: Any) -> str:
        # A program for a TPU takes a mask of data apart.
        documents = None if bias is None or bias.dtype != bool else Documents.of(bias)
        of_tpu = replace(masking, documents=documents)
        found.on_tpu.append(refusal(query, key, value, of_tpu, bias, *how))
        return refusal(query, key, value, masking, bias, *how)

    def with_block(*arguments: Any) -> Any:
        scores = of(*arguments)
        if scores.bias is not None:
            found.data.append((str(scores.bias.dtype), scores.is_looked_at))
        (table,) = scores.masking.tables(scores.lengths, scores.block)
        found.shares.append(np.count_nonzero(table) / table.size)
        return scores

    monkeypatch.setattr(flash._Scores, "with_block", staticmethod(with_block))
    monkeypatch.setattr(splash, "refusal", noted)
    return found


def compare(model: torch.nn.Module, inputs: dict[str, torch.Tensor], form: str = "sdpa") -> None:
    """Compares logits and gradients of a model on the device, its batch sharded, with the CPU's, by
    transformers' own eager attention where the model refuses sdpa."""
    mesh = spmd.Mesh(range(8), (BATCH, 4), ("data", "model"))
    results = []
    on_xla = copy.deepcopy(model)
    on_xla.set_attn_implementation(form)  # type: ignore[operator]  # transformers'
    for device, module in (("cpu", model), ("xla", on_xla)):
        arrays = {name: x.to(device) for name, x in inputs.items()}
        for x in arrays.values() if device == "xla" else ():
            spmd.mark_sharding(x, mesh, P("data" if len(x) == BATCH else None, None))
        logits = module.to(device)(**arrays, use_cache=False).logits
        (10 * logits.square().mean()).backward()
        grads = {name: x.grad.cpu() for name, x in module.named_parameters() if x.grad is not None}
        results.append((logits.detach().cpu(), grads))
    (expected, of_cpu), (logits, of_xla) = results
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    assert of_cpu.keys() == of_xla.keys()
    for name, grad in of_cpu.items():
        torch.testing.assert_close(of_xla[name], grad, rtol=1e-4, atol=1e-6, msg=name)


def made(name: str, form: str = "sdpa", **settings: Any) -> torch.nn.Module:
    """A small causal model, with attention of the CPU."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **{**SMALL, **settings})
    of_cpu = form if form == "sdpa" else "eager"
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=of_cpu
    )
    return model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_of_positions(case: Case, reached: Reached) -> None:
    """No mask is in memory, in neither direction; a TPU takes its kernel."""
    compare(made(case.name, case.form, **case.settings), case.inputs(), case.form)
    assert reached == Reached([*case.shares, *case.shares[::-1]], [], [""] * 4)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_models_that_refuse_sdpa(name: str) -> None:
    """A soft cap and sinks: transformers wants eager, or flex_attention, which has the kernels."""
    with pytest.raises(ValueError, match="does not support an attention implementation through"):
        model = made(name, **EXPERTS)
        model.set_attn_implementation("sdpa")  # type: ignore[operator]  # transformers'


def packed() -> list[dict[str, Any]]:
    """Documents of unequal lengths that fill a sequence."""
    lengths = 200, 312, 512
    return [{"input_ids": [i * 17 % 61 for i in range(length)]} for length in lengths]


def by_transformers() -> dict[str, torch.Tensor]:
    batch = transformers.DataCollatorWithFlattening()(packed(), return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "position_ids")}


def by_trl() -> dict[str, torch.Tensor]:
    trainer = pytest.importorskip("trl.trainer.sft_trainer")
    documents = [example["input_ids"] for example in packed()]
    collator = trainer.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    batch = collator(
        [{"input_ids": [*chain.from_iterable(documents)], "seq_lengths": list(map(len, documents))}]
    )
    return {name: batch[name] for name in ("input_ids", "position_ids")}


def test_trl_packs_as_transformers() -> None:
    expected, batch = by_transformers(), by_trl()
    assert all(torch.equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("name", "form", "settings", "shares"),
    [
        ("qwen3", "sdpa", {}, [CAUSAL, CAUSAL]),
        ("gemma3_text", "sdpa", SLIDING, [LOCAL, CAUSAL]),
        ("mistral", "sdpa", {"sliding_window": WINDOW}, [LOCAL, LOCAL]),
        ("deepseek_v3", "sdpa", LATENT, [CAUSAL, CAUSAL]),
        ("qwen3", "flex_attention", {}, [1.0, 1.0]),
    ],
)
def test_documents_by_positions(
    name: str, form: str, settings: dict[str, Any], shares: list[float], reached: Reached
) -> None:
    """Positions start again with each document; transformers makes ids of them, and compares
    positions, which are rows inside of a document. The ids are data, so each block is looked at. A
    compiled `flex_attention` gets both as its inputs. A batch of one row is on all devices, where
    no kernel is asked for."""
    compare(made(name, form, **settings), by_transformers(), form)
    assert reached == Reached([*shares, *shares[::-1]], [("bool", True)] * 4, [])


def test_padding(reached: Reached) -> None:
    """A mask of columns that is data, in a model that is not causal: all blocks are looked at, and
    those of padding alone are skipped."""
    torch.manual_seed(0)
    config = transformers.EsmConfig(
        **{name: SMALL[name] for name in ("hidden_size", "intermediate_size", "vocab_size")},
        **{"num_hidden_layers": 2, "num_attention_heads": 2, "pad_token_id": 1},
        **{"position_embedding_type": "rotary", "mask_token_id": 62},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    model = transformers.EsmForMaskedLM._from_config(config, attn_implementation="sdpa")
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, 700:] = 0
    compare(model, {"input_ids": tokens() % 50 + 2, "attention_mask": mask})
    assert reached == Reached([1.0] * 4, [("bool", False)] * 4, [""] * 4)


def test_a_bias_with_a_gradient(reached: Reached) -> None:
    """T5: relative positions in the first layers, which the others share."""
    torch.manual_seed(0)
    config = transformers.T5Config(
        **{"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_decoder_layers": 1},
        **{"num_heads": 2, "dropout_rate": 0.0, "decoder_start_token_id": 0, "vocab_size": 64},
    )
    model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    compare(model, {"input_ids": tokens(), "decoder_input_ids": tokens()})
    # The encoder's, the decoder's own, and the decoder's of the encoder, whose bias is zero.
    shares, data = [1.0, CAUSAL, 1.0], [("float32", False)] * 4
    of_layers = ["a bias", "a bias", ""]
    assert reached == Reached([*shares, *shares], data, [*of_layers, *of_layers[::-1]])
