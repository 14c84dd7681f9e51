"""The host's memory beside the device's: values placed there, marked so, gradients, optimizer
state; the figures."""

from typing import Any

import jax
import pytest
import torch
from support import check
from torch import Tensor, nn

import fsdp
import spmd
from spmd import config
from spmd.core.programs import cache

HOST = "pinned_host"


def kind(tensor: Tensor) -> str:
    """The memory that the buffer itself says it is in; `get_sharding` says the same."""
    spmd.sync()
    if tensor._storage.value.host is not None:
        spmd.local_shards(tensor)  # uploads
    buffer, _ = tensor._storage.value.placed()
    kinds = {shard.data.sharding.memory_kind for shard in buffer.addressable_shards}
    sharding = spmd.get_sharding(tensor)
    assert sharding is not None and kinds == {sharding.memory} == {buffer.sharding.memory_kind}
    assert (HOST in repr(sharding)) == (sharding.memory == HOST)
    return sharding.memory


@pytest.fixture(params=["gspmd", "shardy"], autouse=True)
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(config, "partitioner", request.param)
    return request.param


@pytest.fixture(params=[1, 8])
def mesh(request: pytest.FixtureRequest) -> spmd.Mesh:
    return spmd.Mesh(range(request.param), (request.param,), ("fsdp",))


def on_mesh(data: Tensor, mesh: spmd.Mesh, **how: Any) -> Tensor:
    spec = ("fsdp", *[None] * (data.dim() - 1))
    return spmd.mark_sharding(data.to("xla"), mesh, spec, **how)


class TestPlace:
    """place_to_host, place_to_device: values and gradients move; ops read on the device."""

    def test_there_and_back(self, mesh: spmd.Mesh) -> None:
        x = on_mesh(torch.arange(16.0), mesh)
        there = spmd.place_to_host(x * 2)
        back = spmd.place_to_device(there)
        read = there + 1
        assert (kind(there), kind(back), kind(read)) == (HOST, "device", "device")
        for made, factor in ((there, 2), (back, 2)):
            check(made, torch.arange(16.0) * factor)
        check(read, torch.arange(16.0) * 2 + 1)
        if mesh.size() > 1:
            assert spmd.get_sharding(there).shard_shape((16,)) == (2,)

    def test_in_place_it_stays(self, mesh: spmd.Mesh) -> None:
        x = spmd.place_to_host(on_mesh(torch.arange(16.0), mesh))
        assert kind(x) == HOST
        x.add_(1).mul_(2)
        assert kind(x) == HOST
        check(x, (torch.arange(16.0) + 1) * 2)

    def test_gradients_move(self, mesh: spmd.Mesh) -> None:
        data = torch.linspace(-1, 1, 16)
        x = on_mesh(data, mesh).requires_grad_()
        (spmd.place_to_host(x * 3).sin() * 2).sum().backward()
        assert kind(x.grad) == "device"
        check(x.grad, 6 * torch.cos(3 * data))
        y = spmd.place_to_host(on_mesh(data, mesh)).detach()
        assert kind(y) == HOST
        y.requires_grad_()
        spmd.place_to_device(y).sin().sum().backward()
        assert kind(y.grad) == HOST
        check(y.grad, torch.cos(data))

    def test_second_derivative(self) -> None:
        x = torch.linspace(-1, 1, 4).to("xla").requires_grad_()
        (first,) = torch.autograd.grad(
            spmd.place_to_host(x.sin()).square().sum(), x, create_graph=True
        )
        (second,) = torch.autograd.grad(first.sum(), x)
        y = torch.linspace(-1, 1, 4).requires_grad_()
        (expected,) = torch.autograd.grad(y.sin().square().sum(), y, create_graph=True)
        check(second, torch.autograd.grad(expected.sum(), y)[0])

    def test_uneven_and_views(self, mesh8: spmd.Mesh) -> None:
        x = on_mesh(torch.arange(10.0), mesh8, memory_kind=HOST)
        assert kind(x) == HOST
        y = spmd.place_to_host((x * 2)[1:4])
        check(y, torch.arange(10.0)[1:4] * 2)
        x[2:5] = -1
        assert kind(x) == HOST
        assert x.tolist() == [0, 1, -1, -1, -1, 5, 6, 7, 8, 9]

    def test_of_another_mesh(self, mesh8: spmd.Mesh) -> None:
        """Unannotated data on one device's host joins a mesh in the hosts of all."""
        alone = spmd.place_to_host(torch.ones(4, device="xla") * 2)
        assert kind(alone) == HOST
        made = alone + on_mesh(torch.arange(16.0), mesh8)[:4]
        assert kind(made) == "device" and kind(alone) == HOST
        check(made, torch.arange(4.0) + 2)

    def test_what_is_no_tensor_of_the_device(self) -> None:
        for call in (spmd.place_to_host, spmd.place_to_device):
            with pytest.raises(
                TypeError, match=rf"{call.__name__}: expected a tensor on xla, got one on cpu"
            ):
                call(torch.ones(1))
        with pytest.raises(
            TypeError, match=r"offload_optimizer: expected a torch\.optim\.Optimizer, got Linear"
        ):
            spmd.offload_optimizer(nn.Linear(1, 1))  # type: ignore[arg-type]


