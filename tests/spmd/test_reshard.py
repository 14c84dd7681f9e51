"""reshard: a new tensor in another layout, values and gradients, over the same and over other
devices."""

import copy
import itertools
import random
from typing import Any

import pytest
import torch
from jax._src import array as jax_array
from support import check
from torch import nn

import fsdp
import spmd
from spmd import Mesh, P

MESHES = {
    "1": Mesh([3], (1,), ("a",)),
    "2": Mesh([5, 0], (2,), ("a",)),
    "4": Mesh([0, 1, 2, 3], (2, 2), ("a", "b")),
    "4 others": Mesh([7, 5, 6, 4], (4,), ("a",)),
    "3": Mesh([6, 2, 4], (3,), ("a",)),
    "8": Mesh(range(8), (8,), ("a",)),
    "8 reversed": Mesh(range(7, -1, -1), (2, 4), ("b", "a")),
    "8 cube": Mesh(range(8), (2, 2, 2), ("c", "b", "a")),
}


def specs(mesh: Mesh) -> list[tuple[object, ...]]:
    """All that can be said of two dims, each split over at most the mesh's last two axes."""
    names = mesh.axis_names[-2:]
    entries: list[object] = [None, *names, *([names, names[::-1]] if len(names) == 2 else [])]
    return [
        spec
        for spec in itertools.product(entries, repeat=2)
        if len(
            used := [
                axis
                for entry in spec
                if entry
                for axis in ([entry] if isinstance(entry, str) else entry)
            ]
        )
        == len(set(used))
    ]


