"""Schedules: pieces on several meshes, and what each of them donates; where state without
annotations lies."""

import copy
from collections.abc import Callable, Iterable

import jax
import numpy as np
import pytest
import torch
from support import check
from torch import nn

import spmd
from spmd import Mesh
from spmd.core.run.pjrt import transfer

LEFT, RIGHT = Mesh([0, 1, 2, 3], (4,), ("a",)), Mesh([4, 5, 6, 7], (4,), ("a",))
SIZE = 1024
SHARD = SIZE * 4 // 4


def on(mesh: Mesh, tensor: torch.Tensor) -> torch.Tensor:
    return spmd.mark_sharding(tensor.to("xla"), mesh, ("a",))


def live_bytes() -> int:
    spmd.sync(wait=True)
    return sum(array.nbytes for array in jax.live_arrays())


class TestTwoMeshes:
    """State on meshes over different devices is updated in place, as on one."""

    def test_each_mesh_donates_its_own(self) -> None:
        left, right = on(LEFT, torch.zeros(SIZE)), on(RIGHT, torch.zeros(SIZE))
        spmd.sync()
        held = []
        for step in range(4):
            left.add_(1)
            right.sub_(1)
            count = spmd.metrics.num_compiles()
            held.append(live_bytes())
            assert spmd.metrics.num_compiles() - count == (2 if step == 0 else 0)
        assert [record.alias_bytes for record in spmd.metrics.compiles()[-2:]] == [SHARD, SHARD]
        # The numbers that stay are an array on the devices from the second step on.
        assert len(set(held[2:])) == 1 and held[-1] - held[0] < 256
        check(left, torch.full((SIZE,), 4.0))
        check(right, torch.full((SIZE,), -4.0))

    def test_what_crosses_is_read_before_it_is_overwritten(self) -> None:
        """The other mesh reads the old value and the new one; both states are donated all the
        same."""
        x, y = torch.arange(float(SIZE)), torch.ones(SIZE)
        left, right = on(LEFT, x), on(RIGHT, y)
        spmd.sync()
        for _ in range(3):
            old = left * 1
            left.mul_(0.5)
            right.add_(
                spmd.mark_sharding(left + 0, RIGHT, ("a",)) + spmd.mark_sharding(old, RIGHT, ("a",))
            )
            del old
            before, x = x, x * 0.5
            y = y + x + before
            count = spmd.metrics.num_compiles()
            spmd.sync()
        assert spmd.metrics.num_compiles() == count
        assert [record.alias_bytes for record in spmd.metrics.compiles()[-2:]] == [SHARD, SHARD]
        check(left, x)
        check(right, y)

    def test_a_value_that_only_passes_gives_its_memory_on(self) -> None:
        """A value that one mesh makes for another, without another reference, becomes the other's
        result."""
        x = torch.arange(float(SIZE))
        given = on(LEFT, x)
        made = spmd.mark_sharding(spmd.mark_sharding(given * 2, RIGHT, ("a",)) + 1, RIGHT, ("a",))
        spmd.sync()
        assert [record.alias_bytes for record in spmd.metrics.compiles()[-2:]] == [0, SHARD]
        check(made, x * 2 + 1)
        check(given, x)

    def test_there_and_back(self) -> None:
        x, w = torch.randn(SIZE), torch.randn(SIZE)
        state, other = on(LEFT, x), on(RIGHT, w)
        spmd.sync()
        there = spmd.mark_sharding(state.sin(), RIGHT, ("a",)) * other
        state.add_(spmd.mark_sharding(there, LEFT, ("a",)))
        spmd.sync()
        check(state, x + x.sin() * w)
        check(there, x.sin() * w)

    def test_initial_values_are_born_on_each(self) -> None:
        """The first step of a model over two meshes is the same program as the second."""
        with torch.device("xla"):
            first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        for layer, mesh in ((first, LEFT), (second, RIGHT)):
            spmd.mark_sharding(layer.weight, mesh, ("a", None))
            spmd.mark_sharding(layer.bias, mesh, ("a",))
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (first, second)]
        compiles = []
        for _ in range(3):
            for layer, mesh, optimizer in zip(
                (first, second), (LEFT, RIGHT), optimizers, strict=True
            ):
                optimizer.zero_grad()
                x = spmd.mark_sharding(torch.ones(4, 8).to("xla"), mesh, ("a", None))
                layer(x).square().mean().backward()
                optimizer.step()
            before = len(spmd.metrics.compiles())
            spmd.sync()
            compiles.append([record.name for record in spmd.metrics.compiles()[before:]])
        assert "init" in compiles[0] and compiles[1:] == [[], []], compiles


