"""The same training run on one CPU in plain torch and on eight devices, however parameters and
batch are sharded."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig, cross_entropy

STEPS = 50
BATCH, SEQUENCE, VOCABULARY = 8, 16, 64

GPT_CONFIG = GPTConfig(layers=2, width=32, heads=4, sequence=SEQUENCE, vocabulary=VOCABULARY)


def gpt(**changes: Any) -> GPT:
    return GPT(replace(GPT_CONFIG, **changes))


def llama(attention: str) -> LlamaForCausalLM:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=SEQUENCE,
        use_cache=False,
        attn_implementation=attention,
    )
    return LlamaForCausalLM(config)


def gpt_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(tokens), targets)


def llama_loss(model: nn.Module, tokens: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(model(input_ids=tokens).logits, targets)


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        tokens = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:]


def train(
    model: nn.Module,
    loss_of: Callable[..., Tensor],
    *,
    put: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    sync: Callable[[], None] = lambda: None,
    steps: int = STEPS,
) -> list[float]:
    """The losses of AdamW steps with clipping and a cosine schedule, read after each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    cosine = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.55 + 0.45 * math.cos(math.pi * step / steps)
    )
    losses = []
    for tokens, targets in batches(steps):
        loss = loss_of(model, put(tokens), put(targets))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        cosine.step()
        sync()
        losses.append(loss.item())
    return losses


def under_fsdp(
    model: nn.Module, loss_of: Callable[..., Tensor], *, mesh: spmd.Mesh, layer: type, **how: Any
) -> list[float]:
    axes = mesh.axis_names
    wrapped = fsdp.FullyShardedDataParallel(
        model,
        mesh=mesh,
        auto_wrap_policy=partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={layer}),
        extra_data_axis="data" if "data" in axes else None,
    )

    def put(tensor: Tensor) -> Tensor:
        return spmd.mark_sharding(tensor.to("xla"), mesh, (axes, None))

    return train(wrapped, loss_of, put=put, sync=spmd.sync, **how)


def under_data_parallel(
    model: nn.Module, loss_of: Callable[..., Tensor], *, mesh: spmd.Mesh
) -> list[float]:
    """Replicated parameters, the batch sharded: plain annotations, no wrapper."""
    model.to("xla")
    for tensor in (*model.parameters(), *model.buffers()):
        spmd.mark_sharding(tensor, mesh, (None,) * tensor.dim())

    def put(tensor: Tensor) -> Tensor:
        return spmd.mark_sharding(tensor.to("xla"), mesh, (mesh.axis_names[0], None))

    return train(model, loss_of, put=put, sync=spmd.sync)


def assert_same(losses: list[float], expected: list[float]) -> None:
    assert len(losses) == len(expected)
    worst = max(range(len(expected)), key=lambda step: abs(losses[step] / expected[step] - 1))
    assert losses == pytest.approx(expected, rel=1e-5, abs=0), (
        f"worst at step {worst}: {losses[worst]}, {expected[worst]}"
    )


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor], type]] = {
    "gpt": (gpt, gpt_loss, Block),
    "llama-sdpa": (partial(llama, "sdpa"), llama_loss, LlamaDecoderLayer),
    "llama-eager": (partial(llama, "eager"), llama_loss, LlamaDecoderLayer),
}


@pytest.fixture(scope="module", params=list(MODELS))
def case(
    request: pytest.FixtureRequest,
) -> tuple[Callable[[], nn.Module], Callable[..., Tensor], type, list[float]]:
    """A model with the same initial weights each time, its loss, its layer class, and torch's own
    losses."""
    build, loss_of, layer = MODELS[request.param]
    torch.manual_seed(7)
    weights = build().state_dict()

    def same_weights() -> nn.Module:
        model = build()
        model.load_state_dict(weights)
        return model

    expected = train(same_weights(), loss_of)
    assert expected[-1] != expected[0]
    return same_weights, loss_of, layer, expected


class TestSameLossesAsPlainTorch:
    """From the same weights, fp32, dropout off: each sharding gives plain torch's losses, step by
    step."""

    def test_fsdp(self, case: Any, mesh8: spmd.Mesh) -> None:
        build, loss_of, layer, expected = case
        assert_same(under_fsdp(build(), loss_of, mesh=mesh8, layer=layer), expected)

    def test_data_and_fsdp(self, case: Any, mesh2x4: spmd.Mesh) -> None:
        build, loss_of, layer, expected = case
        assert_same(under_fsdp(build(), loss_of, mesh=mesh2x4, layer=layer), expected)

    def test_data_parallel(self, case: Any, mesh8: spmd.Mesh) -> None:
        build, loss_of, _, expected = case
        assert_same(under_data_parallel(build(), loss_of, mesh=mesh8), expected)


class TestCompilesCounted:
    """A run compiles one program for its initial weights and one for the step, the first step
    included."""

    def test_one_for_init_one_for_the_step(self, mesh8: spmd.Mesh) -> None:
        with torch.device("xla"):
            model = gpt(width=40)  # of no other test, so that nothing of it is compiled yet
        before = spmd.metrics.num_compiles()
        under_fsdp(model, gpt_loss, mesh=mesh8, layer=Block, steps=6)
        assert spmd.metrics.num_compiles() - before == 2, spmd.metrics.report()
        assert [record.name for record in spmd.metrics.compiles()[-2:]] == ["init", "step"]


class TestDropoutDoesNotDependOnTheMesh:
    """With dropout on, the same seed gives the same losses on 1, 4 and 8 devices."""

    def losses(self, ids: range) -> list[float]:
        torch.manual_seed(3)
        with torch.device("xla"):
            model = gpt(dropout=0.2)
        mesh = spmd.Mesh(ids, (len(ids),), ("fsdp",))
        return under_fsdp(model, gpt_loss, mesh=mesh, layer=Block, steps=20)

    def test_one_four_and_eight_devices_agree(self) -> None:
        expected = self.losses(range(1))
        assert_same(self.losses(range(4)), expected)
        assert_same(self.losses(range(8)), expected)

    def test_masks_differ_from_step_to_step(self) -> None:
        torch.manual_seed(3)
        with torch.device("xla"):
            model = gpt(dropout=0.5)
        tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long, device="xla")
        assert model(tokens).sum().item() != model(tokens).sum().item()