@pytest.fixture
def no_host(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the arrays that jax has put together on the host."""
    seen: list[tuple[int, ...]] = []
    whole = jax_array.ArrayImpl._value.fget

    def value(self: object) -> object:
        seen.append(self.shape)
        return whole(self)

    monkeypatch.setattr(jax_array.ArrayImpl, "_value", property(value))
    return seen


def pointers(tensor: torch.Tensor) -> set[int]:
    buffer = tensor._storage.value.buffer
    return {shard.data.unsafe_buffer_pointer() for shard in buffer.addressable_shards}


class TestData:
    """Data on devices that is marked anew: the devices exchange it, whatever the meshes; never one
    memory twice."""

    @pytest.mark.parametrize("here", MESHES)
    def test_between_any_two_meshes(self, here: str, no_host: list[tuple[int, ...]]) -> None:
        draw = random.Random(here)
        for there in MESHES:
            shape = draw.choice([(8, 8), (10, 6), (3, 5)])
            source = torch.randn(shape)
            memory = draw.choice([None, None, "pinned_host"])
            x = spmd.mark_sharding(source.to("xla"), MESHES[here], draw.choice(specs(MESHES[here])))
            spmd.mark_sharding(x, spmd.get_sharding(x), memory_kind=memory)
            spmd.local_shards(x)
            before, held = pointers(x), x._storage.value.buffer
            no_host.clear()
            target = MESHES[there].sharding(draw.choice(specs(MESHES[there])), 2)
            spmd.mark_sharding(x, target)
            moved = [*no_host]
            assert moved == []
            is_same = x._storage.value.buffer is held or {*spmd.get_sharding(x).device_ids} == {
                *MESHES[here].device_ids
            }
            assert is_same or not before & pointers(x)
            assert spmd.get_sharding(x) is target and torch.equal(x.cpu(), source)
            whole = torch.full(shape, float("nan"))
            for shard in spmd.local_shards(x):
                whole[shard.indices] = shard.unpadded_data
            assert torch.equal(whole, source)
            assert sorted(shard.device for shard in spmd.local_shards(x)) == sorted(
                MESHES[there].device_ids
            )
            del held

    def test_what_was_marked_anew_is_not_the_memory_of_another(self, mesh8: Mesh) -> None:
        """A program that overwrites the one in place leaves the other as it is."""
        x = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh8, ("fsdp",))
        spmd.local_shards(x)
        y = spmd.reshard(x, ("a",), MESHES["8"])
        z = spmd.reshard(x, (None,))
        spmd.sync()
        x.add_(1)
        z.mul_(2)
        spmd.sync()
        assert (
            y.tolist() == [*range(16)]
            and x.tolist() == [*range(1, 17)]
            and z.tolist() == [*range(0, 32, 2)]
        )


class TestValues:
    """A new tensor: recorded, differentiable; the tensor stays as it is."""

    @pytest.mark.parametrize(
        ("here", "there"), [("8", "8 cube"), ("4", "4 others"), ("8", "3"), ("2", "8 reversed")]
    )
    def test_value_and_gradient(
        self, here: str, there: str, no_host: list[tuple[int, ...]]
    ) -> None:
        one, other = MESHES[here], MESHES[there]
        source = torch.randn(8, 6)
        x = spmd.mark_sharding(source.to("xla"), one, ("a", None)).requires_grad_()
        sharding = spmd.get_sharding(x)
        y = spmd.reshard(x.sin(), (None, "a"), other)
        loss = (y * y).sum()
        loss.backward()
        spmd.sync()
        assert no_host == []
        assert (
            spmd.get_sharding(y) is other.sharding((None, "a"), 2)
            and spmd.get_sharding(x) is sharding
        )
        twin = source.clone().requires_grad_()
        twin.sin().square().sum().backward()
        check(y, source.sin())
        check(x.grad, twin.grad)
        assert spmd.get_sharding(x.grad).devices == sharding.devices

    def test_the_gradient_comes_back_as_the_tensor_lay(self, mesh2x4: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh2x4, ("data", None)).requires_grad_()
        arrived = []
        y = spmd.reshard(x, P(None, "fsdp"))
        y.register_hook(lambda grad: arrived.append(spmd.get_sharding(grad)))
        (grad,) = torch.autograd.grad((y * 3).sum(), x)
        assert arrived == [None] and spmd.get_sharding(grad) is spmd.get_sharding(x)
        z = spmd.reshard(x, P(None, "fsdp"), gradient=False)
        (grad,) = torch.autograd.grad((z * 3).sum(), x)
        assert spmd.get_sharding(grad) is None and (grad == 3).all()

    def test_twice_differentiable(self, mesh8: Mesh) -> None:
        x = torch.arange(8.0).to("xla").requires_grad_()
        for made in (
            spmd.reshard(x, ("fsdp",), mesh8),
            spmd.torch_xla.mark_sharding_with_gradients(x, mesh8, ("fsdp",)),
        ):
            (first,) = torch.autograd.grad(made.pow(3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x)
            check(second, 6 * torch.arange(8.0))

    def test_what_may_be_resharded(self, mesh8: Mesh, mesh2x4: Mesh) -> None:
        """Host data, a view, a number, nothing, integers, a Sharding, a pending value without a
        mesh of its own."""
        base = torch.arange(64.0).view(8, 8)
        x = spmd.mark_sharding(base.to("xla"), mesh8, ("fsdp", None))
        made = {
            "host": (spmd.reshard(base.to("xla"), ("data", "fsdp"), mesh2x4), base),
            "view": (spmd.reshard(x.t()[2:], (None, "fsdp")), base.t()[2:]),
            "number": (spmd.reshard(x.sum(), ()), base.sum()),
            "empty": (spmd.reshard(x[:0], (None, "fsdp")), base[:0]),
            "integers": (spmd.reshard(base.long().to("xla"), ("data", 1), mesh2x4), base.long()),
            "a Sharding": (spmd.reshard(x, mesh2x4.sharding(("data", "fsdp"), 2)), base),
            "pending": (spmd.reshard((x + 1).exp().log(), (None, "fsdp")), base + 1),
            "on the host": (spmd.reshard(x, ("fsdp", None), memory_kind="pinned_host"), base),
            "left open": (spmd.reshard(x, (P.UNCONSTRAINED, "fsdp")), base),
        }
        spmd.sync()
        for name, (actual, expected) in made.items():
            assert actual.shape == expected.shape, name
            torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-5, msg=name)
        assert spmd.get_sharding(made["on the host"][0]).memory == "pinned_host"
        assert spmd.get_sharding(x).partition_spec(2) == ("fsdp", None)

    def test_inside_a_loop_of_the_program(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla"), mesh8, ("fsdp", None))

        def iteration(carry: torch.Tensor, _: object) -> tuple[torch.Tensor, torch.Tensor]:
            columns = spmd.reshard(carry * 2, (None, "fsdp"), mesh8)
            return spmd.reshard(columns, ("fsdp", None), mesh8), columns.sum()

        last, sums = spmd.scan(iteration, x, length=3)
        assert last.sum().item() == 8 * 64 and sums.tolist() == [128, 256, 512]


class TestErrors:
    """A value without a mesh, and one that does not fit, says so."""

    def test_no_mesh(self) -> None:
        with pytest.raises(
            ValueError, match=r"reshard: neither the tensor.*reshard\(tensor, spec, mesh\)"
        ):
            spmd.reshard(torch.ones(8, device="xla"), ("a",))

    def test_spec(self, mesh8: Mesh) -> None:
        x = torch.ones(8, 8, device="xla")
        with pytest.raises(
            ValueError, match=r"reshard: P\('fsdp'\) has 1 entries, but the tensor has 2 dims"
        ):
            spmd.reshard(x, P("fsdp"), mesh8)
        with pytest.raises(ValueError, match=r"(?s)reshard: axis 'fdsp' of .* did you mean 'fsdp'"):
            spmd.reshard(x, P("fdsp", None), mesh8)
        with pytest.raises(TypeError, match="reshard: expected a tensor on xla, got one on cpu"):
            spmd.reshard(torch.ones(2), ("fsdp",), mesh8)
        with pytest.raises(TypeError, match="reshard: a Sharding holds both the mesh and the spec"):
            spmd.reshard(x, P("fsdp", None), mesh8.sharding(("fsdp", None), 2))


def test_weights_for_sampling(no_host: list[tuple[int, ...]]) -> None:
    """From a trainer's FSDP to a sampler's tensor parallelism after a step: equal bits, and none by
    the host."""
    model: Any = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    mesh = Mesh(range(8), (8,), ("fsdp",))
    trained = fsdp.fully_shard(copy.deepcopy(model).to("xla"), mesh=mesh)
    sampler, grid = model.to("xla"), Mesh(range(8), (2, 4), ("data", "tensor"))
    rules = spmd.ShardingRules(
        {"0.weight": P("tensor", None), "0.bias": P("tensor"), "2.weight": P(None, "tensor")}
    )
    rules.apply(sampler, grid)
    optimizer = torch.optim.AdamW(trained.parameters(), 0.1)
    trained(torch.ones(8, 16, device="xla")).square().mean().backward()
    optimizer.step()
    spmd.sync()
    no_host.clear()
    with torch.no_grad():
        for mine, theirs in zip(sampler.parameters(), trained.parameters(), strict=True):
            sharding = spmd.get_sharding(mine)
            mine.copy_(theirs if sharding is None else spmd.reshard(theirs, sharding))
    spmd.sync()
    assert no_host == []
    for mine, theirs in zip(sampler.parameters(), trained.parameters(), strict=True):
        assert torch.equal(mine.cpu().view(torch.uint8), theirs.cpu().view(torch.uint8))
    assert spmd.get_sharding(sampler[0].weight) is grid.sharding(("tensor", None), 2)