# By name: the optimizer, and how many programs its steps are on any device (torch's first step with
# momentum makes it).
OPTIMIZERS: dict[str, tuple[Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], int]] = {
    "sgd": (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 1),
    "momentum": (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 2),
    "adam": (lambda parameters: torch.optim.Adam(parameters, lr=0.01), 1),
}


def perceptron() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def normalised() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32, bias=False), nn.BatchNorm1d(32), nn.Linear(32, 8))


class TestUnmarkedState:
    """A value over data without an annotation comes back as that came: one program, the same
    layouts."""

    @pytest.mark.parametrize("name", OPTIMIZERS)
    @pytest.mark.parametrize(
        ("make", "is_split"),
        [(perceptron, False), (normalised, False), (perceptron, True)],
        ids=["dp", "norm", "tp"],
    )
    def test_one_program(
        self, mesh2x4: Mesh, make: Callable[[], nn.Sequential], is_split: bool, name: str
    ) -> None:
        """Data parallel with nothing but the batch marked, tensor parallel with the weights marked
        and not the biases: no program is compiled because a layout changes, and values are those of
        torch on the CPU."""
        optimizer, num_programs = OPTIMIZERS[name]
        cpu = make()
        model = copy.deepcopy(cpu).to("xla")
        if is_split:
            spmd.mark_sharding(model[0].weight, mesh2x4, ("fsdp", None))
            spmd.mark_sharding(model[-1].weight, mesh2x4, (None, "fsdp"))
        steps = optimizer(cpu.parameters()), optimizer(model.parameters())
        last = spmd.metrics.compiles()[-1:]
        for _ in range(4):
            x = torch.randn(8, 16)
            xs = x, spmd.mark_sharding(x.to("xla"), mesh2x4, ("data", None))
            for one, step, batch in zip((cpu, model), steps, xs, strict=True):
                step.zero_grad()
                one(batch).square().mean().backward()
                step.step()
            spmd.sync()
        records = spmd.metrics.compiles()
        compiled = records[records.index(last[0]) + 1 :] if last else records
        assert len(compiled) == num_programs, [record.cause for record in compiled]
        for key, value in model.state_dict().items():
            check(value, cpu.state_dict()[key])
            if not is_split or "bias" in key:
                assert spmd.get_sharding(value).is_replicated(), key

    def test_bytes_are_of_the_replicated_form(self, mesh8: Mesh) -> None:
        """The ledger says what the state takes: all of it on each device, before and behind the
        first step."""
        weight = torch.ones(64, 64).to("xla")
        spmd.sync()
        for _ in range(2):
            x = spmd.mark_sharding(torch.ones(8, 64).to("xla"), mesh8, (None, "fsdp"))
            weight.add_(x.T @ x)
            spmd.sync()
        record = spmd.metrics.compiles()[-1]
        assert record.alias_bytes == 64 * 64 * 4
        assert record.argument_bytes >= 64 * 64 * 4
        check(weight, torch.full((64, 64), 17.0))


def test_scalar_arguments_that_stay_lie_on_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes the array of an earlier one while its numbers are the same, and theirs after."""
    uploads: list[object] = []
    put = transfer.jax.device_put
    monkeypatch.setattr(
        transfer.jax, "device_put", lambda x, *more: uploads.append(x) or put(x, *more)
    )
    x = torch.ones(8, device="xla")
    spmd.sync()
    found = []
    for number in (2.5, 2.5, 2.5, 2.5, 3.5, 2.5, 2.5):
        found.append((x * number).sum().item())
    assert found == [8 * number for number in (2.5, 2.5, 2.5, 2.5, 3.5, 2.5, 2.5)]
    assert len([one for one in uploads if isinstance(one, np.ndarray) and 2.5 in one]) == 2
