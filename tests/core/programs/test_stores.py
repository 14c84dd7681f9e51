"""Leaves as rows of stores: programs that take and give families as one array each, and all that a
user sees of it, which is nothing."""

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from alike import WHERE, alike, ungrouped
from stacking import LAYERS, Layers, leaf, live_bytes
from support import check, distinct
from torch import nn

import fsdp
import spmd
from spmd.core.graph.graph import DeviceData
from spmd.core.graph.meta import dense_meta
from spmd.core.graph.store import Store
from spmd.core.run.pjrt import transfer

FSDP = fsdp.FullyShardedDataParallel
WIDTH = 16
pytestmark = pytest.mark.usefixtures("stores")


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
        self.wrapped = (
            self.model if mesh is None else FSDP(self.model, mesh=mesh, auto_wrap_policy=POLICY)
        )
        self.optimizers = [
            torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (self.model, self.twin)
        ]

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
        """All state is overwritten in place, as without stores, and no step after the first makes a
        stack."""
        pair = Pair(mesh8)
        counts = []
        for seed in range(4):
            pair.step(seed)
            counts.append(spmd.metrics.num_compiles())
        pair.check()
        assert counts[1:] == counts[1:2] * 3
        stacked = spmd.metrics.compiles()[-1]
        assert f"{18 * LAYERS} of" in stacked.cause and "rows of 12 stores" in stacked.cause
        monkeypatch.setattr(*WHERE, ungrouped)
        Pair(mesh8).step()
        plain = spmd.metrics.compiles()[-1]
        assert stacked.alias_bytes == plain.alias_bytes > 0
        assert stacked.argument_bytes == plain.argument_bytes