class TestMark:
    """mark_sharding(memory_kind=...): a leaf, host data, a recorded value, a parameter with its
    gradient."""

    def test_kinds_of_values(self, mesh: spmd.Mesh) -> None:
        data = torch.arange(16.0)
        for value in (data.to("xla"), data.to("xla") + 0, spmd.place_to_host(data.to("xla"))):
            for memory in (HOST, "device", HOST):
                spmd.mark_sharding(value, mesh, ("fsdp",), memory_kind=memory)
                assert kind(value) == memory
                check(value, data)

    def test_a_parameter(self, mesh: spmd.Mesh) -> None:
        """Its gradient lies like it, and so does what an optimizer makes of both."""
        data = torch.linspace(-1, 1, 16)
        weight = nn.Parameter(data.to("xla"))
        spmd.mark_sharding(weight, mesh, ("fsdp",), memory_kind=HOST)
        optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
        reference = nn.Parameter(data.clone())
        other = torch.optim.SGD([reference], lr=0.5, momentum=0.9)
        for _ in range(3):
            for parameter, chosen in ((weight, optimizer), (reference, other)):
                parameter.grad = None
                parameter.sin().sum().backward()
                chosen.step()
            assert kind(weight) == kind(weight.grad) == HOST
        check(weight, reference)

    def test_another_memory(self, mesh8: spmd.Mesh) -> None:
        with pytest.raises(
            ValueError, match="expected memory_kind to be 'device' or 'pinned_host', got 'disk'"
        ):
            on_mesh(torch.ones(8), mesh8, memory_kind="disk")


