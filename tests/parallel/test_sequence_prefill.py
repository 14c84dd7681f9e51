"""A prompt over a sharded sequence fills a static cache, from which tokens are then generated, as
on the CPU."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import spmd
from spmd import P
from spmd.core.programs import cache

pytestmark = pytest.mark.partitioned("prefill over a sharded sequence")

CONFIG = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=2,
    vocab_size=48,
    attn_implementation="sdpa",
)
CAPACITY, ADDED = 24, 4
PROMPT = torch.randint(48, (2, 16), generator=torch.Generator().manual_seed(1))


class Generation:
    """Logits of a prompt and of each token that a greedy search adds; keys and values after
    both."""

    def __init__(self, mesh: spmd.Mesh | None, length: int, is_padded: bool) -> None:
        torch.manual_seed(0)
        self.mesh, self.length = mesh, length
        self.device = "cpu" if mesh is None else "xla"
        self.model: Any = transformers.LlamaForCausalLM(CONFIG).double().eval().to(self.device)
        self.cache: Any = transformers.StaticCache(config=CONFIG, max_cache_len=CAPACITY)
        self.seen = torch.ones(2, length, dtype=torch.long, device=self.device)
        self.is_padded = is_padded
        if is_padded:  # the first sequence is shorter
            self.seen[0, :3] = 0

    def logits(self, ids: Tensor, start: int) -> Tensor:
        positions = torch.arange(start, start + ids.shape[1], device=self.device)
        mask = {"attention_mask": self.seen} if self.is_padded else {}
        return self.model(
            input_ids=ids, past_key_values=self.cache, cache_position=positions, **mask
        ).logits

    def cached(self) -> list[Tensor]:
        return [
            part.cpu().clone() for layer in self.cache.layers for part in (layer.keys, layer.values)
        ]

    @torch.no_grad()
    def run(self) -> list[Tensor]:
        ids = PROMPT[:, : self.length].to(self.device)
        if self.mesh is not None:
            spmd.mark_sharding(ids, self.mesh, P("data", "context"))
        logits = self.logits(ids, 0)
        found = [logits.cpu(), *self.cached()]
        for position in range(self.length, self.length + ADDED):
            token = logits[:, -1:].argmax(-1)
            self.seen = torch.cat([self.seen, torch.ones_like(token)], 1)
            logits = self.logits(token, position)
            found += [token.cpu(), logits.cpu()]
        return found + self.cached()


@pytest.mark.parametrize(
    ("exchange", "length", "is_padded", "finding"),
    [
        ("auto", 16, False, "attention over context: gathered"),
        ("ring", 16, False, "attention over context: ring"),
        ("ring", 16, True, "16 rows of queries meet 24 of keys"),
        ("ring", 14, False, "they do not divide 14 rows"),
        ("ring", 3, False, "they do not divide 3 rows"),
    ],
)
def test_prefill(
    exchange: str, length: int, is_padded: bool, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within float32, in which Llama computes its norms."""
    monkeypatch.setattr(spmd.config, "parallel", exchange)
    monkeypatch.setattr(spmd.config, "pad_lengths", False)
    cache.clear_cache()
    spmd.metrics.clear()
    mesh = spmd.Mesh(range(8), (2, 4), ("data", "context"))
    ours, theirs = (
        Generation(mesh, length, is_padded).run(),
        Generation(None, length, is_padded).run(),
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    assert any(finding in words for record in spmd.metrics.compiles() for _, words in record.passes)


def test_generate() -> None:
    """`generate` with a static cache, of a sharded prompt."""
    mesh, found = spmd.Mesh(range(8), (2, 4), ("data", "context")), []
    for device in ("xla", "cpu"):
        torch.manual_seed(0)
        model: Any = transformers.LlamaForCausalLM(CONFIG).double().eval().to(device)
        ids = PROMPT.to(device)
        if device == "xla":
            spmd.mark_sharding(ids, mesh, P("data", "context"))
        how = {
            "cache_implementation": "static",
            "max_new_tokens": ADDED,
            "do_sample": False,
            "pad_token_id": 0,
        }
        found.append(model.generate(ids, attention_mask=torch.ones_like(ids), **how).tolist())
    assert found[0] == found[1]
