"""An annotation through copies, files and state dicts; what is read of split data compiles
nothing."""

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh


def saved(value: Any, **how: Any) -> Any:
    """The value through a file."""
    file = io.BytesIO()
    torch.save(value, file, **how)
    file.seek(0)
    return torch.load(file)


WAYS: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "file": saved,
    "old file": lambda value: saved(value, _use_new_zipfile_serialization=False),
    "detach": lambda value: value.detach(),
    "data": lambda value: value.data,
}


class TestCopies:
    """A copy of a tensor has its layout: mesh, order of devices, padding, memory."""

    @pytest.mark.parametrize("way", WAYS)
    def test_way(self, way: str) -> None:
        source = torch.arange(90.0).view(9, 10)
        mesh = Mesh([7, 6, 5, 4, 0, 1, 2, 3], (2, 4), ("x", "y"))
        for spec, memory in (
            (("y", "x"), "device"),
            ((None, ("y", "x")), "pinned_host"),
            ((None, None), "device"),
        ):
            x = spmd.mark_sharding(source.to("xla"), mesh, spec, memory_kind=memory)
            made = WAYS[way](x)
            assert (
                spmd.get_sharding(made) is spmd.get_sharding(x)
                and spmd.get_sharding(x).memory == memory
            )
            assert torch.equal(made.cpu(), source)

    @pytest.mark.parametrize("way", ["deepcopy", "pickle", "file"])
    def test_parameter(self, way: str, mesh8: Mesh) -> None:
        w = spmd.mark_sharding(nn.Parameter(torch.randn(8, 8).to("xla")), mesh8, ("fsdp", None))
        made = WAYS[way](w)
        assert isinstance(made, nn.Parameter) and spmd.get_sharding(made) is spmd.get_sharding(w)
        (torch.ones(2, 8, device="xla") @ made).sum().backward()
        assert spmd.get_sharding(made.grad) is spmd.get_sharding(w) and w.grad is None

    @pytest.mark.parametrize("way", ["deepcopy", "file", "old file"])
    def test_views_and_ties(self, way: str, mesh8: Mesh) -> None:
        """The base's annotation comes with it, a view has none, and they still share memory."""
        x = spmd.mark_sharding(torch.zeros(8, 8).to("xla"), mesh8, ("fsdp", None))
        base, row, again = WAYS[way]([x, x[1], x])
        assert spmd.get_sharding(base) is spmd.get_sharding(x) and spmd.get_sharding(row) is None
        row.fill_(1)
        assert base.sum().item() == 8 == again.sum().item()
        assert {tuple(shard.data.shape) for shard in spmd.local_shards(base)} == {(1, 8)}

    def test_views_have_none(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(8, 8).to("xla"), mesh8, ("fsdp", None))
        assert [
            spmd.get_sharding(view) for view in (x[0], x.t(), x.view(64), x.expand(2, 8, 8))
        ] == [None] * 4


class TestStateDicts:
    """load_state_dict, also where it puts other tensors there; an optimizer's state lies like its
    parameter."""

    @pytest.fixture
    def model(self, mesh8: Mesh) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).to("xla")
        spmd.mark_sharding(model[0].weight, mesh8, ("fsdp", None))
        spmd.mark_sharding(model[1].running_mean, mesh8, ("fsdp",))
        return model

    def test_assign(self, model: nn.Module) -> None:
        state = {name: value.clone() for name, value in model.state_dict().items()}
        marked = [spmd.get_sharding(model[0].weight), spmd.get_sharding(model[1].running_mean)]
        before = model[0].weight
        model.load_state_dict(state, assign=True)
        assert model[0].weight is not before
        assert [
            spmd.get_sharding(model[0].weight),
            spmd.get_sharding(model[1].running_mean),
        ] == marked
        assert spmd.get_sharding(model[0].bias) is None
        model(torch.ones(2, 8, device="xla")).square().sum().backward()
        assert spmd.get_sharding(model[0].weight.grad) is marked[0]

    def test_assigned_takes_the_layout_of_its_target(self, model: nn.Module, mesh8: Mesh) -> None:
        state = {name: value.clone() for name, value in model.state_dict().items()}
        spmd.mark_sharding(state["0.weight"], mesh8, (None, "fsdp"))
        model.load_state_dict(state, assign=True)
        # not that of the file
        assert spmd.get_sharding(model[0].weight).partition_spec(2) == ("fsdp", None)
        model.load_state_dict({name: value.cpu() for name, value in state.items()}, assign=True)
        assert model[0].weight.device.type == "cpu"

    @pytest.mark.parametrize("through", [copy.deepcopy, saved], ids=["deepcopy", "file"])
    def test_optimizer(self, model: nn.Module, through: Callable[[Any], Any]) -> None:
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 8, device="xla")).square().sum().backward()
        optimizer.step()
        spmd.sync()
        again = torch.optim.AdamW(model.parameters())
        again.load_state_dict(through(optimizer.state_dict()))
        weight = model[0].weight
        for moment in ("exp_avg", "exp_avg_sq"):
            assert spmd.get_sharding(again.state[weight][moment]) is spmd.get_sharding(weight)
            assert torch.equal(
                again.state[weight][moment].cpu(), optimizer.state[weight][moment].cpu()
            )

    def test_a_copy_of_both(self, model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(2, 8, device="xla")).square().sum().backward()
        optimizer.step()
        other, again = copy.deepcopy((model, optimizer))
        (weight, *_), sharding = again.param_groups[0]["params"], spmd.get_sharding(model[0].weight)
        assert weight is other[0].weight and spmd.get_sharding(weight) is sharding
        assert spmd.get_sharding(again.state[weight]["momentum_buffer"]) is sharding


class TestReads:
    """`.cpu()`, `.numpy()`, `full_tensor`, `tolist`, `local_shards` of split data: put together on
    the host from the pieces; XLA compiles and runs nothing for them."""

    def test_nothing_is_compiled(self, mesh2x4: Mesh) -> None:
        made = []
        for rows in range(9, 17):
            source = torch.randn(rows, 5)
            x = spmd.mark_sharding(source.to("xla"), mesh2x4, ("fsdp", "data"))
            spmd.local_shards(x)
            made.append((x, source))
        spmd.sync(wait=True)
        compiles, runs = spmd.metrics.num_compiles(), spmd.metrics.counter("runs")
        for x, source in made:
            assert torch.equal(x.cpu(), source) and torch.equal(spmd.full_tensor(x), source)
            assert (x.numpy(force=True) == source.numpy()).all() and x.tolist() == source.tolist()
            assert torch.equal(x[2:, 1].cpu(), source[2:, 1]) and torch.equal(
                x.t().cpu(), source.t()
            )
            assert len(spmd.local_shards(x)) == 8
        assert (spmd.metrics.num_compiles(), spmd.metrics.counter("runs")) == (compiles, runs)