class TestShapes:
    """Whatever its shape, dtype and layout, a value can be a row."""

    @pytest.mark.parametrize(
        "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64]
    )
    def test_dtypes(self, dtype: torch.dtype, mesh8: spmd.Mesh) -> None:
        self.is_trained(Layers(mesh8, 8, 2, dtype=dtype))

    @pytest.mark.parametrize("shape", [(13, 3), (3, 5), (2,)])
    def test_uneven_dims(self, shape: tuple[int, ...], mesh8: spmd.Mesh) -> None:
        """A dim that the mesh does not divide is padded in the store as in a row."""
        layers = Layers(mesh8, *shape)
        self.is_trained(layers)
        (store,) = layers.stores()
        assert store.buffer.shape == (LAYERS, -(-shape[0] // 8) * 8, *shape[1:])

    def test_scalars(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(*WHERE, partial(alike, least=1))
        self.is_trained(Layers(None))

    def test_on_one_device(self) -> None:
        self.is_trained(Layers(None, 4, 2))

    def test_in_the_memory_of_the_host(self, mesh8: spmd.Mesh) -> None:
        """A store lies in the memory that its rows lie in."""
        sharding = mesh8.sharding(("fsdp", None), 2, "test")
        sharding = sharding.with_spec(sharding.spec, "pinned_host")
        values = [distinct(16, 4) for _ in range(3)]
        leaves = [
            DeviceData(
                dense_meta((16, 4), torch.float32),
                buffer=transfer.upload(value.numpy(), sharding),
                sharding=sharding,
            )
            for value in values
        ]
        store = Store.of(leaves, sharding)
        assert store.buffer.sharding.memory_kind == "pinned_host"
        alone = DeviceData(leaves[0].meta, buffer=leaves[0].placed()[0], sharding=sharding)
        leaves[1] = alone
        store.put(1, alone)
        for one, value in zip(leaves, [values[0], values[0], values[2]], strict=True):
            buffer, _ = one.placed()
            assert buffer.sharding.memory_kind == "pinned_host"
            assert (np.asarray(buffer) == value.numpy()).all()

    def test_on_another_order_of_the_devices(self) -> None:
        """Several meshes that meet, with devices in another order than the program's."""
        layers = Layers(spmd.Mesh([3, 1, 2, 0, 7, 6, 5, 4], (8,), ("fsdp",)), 16, 4)
        other = spmd.mark_sharding(
            torch.ones(16).to("xla"), spmd.Mesh(range(8), (2, 4), ("a", "b")), ("b",)
        )
        spmd.sync()
        for seed in range(3):
            other.add_(seed)
            layers.layers[0].mul_(other[0])
            layers.twins[0].mul_([1, 2, 4][seed])
            layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()

    def is_trained(self, layers: Layers) -> None:
        for _ in range(3):
            layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()


class TestReading:
    """A row is read as a tensor that has a buffer of its own."""

    def test_its_values(self, layers: Layers, calls: Any) -> None:
        one, other = layers.layers[2], layers.twins[2]
        assert one.tolist() == other.tolist() and one[3, 1].item() == other[3, 1].item()
        assert repr(one.data).startswith(repr(other).splitlines()[0])
        check(one + 1, other + 1)
        assert set(calls.since()) == {"row"} and layers.stores() == {leaf(one).store}

    def test_its_layout(self, layers: Layers) -> None:
        one, other = layers.layers[1], layers.twins[1]
        assert spmd.get_sharding(one).partition_spec(2) == ("fsdp", None)
        shards = spmd.local_shards(one)
        assert [shard.device for shard in shards] == list(range(8))
        check(torch.cat([shard.data for shard in shards]), other)

    def test_copies_are_not_kept(self, layers: Layers) -> None:
        before = live_bytes()
        total = layers.layers[1].sum() + layers.layers[3].sum()
        assert total.item() == (layers.twins[1].sum() + layers.twins[3].sum()).item()
        del total
        assert live_bytes() == before

    def test_a_program_that_reads_all_takes_the_store(self, layers: Layers, calls: Any) -> None:
        """Rolled or not: nothing is copied, before the program or by it."""
        total = sum(layer.square().sum() for layer in layers.layers)
        spmd.sync()
        assert calls.since() == {}
        assert "4 of 4 inputs are rows of 1 stores" in spmd.metrics.compiles()[-1].cause
        check(total, sum(twin.square().sum() for twin in layers.twins))

    def test_beside_a_barrier(self, layers: Layers) -> None:
        """Another thread's reads and steps that overwrite in place."""
        found, errors = [], []

        def read() -> None:
            try:
                for _ in range(30):
                    found.append(
                        sum(shard.data.sum() for shard in spmd.local_shards(layers.layers[1]))
                    )
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        while thread.is_alive():
            layers.step()
        thread.join()
        assert not errors
        total = layers.twins[1].sum()
        both = {total.item(), (-total + layers.twins[1].numel()).item()}
        assert {value.item() for value in found} <= both


class TestWriting:
    """A row is written as a tensor that has a buffer of its own, and is a row again when its family
    is next taken."""

    def joins_again(self, layers: Layers, calls: Any, place: int) -> None:
        """At the cost of one row."""
        assert leaf(layers.layers[place]).store is None and len(layers.stores()) == 2
        layers.check()
        calls.since()
        layers.step()
        assert calls.since() == {"with_row": 1}
        assert len(layers.stores()) == 1 and leaf(layers.layers[place]).row == place
        layers.check()

    def test_in_place(self, layers: Layers, calls: Any) -> None:
        for values in (layers.layers, layers.twins):
            values[2].mul_(3)
        spmd.sync()
        self.joins_again(layers, calls, 2)

    def test_through_data(self, layers: Layers, calls: Any) -> None:
        fresh = distinct(16, 4)
        layers.layers[0].data = fresh.to("xla")
        layers.twins[0] = fresh.clone()
        self.joins_again(layers, calls, 0)

    def test_copy(self, layers: Layers, calls: Any) -> None:
        fresh = distinct(16, 4)
        layers.layers[3].copy_(fresh)
        layers.twins[3].copy_(fresh)
        self.joins_again(layers, calls, 3)

    def test_a_state_dict(self, layers: Layers, calls: Any) -> None:
        """All rows are new data, and a new store."""
        state = {f"layers.{i}": distinct(16, 4) for i in range(LAYERS)}
        layers.load_state_dict(state)
        layers.twins = [value.clone() for value in state.values()]
        layers.check()
        calls.since()
        layers.step()
        assert calls.since() == {"stacked": 1}
        layers.check()

    def test_a_name_for_the_old_value(self, layers: Layers, calls: Any) -> None:
        """A copied row stays as it was."""
        kept = [layer.clone() for layer in layers.layers]
        old = [twin.clone() for twin in layers.twins]
        layers.step()
        layers.check()
        for one, other in zip(kept, old, strict=True):
            check(one, other)
        layers.step()
        layers.check()
        for one, other in zip(kept, old, strict=True):
            check(one, other)

    def test_another_layout(self, layers: Layers) -> None:
        """A row that is marked anew leaves the store."""
        mesh = spmd.Mesh(range(8), (8,), ("fsdp",))
        spmd.mark_sharding(layers.layers[1], mesh, (None, None))
        assert leaf(layers.layers[1]).store is None
        for _ in range(2):
            layers.step()
        layers.check()
        assert spmd.get_sharding(layers.layers[1]).is_replicated()
        spmd.mark_sharding(layers.layers[1], mesh, ("fsdp", None))
        for _ in range(2):
            layers.step()
        layers.check()
        assert len(layers.stores()) == 1 and None not in layers.stores()

    def test_one_is_frozen(
        self, layers: Layers, calls: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A row that a program reads and does not write comes out as it went in; the store is
        overwritten in place."""
        monkeypatch.setattr(*WHERE, ungrouped)
        for seed in range(3):
            for values in (layers.layers, layers.twins):
                total = sum(value.sum() for value in values)
                for i in (0, 1, 3):
                    values[i].add_(total * seed)
            spmd.sync()
            assert len(layers.stores()) == 1 and None not in layers.stores()
        assert calls.since() == {}
        assert spmd.metrics.compiles()[-1].alias_bytes == LAYERS * 16 * 4 * 4 // 8
        layers.check()
