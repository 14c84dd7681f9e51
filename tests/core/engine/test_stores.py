"""Leaves as rows of stores: programs that take and give families as one array each, and all that a user sees of it,
which is nothing."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from support import check
from torch import nn

import fsdp
import spmd
from spmd.core.compile import families
from spmd.core.engine import launch
from spmd.core.ir.graph import Graph, Leaf, origin

FSDP = fsdp.FullyShardedDataParallel
LAYERS, WIDTH = 4, 16


def alike(graph: Graph) -> Graph:
    """A family of all leaves that look and lie alike and are overwritten by results of like ops; the same of results
    that are written over nothing."""
    families, stacked = defaultdict(list), defaultdict(list)
    for i, leaf in enumerate(graph.leaves):
        if leaf.meta.numel > 1:
            root = None if graph.onto[i] is None else origin(graph.roots[graph.onto[i]])
            families[leaf.meta, graph.lies[i], None if root is None else root.entry.name].append(i)
    for i, root in enumerate(graph.roots):
        if i not in graph.onto and graph.pinned[i] is not None:
            stacked[root.meta, graph.pinned[i]].append(i)

    def several(groups: dict) -> tuple:
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    return dataclasses.replace(graph, families=several(families), stacked=several(stacked))


@pytest.fixture(autouse=True)
def stores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every program of a test takes its families as stacks."""
    monkeypatch.setattr(launch, "form", alike)
    yield
    spmd.sync()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 2 * WIDTH)
        self.outer = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


class Net(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


POLICY = partial(fsdp.transformer_auto_wrap_policy, transformer_layer_cls={Block})


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


class Pair:
    """A model on the device and its twin on the CPU, which are trained alike."""

    def __init__(self, mesh: spmd.Mesh | None = None) -> None:
        self.twin = net()
        self.model = net().to("xla")
        self.wrapped = self.model if mesh is None else FSDP(self.model, mesh=mesh, auto_wrap_policy=POLICY)
        self.optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (self.model, self.twin)]

    def step(self, seed: int = 0) -> None:
        torch.manual_seed(100 + seed)
        x = torch.randn(8, WIDTH)
        for model, optimizer, data in (
            (self.wrapped, self.optimizers[0], x.to("xla")),
            (self.twin, self.optimizers[1], x),
        ):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        spmd.sync()

    def check(self) -> None:
        for one, other in zip(self.model.parameters(), self.twin.parameters(), strict=True):
            check(one, other)
            if other.grad is not None:
                check(one.grad, other.grad)


def leaf(tensor: torch.Tensor) -> Leaf:
    value = tensor._cell.value
    assert type(value) is Leaf
    return value


class TestTraining:
    """A step whose state is rows of stores is the step that it was."""

    def test_on_one_device(self) -> None:
        pair = Pair()
        for seed in range(3):
            pair.step(seed)
        pair.check()
        weights = [block.inner.weight for block in pair.model.blocks]
        assert [leaf(weight).row for weight in weights] == list(range(LAYERS))
        assert len({id(leaf(weight).store) for weight in weights}) == 1

    def test_under_fsdp(self, mesh8: spmd.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
        """All state is overwritten in place, as without stores, and no step after the first makes a stack."""
        pair = Pair(mesh8)
        counts = []
        for seed in range(4):
            pair.step(seed)
            counts.append(spmd.metrics.num_compiles())
        pair.check()
        assert counts[1:] == counts[1:2] * 3
        stacked = spmd.metrics.compiles()[-1]
        assert f"{18 * LAYERS} of" in stacked.cause and "rows of 12 stores" in stacked.cause
        monkeypatch.setattr(launch, "form", families.none)
        Pair(mesh8).step()
        plain = spmd.metrics.compiles()[-1]
        assert stacked.alias_bytes == plain.alias_bytes > 0
        assert stacked.argument_bytes == plain.argument_bytes


class TestRows:
    """A row is read and written as a tensor that has its own buffer."""

    def test_one_is_read(self, mesh8: spmd.Mesh) -> None:
        pair = Pair(mesh8)
        pair.step()
        for one, other in zip(pair.model.blocks, pair.twin.blocks, strict=True):
            check(one.inner.weight, other.inner.weight)
            check(one.norm.bias * 2, other.norm.bias * 2)
        weight = pair.model.blocks[1].inner.weight
        store = leaf(weight).store
        assert spmd.get_sharding(weight).partition_spec(2) == ("fsdp", None)
        shards = spmd.local_shards(weight)
        check(torch.cat([shard.data for shard in shards]), pair.twin.blocks[1].inner.weight)
        assert leaf(weight).store is store

    def test_one_is_written_by_another_program(self, mesh8: spmd.Mesh) -> None:
        """It is a tensor by itself, and a row again when the family is next taken."""
        pair = Pair(mesh8)
        pair.step()
        for model in (pair.model, pair.twin):
            with torch.no_grad():
                model.blocks[2].inner.weight.mul_(0.5)
        spmd.sync()
        weight, others = pair.model.blocks[2].inner.weight, pair.model.blocks[0].inner.weight
        assert leaf(weight).store is None and leaf(others).store is not None
        check(weight, pair.twin.blocks[2].inner.weight)
        pair.step(1)
        pair.check()
        assert leaf(weight).row == 2 and leaf(weight).store is leaf(pair.model.blocks[0].inner.weight).store
