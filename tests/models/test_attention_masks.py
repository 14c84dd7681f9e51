"""Masks as transformers makes them, of unmodified models with sdpa: the logits of torch on the CPU,
and the blocks of scores that each layer computes."""

from typing import Any

import numpy as np
import pytest
import torch

from spmd.ops.kernels import flash

transformers = pytest.importorskip("transformers")

LENGTH, WINDOW = 1024, 256
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
LAYERS = ["sliding_attention", "full_attention"]
# By model its settings, and by layer the share of the scores in the blocks that are computed. A
# window of 256 touches 21 of 64 blocks of 128, causality 10 of 16 blocks of 256.
CAUSAL, LOCAL = 10 / 16, 21 / 64
MODELS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "mistral": ({"sliding_window": WINDOW}, [LOCAL, LOCAL]),
    "gemma3_text": ({"sliding_window": WINDOW, "layer_types": LAYERS}, [LOCAL, CAUSAL]),
    "qwen3": ({}, [CAUSAL, CAUSAL]),
    "olmo3": ({"sliding_window": WINDOW, "layer_types": LAYERS}, [LOCAL, CAUSAL]),
}


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The share of the scores that each traced attention computes, without a mask in memory."""
    found: list[float] = []
    of = flash._Scores.with_block

    def with_block(*arguments: Any) -> Any:
        scores = of(*arguments)
        assert scores.bias is None
        (table,) = scores.masking.tables(scores.lengths, scores.block)
        found.append(np.count_nonzero(table) / table.size)
        return scores

    monkeypatch.setattr(flash._Scores, "with_block", staticmethod(with_block))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_of_positions(name: str, shares: list[float]) -> None:
    settings, expected = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **{**SMALL, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    tokens = torch.arange(LENGTH)[None] % 61
    with torch.no_grad():
        on_cpu = model(tokens).logits
        on_xla = model.to("xla")(tokens.to("xla")).logits.cpu()
    torch.testing.assert_close(on_xla, on_cpu, rtol=1e-5, atol=1e-5)
    assert shares == expected
