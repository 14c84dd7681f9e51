"""A model trains over a sharded sequence as on one device: accumulated, clipped, evaluated, resumed
on other meshes."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import fsdp
import spmd
from spmd import P

pytestmark = pytest.mark.partitioned("training over a sharded sequence")

LENGTH = 32
CONFIG = transformers.LlamaConfig(
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_hidden_layers=2,
    vocab_size=48,
    attn_implementation="sdpa",
)
TOKENS = torch.randint(48, (4, 2, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True, params=["ring", "auto"])
def exchange(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "parallel", request.param)


def plain(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(CONFIG).double()


def sharded(model: Any, context: int) -> tuple[Any, spmd.Mesh]:
    mesh = spmd.Mesh(
        range(8 if context > 1 else 1),
        (8 // context if context > 1 else 1, context),
        ("fsdp", "context"),
    )
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    return fsdp.FullyShardedDataParallel(model.to("xla"), mesh, auto_wrap_policy=policy), mesh


class Training:
    """Steps of two micro-batches each, clipped; rows over a mesh, or on the CPU."""

    def __init__(self, model: Any, mesh: spmd.Mesh | None = None) -> None:
        self.model, self.mesh = model, mesh
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def ids(self, tokens: Tensor) -> Tensor:
        return (
            tokens
            if self.mesh is None
            else spmd.mark_sharding(tokens.to("xla"), self.mesh, P("fsdp", "context"))
        )

    def loss(self, tokens: Tensor) -> Tensor:
        ids = self.ids(tokens)
        return self.model(input_ids=ids, labels=ids, use_cache=False).loss

    def step(self, index: int) -> float:
        total = 0.0
        for tokens in (TOKENS[index % 4], TOKENS[(index + 1) % 4]):
            loss = self.loss(tokens.repeat(4, 1)) / 2
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total + float(norm)

    def losses(self, *indices: int) -> list[float]:
        return [self.step(index) for index in indices]


def close(ours: Any, theirs: Any) -> None:
    """Within float32, in which Llama computes its norms and its loss, whatever its dtype."""
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-6, atol=1e-6)


def test_steps_evaluation_and_generation() -> None:
    """Losses and norms of four steps; then a loss without gradients, and the tokens that a greedy
    search adds."""
    theirs, ours = Training(plain()), Training(*sharded(plain(), 4))
    close(ours.losses(0, 1, 2, 3), theirs.losses(0, 1, 2, 3))
    found = []
    for training in (ours, theirs):
        training.model.eval()
        with torch.no_grad():
            loss = training.loss(TOKENS[0].repeat(4, 1)).item()
            model = getattr(training.model, "module", training.model)
            prompt = TOKENS[1][:, :8].to("cpu" if training.mesh is None else "xla")
            found.append((loss, model.generate(prompt, max_new_tokens=6, do_sample=False).tolist()))
        training.model.train()
    close(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    close(ours.losses(1), theirs.losses(1))


@pytest.mark.long
def test_resumed_on_other_meshes(tmp_path: Path) -> None:
    """Context 4, then 8, then one device: the losses of a training that is not stopped."""
    expected = Training(plain()).losses(0, 1, 2, 3, 0, 1)
    found: list[float] = []
    for part, context in enumerate((4, 8, 1)):
        training = Training(*sharded(plain(seed=part), context))
        state = {"model": training.model, "optimizer": training.optimizer}
        manager = spmd.CheckpointManager(tmp_path)
        if part:
            assert manager.restore(state) == part - 1
        found += training.losses(2 * part % 4, (2 * part + 1) % 4)
        manager.save(part, state, force=True)
    close(found, expected)


@pytest.mark.long
def test_verify_is_silent() -> None:
    """float64 and float32, both partitioners, with dropout in the ring."""
    model = plain().float()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.2

    def step(tokens: Tensor) -> Tensor:
        spmd.mark_sharding(tokens, None, P("fsdp", "context"))
        loss: Tensor = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        return loss

    mesh = spmd.Mesh(range(8), (2, 4), ("fsdp", "context"))
    found = spmd.verify(
        step,
        TOKENS[0].clone(),
        meshes=[mesh],
        rules=[spmd.ShardingRules({"**.weight": P()})],
        progress=False,
    )
    assert found, str(found)
