"""An optimizer's state from before a model was sharded follows the parameters, whatever shards
them."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd
from spmd import P

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, fused=True),
    "one by one": lambda parameters: torch.optim.Adam(
        parameters, lr=1e-2, foreach=False, amsgrad=True
    ),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
}


def by_marks(model: nn.Module, mesh: spmd.Mesh) -> None:
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, mesh, P("fsdp", *[None] * (parameter.dim() - 1)))


def by_dtensor(model: nn.Module, mesh: spmd.Mesh) -> None:
    view = spmd.dtensor.init_device_mesh("xla", (8,), mesh_dim_names=("fsdp",))
    for parameter in model.parameters():
        spmd.dtensor.distribute_tensor(parameter, view, [spmd.dtensor.Shard(0)])


WAYS: dict[str, Callable[[nn.Module, spmd.Mesh], object]] = {
    "fully_shard": lambda model, mesh: fsdp.fully_shard(model, mesh=mesh),
    "wrapper": lambda model, mesh: fsdp.FullyShardedDataParallel(model, mesh),
    "marks": by_marks,
    "rules": lambda model, mesh: spmd.ShardingRules(
        {"*.weight": ("fsdp", None), "*.bias": ("fsdp",)}
    ).apply(model, mesh),
    "DTensor": by_dtensor,
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The tensors of the state that have the shape of their parameter."""
    values = [
        (parameter, value)
        for parameter in model.parameters()
        for value in optimizer.state[parameter].values()
    ]
    return [
        value
        for parameter, value in values
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
    ]


class TestFollows:
    """Bytes and collectives are those of a model that was sharded before the first step; values are
    the CPU's."""

    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_ways(self, way: Callable[[nn.Module, spmd.Mesh], object], mesh8: spmd.Mesh) -> None:
        self.check(OPTIMIZERS["AdamW"], way, mesh8)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
    def test_optimizers(
        self, optimizer: Callable[[Any], torch.optim.Optimizer], mesh8: spmd.Mesh
    ) -> None:
        self.check(optimizer, WAYS["fully_shard"], mesh8)

    @staticmethod
    def check(
        optimizer: Callable[[Any], torch.optim.Optimizer],
        way: Callable[[nn.Module, spmd.Mesh], object],
        mesh: spmd.Mesh,
    ) -> None:
        xs = torch.randn(3, 16, 64)
        expected = model()
        its = optimizer(expected.parameters())
        for x in xs:
            step(expected, its, x)
        late, early = model().to("xla"), model().to("xla")
        counts = []
        for sharded, is_late in ((late, True), (early, False)):
            if not is_late:
                way(sharded, mesh)
            its = optimizer(sharded.parameters())
            step(sharded, its, xs[0].to("xla"))
            spmd.sync()
            if is_late:
                way(sharded, mesh)
            for x in xs[1:]:
                step(sharded, its, spmd.mark_sharding(x.to("xla"), mesh, P("fsdp", None)))
                spmd.sync()
            for value in state(sharded, its):
                present = spmd.get_sharding(value)
                assert present is not None and present.tiles(value.dim())[0] == 8
                assert present.memory == "device"
            program = spmd.core.cache.last_program()
            counts.append(
                (program.record.collectives, sum(row.moved_bytes for row in program.record.traffic))
            )
            for ours, theirs in zip(sharded.parameters(), expected.parameters(), strict=True):
                torch.testing.assert_close(
                    ours.detach().cpu(), theirs.detach(), rtol=1e-4, atol=1e-5
                )
        assert counts[0] == counts[1]


class TestSiblings:
    """Gradients, copies and loaded state follow, too; state that a device would hold more of does
    not."""

    def test_a_gradient(self, mesh8: spmd.Mesh) -> None:
        layer = nn.Linear(64, 64).to("xla")
        layer(torch.ones(8, 64, device="xla")).sum().backward()
        spmd.sync()
        spmd.mark_sharding(layer.weight, mesh8, P("fsdp", None))
        assert layer.weight.grad is not None
        assert spmd.get_sharding(layer.weight.grad).partition_spec(2) == P("fsdp", None)

    def test_a_copied_and_a_loaded_optimizer(self, mesh8: spmd.Mesh) -> None:
        layer = nn.Linear(64, 64).to("xla")
        optimizer = torch.optim.AdamW(layer.parameters())
        step(layer, optimizer, torch.ones(8, 64, device="xla"))
        other, its = copy.deepcopy((layer, optimizer))
        loaded = torch.optim.AdamW(layer.parameters())
        loaded.load_state_dict(optimizer.state_dict())
        for each, its_optimizer in ((other, its), (layer, loaded)):
            spmd.mark_sharding(each.weight, mesh8, P("fsdp", None))
            step(each, its_optimizer, torch.ones(8, 64, device="xla"))
            moment = its_optimizer.state[each.weight]["exp_avg"]
            assert spmd.get_sharding(moment).partition_spec(2) == P("fsdp", None)

    def test_another_dim_and_back(self, mesh8: spmd.Mesh) -> None:
        layer = nn.Linear(64, 64).to("xla")
        optimizer = torch.optim.AdamW(layer.parameters())
        step(layer, optimizer, torch.ones(8, 64, device="xla"))
        moment = optimizer.state[layer.weight]["exp_avg"]
        for spec, expected in (((None, "fsdp"), 1), (("fsdp", None), 0), ((None, None), 0)):
            spmd.mark_sharding(layer.weight, mesh8, P(*spec))
            assert spmd.get_sharding(moment).tiles(2)[expected] == 8

    def test_unsharded_for_a_while(self, mesh8: spmd.Mesh) -> None:
        layer = fsdp.fully_shard(
            nn.Linear(64, 64), mesh=mesh8, offload_policy=fsdp.CPUOffloadPolicy()
        )
        optimizer = torch.optim.AdamW(layer.parameters())
        step(layer, optimizer, torch.ones(8, 64, device="xla"))
        moment = optimizer.state[layer.weight]["exp_avg"]
        spmd.sync()
        before = spmd.get_sharding(moment)
        with fsdp.summon_full_params(layer):
            assert spmd.get_sharding(moment) is before
        assert spmd.get_sharding(moment) is before and before.tiles(2)[0] == 8
