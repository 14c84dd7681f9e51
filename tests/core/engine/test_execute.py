"""Schedules: pieces on several meshes, and what each of them donates."""

import jax
import torch
from support import check

import spmd
from spmd import Mesh

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
        assert len(set(held)) == 1
        check(left, torch.full((SIZE,), 4.0))
        check(right, torch.full((SIZE,), -4.0))

    def test_what_crosses_is_read_before_it_is_overwritten(self) -> None:
        """The other mesh reads the old value and the new one; both states are donated all the same."""
        x, y = torch.arange(float(SIZE)), torch.ones(SIZE)
        left, right = on(LEFT, x), on(RIGHT, y)
        spmd.sync()
        for _ in range(3):
            old = left * 1
            left.mul_(0.5)
            right.add_(spmd.mark_sharding(left + 0, RIGHT, ("a",)) + spmd.mark_sharding(old, RIGHT, ("a",)))
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
        """What one mesh makes for another, and nobody holds, becomes the other's result."""
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
            for layer, mesh, optimizer in zip((first, second), (LEFT, RIGHT), optimizers, strict=True):
                optimizer.zero_grad()
                x = spmd.mark_sharding(torch.ones(4, 8).to("xla"), mesh, ("a", None))
                layer(x).square().mean().backward()
                optimizer.step()
            before = len(spmd.metrics.compiles())
            spmd.sync()
            compiles.append([record.name for record in spmd.metrics.compiles()[before:]])
        assert "init" in compiles[0] and compiles[1:] == [[], []], compiles
