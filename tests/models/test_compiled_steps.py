"""Training steps of Hugging Face models under `spmd.compile`: the plain step's losses, bit for bit,
of one program."""

import copy
from typing import Any

import pytest
import torch
import transformers
from models.families import FAMILIES
from models.test_compiled import shard
from torch import nn

import spmd

# A loop in Python over the tokens is cut into programs before the end of the step
# (`config.loop_search_ops`).
SEVERAL = ("rwkv",)


def losses(
    name: str, model: nn.Module, *, compiled: bool, mesh: spmd.Mesh | None = None
) -> tuple[list[float], Any]:
    ours = copy.deepcopy(model).to("xla")
    if mesh is not None:
        shard(ours, mesh)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3)

    def step(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        loss, _ = FAMILIES[name].loss(ours, inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    function = spmd.compile(step) if compiled else step
    torch.manual_seed(1)
    found = []
    for _ in range(5):
        loss = function({key: value.to("xla") for key, value in FAMILIES[name].inputs().items()})
        spmd.sync()
        found.append(loss.item())
    if compiled:
        inputs = {key: value.to("xla") for key, value in FAMILIES[name].inputs().items()}
        before = spmd.metrics.counter("runs"), function.num_replayed
        function(inputs)
        assert function.num_replayed == before[1] + 1, function.explain()
        assert (spmd.metrics.counter("runs") - before[0] == 1) == (name not in SEVERAL)
    return found, function


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_step(name: str, is_sharded: bool, mesh8: spmd.Mesh) -> None:
    """Plain, and under FSDP over eight devices."""
    mesh = mesh8 if is_sharded else None
    model = FAMILIES[name].build().train()
    expected, _ = losses(name, model, compiled=False, mesh=mesh)
    found, function = losses(name, model, compiled=True, mesh=mesh)
    assert found == expected
    assert function.num_replayed >= 2, function.explain()


def test_a_causal_mask_stays_implicit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded call leaves out the mask of a batch that is not packed, as a call does: kernels
    take none."""
    masks = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        masks.append(kwargs.get("attn_mask"))
        return attention(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=32,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = transformers.LlamaForCausalLM(config).to("xla")
    tokens = torch.arange(24).reshape(2, 12).to("xla")
    compiled = spmd.compile(lambda tokens: model(input_ids=tokens, labels=tokens).loss.detach())
    found = [compiled(tokens).item() for _ in range(3)]
    assert masks == [None] and compiled.num_replayed == 2, compiled.explain()
    assert found == [model(input_ids=tokens, labels=tokens).loss.item()] * 3
    positions = torch.tensor([[*range(6), *range(6)]] * 2, device="xla")
    packed = spmd.compile(
        lambda positions: model(input_ids=tokens, position_ids=positions).logits.detach()
    )
    whole = packed(positions)
    assert masks[-1] is not None
    torch.testing.assert_close(
        whole[:, 6:], model(input_ids=tokens[:, 6:]).logits.detach(), rtol=1e-5, atol=1e-6
    )
