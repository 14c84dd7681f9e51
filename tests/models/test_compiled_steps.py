"""Training steps of Hugging Face models under `spmd.compile`: the plain step's losses, bit for bit."""

import copy
from typing import Any

import pytest
import torch
from models.zoo import ZOO
from torch import nn

import fsdp
import spmd

SHARDED = ("llama", "bert", "resnet18")


def losses(name: str, model: nn.Module, *, compiled: bool, mesh: spmd.Mesh | None = None) -> tuple[list[float], Any]:
    ours = copy.deepcopy(model).to("xla")
    if mesh is not None:
        for module in list(ours.modules()):
            if isinstance(module, nn.ModuleList):
                for layer in module:
                    fsdp.fully_shard(layer, mesh=mesh)
        fsdp.fully_shard(ours, mesh=mesh)
    optimizer = torch.optim.AdamW(ours.parameters(), lr=1e-3)

    def step(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        loss, _ = ZOO[name].loss(ours, inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    function = spmd.compile(step) if compiled else step
    torch.manual_seed(1)
    found = []
    for _ in range(5):
        loss = function({key: value.to("xla") for key, value in ZOO[name].inputs().items()})
        spmd.sync()
        found.append(loss.item())
    return found, function


@pytest.mark.long
@pytest.mark.parametrize("name", ZOO)
def test_a_step(name: str) -> None:
    model = ZOO[name].build().train()
    expected, _ = losses(name, model, compiled=False)
    found, function = losses(name, model, compiled=True)
    assert found == expected
    assert function.num_replayed >= 2, function.explain()


@pytest.mark.long
@pytest.mark.parametrize("name", SHARDED)
def test_sharded(name: str, mesh8: spmd.Mesh) -> None:
    model = ZOO[name].build().train()
    expected, _ = losses(name, model, compiled=False, mesh=mesh8)
    found, function = losses(name, model, compiled=True, mesh=mesh8)
    assert found == expected
    assert function.num_replayed >= 2, function.explain()
