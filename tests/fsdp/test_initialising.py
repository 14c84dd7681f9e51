"""Initialisation of a deep model: sharded from the start, one program for equal layers, however
many."""

from functools import partial

import pytest
import torch

import fsdp
import spmd
from recipes.gpt import GPT, Block, GPTConfig
from spmd.core.run import initialization


def initialised(
    device: str, mesh: spmd.Mesh, layers: int = 12
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The initial weights, and the programs that were compiled for them."""
    spmd.manual_seed(0)
    spmd.metrics.clear()
    with torch.device(device):
        model = GPT(GPTConfig(layers=layers, width=32, heads=2, sequence=16))
    policy = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = fsdp.FullyShardedDataParallel(model, mesh, auto_wrap_policy=policy)
    spmd.sync()
    names = [record.name for record in spmd.metrics.compiles()]
    assert spmd.get_sharding(model.blocks[-1].mlp.up.weight).text(2).startswith("{devices=[8,1]")
    return {name: value.detach().cpu() for name, value in model.named_parameters()}, names


@pytest.mark.parametrize("device", ["xla", "meta"])
class TestDeep:
    """Twelve layers are initialised by the programs of one layer, with the same numbers as by one
    program for all."""

    def test_programs(self, device: str, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        found, names = initialised(device, mesh8)
        assert {*names} == {"init"} and len(names) <= 5
        assert initialised(device, mesh8, layers=16)[1].count("init") <= len(names)
        monkeypatch.setattr(initialization, "_MOST_EXCESS_OPS", 10**9)
        expected, _ = initialised(device, mesh8)
        assert all(torch.equal(value, expected[name]) for name, value in found.items())
        assert not torch.equal(found["blocks.0.mlp.up.weight"], found["blocks.1.mlp.up.weight"])

    def test_few_are_one_program(self, device: str, mesh8: spmd.Mesh) -> None:
        assert initialised(device, mesh8, layers=1)[1] == ["init"]


class TestBuffers:
    """Statistics of batch norm are initialised with the weights: the first step, which writes both,
    is the program of all steps."""

    def test_programs(self, mesh8: spmd.Mesh) -> None:
        with torch.device("xla"):
            model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.BatchNorm1d(24))
        model = fsdp.FullyShardedDataParallel(model, mesh8)
        optimizer = torch.optim.AdamW(model.parameters())
        spmd.metrics.clear()
        for _ in range(3):
            model(torch.randn(16, 16).to("xla")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
        assert [record.name for record in spmd.metrics.compiles()] == ["init", "step"], (
            spmd.metrics.report()
        )
        assert model[1].num_batches_tracked.item() == 3
