"""Several meshes over the same devices in one program: other names, shapes and device orders."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from spmd import Mesh

ALL = range(8)
MESHES = {
    "other names": Mesh(ALL, (8,), ("rows",)),
    "two axes": Mesh(ALL, (2, 4), ("data", "model")),
    "two axes, transposed": Mesh(ALL, (4, 2), ("x", "y")),
    "three axes": Mesh(ALL, (2, 2, 2), ("a", "b", "c")),
    "reversed": Mesh(range(7, -1, -1), (8,), ("r",)),
    "any order": Mesh([0, 3, 1, 2, 7, 5, 6, 4], (4, 2), ("p", "q")),
}


def last() -> spmd.metrics.CompileRecord:
    return spmd.metrics.compiles()[-1]


def marked(tensor: torch.Tensor, mesh: Mesh, *, transposed: bool = False) -> torch.Tensor:
    """On the mesh, its first dim over the first axis, its second over the last of several."""
    axes = mesh.axis_names
    spec = [axes[0], axes[-1] if len(axes) > 1 else None]
    return spmd.mark_sharding(tensor.to("xla"), mesh, spec[::-1] if transposed else spec)


class TestOneProgram:
    """Values on any meshes over the same devices meet in one program, and each keeps its layout."""

    @pytest.mark.parametrize("other", MESHES)
    def test_two_meshes(self, other: str, mesh8: Mesh) -> None:
        x, w = torch.randn(16, 8), torch.randn(8, 16)
        before = spmd.metrics.num_compiles()
        one, two = marked(x, mesh8), marked(w, MESHES[other], transposed=True)
        product = spmd.mark_sharding(one @ two, MESHES[other], (MESHES[other].axis_names[-1], None))
        total = product.sum()
        spmd.sync()
        assert spmd.metrics.num_compiles() - before == 1
        check(product, x @ w)
        check(total, (x @ w).sum())
        assert spmd.get_sharding(product).mesh_axes() == MESHES[other].shape()
        for shard in spmd.local_shards(product):
            assert torch.equal(shard.data, product.cpu()[shard.indices])
        assert len({shard.indices[0].start for shard in spmd.local_shards(product)}) > 1

    def test_unrelated_values_at_one_barrier(self, mesh8: Mesh) -> None:
        given = torch.arange(64.0).view(8, 8)
        made = [marked(given, mesh) * 2 for mesh in (mesh8, *MESHES.values())]
        before = spmd.metrics.num_compiles()
        spmd.sync()
        assert spmd.metrics.num_compiles() - before == 1
        for value, mesh in zip(made, (mesh8, *MESHES.values()), strict=True):
            check(value, given * 2)
            assert spmd.get_sharding(value).is_as(spmd.get_sharding(marked(given, mesh)), 2)

    @pytest.mark.parametrize("other", ["two axes", "reversed", "any order"])
    def test_state_on_two_meshes_is_updated_in_place(self, other: str, mesh8: Mesh) -> None:
        """The same program each turn; what each mesh holds is donated and stays where it is."""
        first, second = torch.randn(8, 8), torch.randn(8, 8)
        p, q = marked(first, mesh8), marked(second, MESHES[other])
        first, second = first.clone(), second.clone()
        before = spmd.metrics.num_compiles()
        for _ in range(4):
            for a, b in ((p, q), (first, second)):
                a.mul_(0.5).add_(b.t())
                b.add_(a.flip(0) * 0.1)
            spmd.sync()
            check(p, first)
            check(q, second)
        assert spmd.metrics.num_compiles() - before == 1
        assert last().alias_bytes == 2 * 8 * 8 * 4 // 8

    def test_gradients(self, mesh8: Mesh) -> None:
        x, w = torch.randn(16, 8), torch.randn(8, 24)
        grads = []
        for move in (lambda t, mesh: t.clone(), lambda t, mesh: marked(t, mesh).detach()):
            a, b = move(x, mesh8).requires_grad_(), move(w, MESHES["any order"]).requires_grad_()
            (a @ b).tanh().square().sum().backward()
            grads.append((a.grad, b.grad))
        for one, two in zip(*grads, strict=True):
            check(two, one)

    def test_uneven_dims(self, mesh8: Mesh) -> None:
        x = torch.randn(13, 5)
        one, two = marked(x, mesh8), marked(x, MESHES["any order"])
        two.add_(one)
        spmd.sync()
        check(two * one, x * 2 * x)
        assert spmd.get_sharding(two).shard_shape((13, 5)) == (4, 3)

    def test_axes_without_a_common_factor(self) -> None:
        """Two and three by three and two: no grid of axes holds both, but a reordering of the
        devices does."""
        one, two = Mesh(range(6), (2, 3), ("a", "b")), Mesh(range(6), (3, 2), ("c", "d"))
        x = torch.randn(6, 6)
        y = marked(x, one) @ marked(x, two)
        check(y, x @ x)

    def test_fsdp_on_one_mesh_and_its_input_on_another(self, mesh8: Mesh) -> None:
        losses: list[list[float]] = []
        x = torch.randn(16, 8)
        for on_device in (False, True):
            torch.manual_seed(0)
            model: Any = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
            batch = x
            if on_device:
                model = fsdp.FullyShardedDataParallel(
                    model.to("xla"), mesh=mesh8, auto_wrap_policy=fsdp.always_wrap_policy
                )
                batch = marked(x, MESHES["two axes"])
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            losses.append([])
            for _ in range(3):
                optimizer.zero_grad()
                loss = (model(batch) - batch).square().mean()
                loss.backward()
                optimizer.step()
                losses[-1].append(loss.item())
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)

    def test_a_jax_function_that_calls_the_host(self, mesh8: Mesh) -> None:
        """Ops that jax allows only where the whole program names one mesh."""

        def twice(a: jax.Array) -> jax.Array:
            return jax.pure_callback(
                lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(a.shape, a.dtype), a
            )

        x = torch.randn(8, 8)
        y = spmd.call_jax(twice, marked(x, mesh8)) + marked(x, MESHES["any order"])
        check(y, x * 3)

    def test_stablehlo_names_every_layout(self, mesh8: Mesh) -> None:
        x = marked(torch.ones(8, 8), mesh8) + marked(torch.ones(8, 8), MESHES["reversed"])
        text = spmd.get_stablehlo()
        if spmd.config.partitioner == "gspmd":
            assert "{devices=[8,1]<=[8]}" in text and "{devices=[8,1]7,6,5,4,3,2,1,0}" in text
        else:
            assert "device_ids=[7, 6, 5, 4, 3, 2, 1, 0]" in text
        del x


class TestMarkedAgain:
    """Marking data again with a layout that is the same on each device moves nothing; no buffer has
    two names."""

    def test_an_equal_layout(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.zeros(4096, device="xla") + 0, mesh8, ("fsdp",))
        spmd.sync()
        y = x + 1
        spmd.mark_sharding(x, MESHES["two axes"], (("data", "model"),))
        x.add_(10)
        spmd.sync()
        assert x.unique().tolist() == [10.0] and y.unique().tolist() == [1.0]
        assert spmd.get_sharding(x).mesh_axes() == MESHES["two axes"].shape()

    def test_another_layout_while_it_is_read(self, mesh8: Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(64.0).to("xla") + 0, mesh8, ("fsdp",))
        spmd.sync()
        y = x * 2
        spmd.mark_sharding(x, mesh8, (None,))
        x.add_(10)
        spmd.sync()
        assert y.tolist() == [2.0 * i for i in range(64)] and x.tolist() == [
            i + 10.0 for i in range(64)
        ]

    def test_a_move_never_shares_memory(self) -> None:
        """From one device to all: the first device's copy is a copy, for both values are written in
        place."""
        x = torch.arange(16.0).to("xla") + 0
        spmd.sync()
        kept = x.detach().clone()
        spmd.sync()
        spmd.mark_sharding(x, MESHES["reversed"], (None,))
        for _ in range(2):
            x.add_(1)
            kept.mul_(2)
            spmd.sync()
        assert x.tolist() == [i + 2.0 for i in range(16)] and kept.tolist() == [
            4.0 * i for i in range(16)
        ]

    def test_a_pending_value(self, mesh8: Mesh) -> None:
        """The later annotation is the one that counts, also for what was computed in between."""
        x = spmd.mark_sharding(torch.ones(8, 8).to("xla") * 2, mesh8, ("fsdp", None))
        y = x + 1
        spmd.mark_sharding(x, mesh8, (None, "fsdp"))
        calls = [x for x in spmd.get_stablehlo().splitlines() if "custom_call @Sharding" in x]
        # Shardy has no such call; that of a replicated input is none of these annotations.
        assert sum("replicated" not in call for call in calls) == (1 if calls else 0)
        assert y.sum().item() == 192 and spmd.get_sharding(x).partition_spec(2) == (None, "fsdp")


class TestResultsWithoutAxes:
    """A result that the compiler lays out as the mesh's axes cannot say stays as it is, by one
    compile."""

    @pytest.mark.parametrize(
        "function",
        [lambda x: x.flip(0) * 2, lambda x: x.flip(0) + x.flip(0).flip(1)],
        ids=["flip", "flips"],
    )
    def test_reversed(self, function: Callable[[torch.Tensor], torch.Tensor], mesh8: Mesh) -> None:
        given = torch.randn(16, 3)
        x = marked(given, mesh8)
        before = (spmd.metrics.num_compiles(), len(spmd.metrics.compiles()))
        y = function(x)
        spmd.sync()
        assert (spmd.metrics.num_compiles(), len(spmd.metrics.compiles())) == (
            before[0] + 1,
            before[1] + 1,
        )
        check(y, function(given))
        y.add_(x)
        check(y, function(given) + given)

    def test_it_stays_split(self, mesh8: Mesh) -> None:
        x = marked(torch.randn(16, 3), mesh8).flip(0)
        spmd.sync()
        shards = spmd.local_shards(x)
        if spmd.config.partitioner == "gspmd":  # Shardy gives the result the input's order
            assert {tuple(shard.data.shape) for shard in shards} == {(2, 3)}
            assert [shard.indices[0].start for shard in shards] == list(range(14, -1, -2))

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize(
        "shape, sizes", [((1, 8), (4, 2)), ((1, 12), (2, 3)), ((6, 1), (2, 3)), ((1, 1, 8), (4, 2))]
    )
    @pytest.mark.parametrize(
        "function", [torch.maximum, torch.mul, torch.atan2], ids=lambda function: function.__name__
    )
    def test_tiles_of_no_axes(
        self,
        function: Callable[..., torch.Tensor],
        shape: tuple[int, ...],
        sizes: tuple[int, ...],
        partitioner: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """GSPMD cuts the first result in tiles [1, 2, 4] on a mesh of 4 x 2, which jax refuses to
        name; a marked result beside it keeps its axes, and the next program takes both."""
        monkeypatch.setattr(spmd.config, "partitioner", partitioner)
        given = torch.randn(*shape)
        mesh = Mesh(range(sizes[0] * sizes[1]), sizes, ("a", "b"))
        x = spmd.mark_sharding(given.to("xla"), mesh, (*(None,) * (len(shape) - 2), "a", "b"))
        y, transposed = (
            function(x, x.mT),
            spmd.mark_sharding(x + x.mT, mesh, (*(None,) * (len(shape) - 2), "b", "a")),
        )
        spmd.sync()
        assert spmd.get_sharding(transposed).partition_spec(len(shape))[-2:] == ("b", "a")
        check(y, function(given, given.mT))
        check(y @ transposed, function(given, given.mT) @ (given + given.mT))


@pytest.mark.parametrize("length", [1, 3, 5])
def test_uneven_data_goes_between_orders_of_devices(length: int) -> None:
    """Data whose padding differs is laid out anew on the same devices in another order."""
    meshes = [spmd.Mesh(range(4), (4,), ("x",)), spmd.Mesh((3, 1, 0, 2), (2, 2), ("x", "y"))]
    data = torch.arange(length).to("xla")
    spmd.mark_sharding(data, meshes[1], (("x", "y"),))
    spmd.sync()
    for mesh, spec in ((0, (None,)), (1, (("y", "x"),)), (0, ("x",)), (1, ("y",)), (0, (None,))):
        spmd.local_shards(data)  # on the devices by now
        spmd.mark_sharding(data, meshes[mesh], spec)
        assert data.tolist() == list(range(length))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_weights_go_from_a_trainer_to_a_sampler(
    monkeypatch: pytest.MonkeyPatch, partitioner: str
) -> None:
    """Each has half of the devices, and another layout; bits stay, after a step again."""
    monkeypatch.setattr(spmd.config, "partitioner", partitioner)
    trainer = Mesh(range(4), (4,), ("fsdp",))
    sampler = Mesh(range(4, 8), (2, 2), ("data", "tensor"))
    trained, sampled = (nn.Linear(16, 16, device="xla") for _ in range(2))
    spmd.ShardingRules({"weight": ("fsdp", None), "bias": ("fsdp",)}).apply(trained, trainer)
    spmd.ShardingRules({"weight": ("tensor", None), "bias": ("tensor",)}).apply(sampled, sampler)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=0.1)
    for _ in range(2):
        trained(
            spmd.mark_sharding(torch.randn(8, 16).to("xla"), trainer, ("fsdp", None))
        ).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        sampled.load_state_dict(trained.state_dict())
        x = torch.randn(8, 16)
        y = sampled(spmd.mark_sharding(x.to("xla"), sampler, ("data", None)))
        weights = [weight.detach().cpu() for weight in trained.parameters()]
        assert all(
            map(torch.equal, weights, (weight.detach().cpu() for weight in sampled.parameters()))
        )
        assert spmd.get_sharding(sampled.weight).mesh_axes() == sampler.shape()
        assert {shard.device for shard in spmd.local_shards(sampled.weight)} == {4, 5, 6, 7}
        check(y, nn.functional.linear(x, *weights))