class TestOptimizer:
    """offload_optimizer: state lies in the host's memory between steps, updated in place by the
    step's program."""

    @pytest.mark.parametrize("kind_of", [torch.optim.AdamW, torch.optim.Adagrad])
    def test_steps(self, kind_of: Any, mesh: spmd.Mesh) -> None:
        torch.manual_seed(0)
        start = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        batch = torch.randn(8, 16)
        runs = []
        for offload in (False, True):
            model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
            model.load_state_dict(start.state_dict())
            model = fsdp.FullyShardedDataParallel(model, mesh=mesh)
            optimizer = kind_of(model.parameters(), lr=0.1)
            if offload:
                assert spmd.offload_optimizer(optimizer) is optimizer
            compiles = []
            for _ in range(4):
                model(batch.to("xla")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
                compiles.append(spmd.metrics.num_compiles())
            assert compiles[1] == compiles[3], "the steady step is one program"
            state = [
                value for row in optimizer.state.values() for value in row.values() if value.dim()
            ]
            assert {kind(value) for value in state} == {HOST if offload else "device"}
            for parameter in model.parameters():
                assert kind(parameter) == "device"
                for value in optimizer.state[parameter].values():
                    if value.dim():
                        sharding, like = spmd.get_sharding(value), spmd.get_sharding(parameter)
                        assert sharding.with_spec(sharding.spec) is like
            runs.append(
                [
                    *(parameter.detach().cpu() for parameter in model.parameters()),
                    *(v.cpu() for v in state),
                ]
            )
        for one, other in zip(*runs, strict=True):
            check(one, other)

    def test_all_state_is_updated_in_place(self, mesh8: spmd.Mesh) -> None:
        """Each result takes the memory of what it is written over, of equal shapes in both
        memories."""
        model = fsdp.FullyShardedDataParallel(nn.Linear(64, 64, bias=False), mesh=mesh8)
        optimizer = spmd.offload_optimizer(torch.optim.AdamW(model.parameters()))
        for _ in range(2):
            model(torch.ones(8, 64).to("xla")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            spmd.sync()
        program = cache.last_program()
        assert program is not None
        header = program.executable.as_text().split("\n")[0]
        aliases = header.partition("input_output_alias={ ")[2].partition(" }, entry")[0]
        layouts = header.partition("entry_computation_layout=")[2]
        arguments, results = (part.split("f32[")[1:] for part in layouts.split(")->(", 1))
        paired = [pair.split(":") for pair in aliases.replace(", may-alias", "").split("), ")]
        assert len(paired) == 3
        for result, argument in paired:
            place, of = int(result.strip(" {}")), int(argument.strip(" ()").split(",")[0])
            assert ("S(5)" in results[place]) == ("S(5)" in arguments[of])

    def test_loaded_state(self, mesh8: spmd.Mesh) -> None:
        model = fsdp.FullyShardedDataParallel(nn.Linear(16, 16), mesh=mesh8)
        optimizer = spmd.offload_optimizer(torch.optim.AdamW(model.parameters()))
        model(torch.ones(8, 16).to("xla")).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict()
        expected = saved["state"][0]["exp_avg"].cpu()
        fresh = spmd.offload_optimizer(torch.optim.AdamW(model.parameters()))
        fresh.load_state_dict(saved)
        loaded = fresh.state[next(model.parameters())]["exp_avg"]
        assert kind(loaded) == HOST
        check(loaded, expected)

    def test_memory_that_is_counted(
        self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """torch.xla.memory_allocated counts device memory."""
        shape, live_arrays = (1032,), jax.live_arrays  # no other test has arrays of this shape
        monkeypatch.setattr(
            jax, "live_arrays", lambda: [each for each in live_arrays() if each.shape == shape]
        )
        value = on_mesh(torch.ones(shape), mesh8) + 0
        spmd.sync(wait=True)
        assert torch.xla.memory_allocated() == 4 * 1032
        spmd.mark_sharding(value, mesh8, ("fsdp",), memory_kind=HOST)
        spmd.sync(wait=True)
        assert torch.xla.memory_allocated() == 0


class TestOffloadedActivations:
    """A tensor that a policy offloads is in the host's memory where a program ends between the
    passes."""

    def test_between_the_passes(self, mesh8: spmd.Mesh) -> None:
        only = spmd.checkpoint_policies.save_and_offload_only_these_names(
            names_which_can_be_offloaded=["h"]
        )
        data = torch.linspace(-1, 1, 16)
        x = on_mesh(data, mesh8).requires_grad_()
        made = spmd.remat(lambda x: spmd.checkpoint_name(x.exp(), "h").sin(), policy=only)(x).sum()
        spmd.sync(wait=True)
        program = cache.last_program()
        assert program is not None
        assert [sharding.memory for sharding in program.results].count(HOST) == 1
        made.backward()
        assert kind(x.grad) == "device"
        y = data.clone().requires_grad_()
        y.exp().sin().sum().backward()
        check(x.grad, y.grad)
