"""DiLoCo (arXiv:2311.08105) from marks alone: the replicas of a model are a dim that `vmap` maps
over and the slow axis shards."""

import copy

import pytest
import torch
from support import check
from torch import nn

import spmd
from spmd import P

REPLICAS, STEPS = 2, 2


def losses(weights: dict[str, torch.Tensor], model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    def loss(replica: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, replica, (rows,)).square().mean()

    return torch.func.vmap(loss)(weights, x)


def average(weights: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for weight in weights.values():
            weight.copy_(weight.mean(0, keepdim=True).expand_as(weight))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_only_the_average_crosses(monkeypatch: pytest.MonkeyPatch, partitioner: str) -> None:
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    mesh = spmd.Mesh(range(8), (REPLICAS, 4), ("dcn", "fsdp"))
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
    stacked = {
        name: weight.detach().expand(REPLICAS, *weight.shape).clone()
        for name, weight in model.named_parameters()
    }
    on_cpu = {name: nn.Parameter(copy.copy(weight)) for name, weight in stacked.items()}
    weights = {name: nn.Parameter(weight.to("xla")) for name, weight in stacked.items()}
    for weight in weights.values():
        spmd.mark_sharding(weight, mesh, P("dcn", "fsdp", *[None] * (weight.dim() - 2)))
    optimizers = [torch.optim.AdamW(each.values(), lr=0.01) for each in (weights, on_cpu)]
    inner = []
    for _ in range(STEPS):
        x = torch.randn(REPLICAS, 32, 16)
        placed = spmd.mark_sharding(x.to("xla"), mesh, P("dcn", "fsdp", None))
        for optimizer, each, rows in zip(optimizers, (weights, on_cpu), (placed, x), strict=True):
            losses(each, model, rows).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        spmd.sync()
        inner += spmd.metrics.compiles()[-1].traffic
    assert inner and all(row.axes == ("fsdp",) for row in inner)
    for each in (weights, on_cpu):
        average(each)
    spmd.sync()
    (outer,) = spmd.metrics.compiles()[-1].traffic
    assert (outer.kind, outer.axes) == ("all-reduce", ("dcn",))
    for weight, expected in zip(weights.values(), on_cpu.values(), strict=True):
        check(weight, expected)
        assert torch.equal(weight[0].cpu(), weight[1].cpu())
