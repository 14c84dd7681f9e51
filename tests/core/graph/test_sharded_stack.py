"""A stack that is sharded over its rows: each row is read, written, saved and restored on the
devices where it lies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from alike import WHERE, alike
from stacking import Layers, leaf, live_bytes
from support import check, distinct

import spmd
from spmd.core.graph import store
from spmd.core.record.annotations import annotate

ROWS = 8


@pytest.fixture(params=["gspmd", "shardy"])
def partitioner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spmd.sync()
    monkeypatch.setattr(spmd.config, "partitioner", request.param)
    monkeypatch.setattr(*WHERE, alike)
    yield
    spmd.sync()


def layers_over(sizes: tuple[int, int], num: int = ROWS) -> Layers:
    """Rows over the first axis, each sharded over the second."""
    mesh = spmd.Mesh(range(8), sizes, ("stage", "fsdp"))
    layers = Layers(None, 16, 4, num=num)
    sharding = mesh.sharding(("fsdp", None), 2, "test")
    sharding = sharding.with_spec(sharding.spec._replace(stack=("stage",)))
    for layer in layers.layers:
        annotate(layer, sharding)
    layers.step()
    layers.step()
    return layers


@pytest.fixture(params=[(8, 1), (4, 2)], ids=str)
def layers(request: pytest.FixtureRequest, partitioner: None) -> Layers:
    return layers_over(request.param)


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is brought to the devices of other rows."""

    def refused(*args: object) -> None:
        raise AssertionError("a row was copied to all devices")

    monkeypatch.setattr(store, "_spread", refused)


def devices_of(layers: Layers, row: int) -> list[int]:
    mesh = leaf(layers.layers[row]).sharding
    assert mesh is not None
    stages, others = mesh.mesh_shape
    stage = row // (len(layers.layers) // stages)
    return list(range(stage * others, (stage + 1) * others))


def is_one_stack(layers: Layers) -> bool:
    return len(layers.stores()) == 1 and None not in layers.stores()


@pytest.mark.usefixtures("in_place")
class TestRows:
    """What is done with one row runs on its devices."""

    def test_a_device_holds_its_rows(self, layers: Layers) -> None:
        (stack,) = layers.stores()
        assert stack is not None and is_one_stack(layers)
        assert {shard.data.nbytes for shard in stack.buffer.addressable_shards} == {
            ROWS * 16 * 4 * 4 // 8
        }
        layers.check()

    def test_a_row_is_read(self, layers: Layers) -> None:
        for row, twin in enumerate(layers.twins):
            shards = spmd.local_shards(layers.layers[row])
            assert [shard.device for shard in shards] == devices_of(layers, row)
            check(torch.cat([shard.data for shard in shards]), twin)
            check(layers.layers[row], twin)
        assert is_one_stack(layers)

    def test_a_row_is_written(self, layers: Layers) -> None:
        """The stack keeps its other rows."""
        fresh = distinct(16, 4)
        layers.layers[5].copy_(fresh)
        layers.twins[5] = fresh.clone()
        for _ in range(2):
            layers.step()
        layers.check()
        assert is_one_stack(layers)

    def test_shards_of_a_row_are_loaded(self, layers: Layers) -> None:
        (stack,) = layers.stores()
        shards = spmd.local_shards(layers.layers[3])
        for shard in shards:
            shard.data = shard.data * 2
        spmd.load_local_shards_(layers.layers[3], shards)
        layers.twins[3].mul_(2)
        assert layers.stores() == {stack}
        layers.check()
        layers.step()
        layers.check()

    def test_saved_and_restored(self, layers: Layers, tmp_path: Path) -> None:
        """The stack stays: each row is read from it, and written into it."""
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(1, {"model": layers.state_dict()})
        twins = [twin.clone() for twin in layers.twins]
        layers.step()
        layers.step()
        (stack,) = layers.stores()
        before = live_bytes()
        manager.restore({"model": layers.state_dict()})
        assert layers.stores() == {stack} and live_bytes() == before
        layers.twins = twins
        layers.check()
        layers.step()
        layers.check()

    def test_a_state_dict(self, layers: Layers) -> None:
        """Host data is uploaded to the devices of its row alone."""
        before = live_bytes()
        state = {f"layers.{row}": distinct(16, 4) for row in range(ROWS)}
        layers.load_state_dict(state)
        layers.twins = [value.clone() for value in state.values()]
        layers.step()
        assert is_one_stack(layers) and live_bytes() == before
        layers.check()
        for row, value in layers.state_dict().items():
            check(value, layers.twins[int(row.split(".")[1])])

    def test_onto_another_number_of_stages(self, layers: Layers, tmp_path: Path) -> None:
        spmd.CheckpointManager(tmp_path).save(1, {"model": layers.state_dict()})
        for sizes in ((2, 4), (1, 8)):
            other = layers_over(sizes)
            spmd.CheckpointManager(tmp_path).restore({"model": other.state_dict()})
            other.twins = [twin.clone() for twin in layers.twins]
            other.step()
            other.step()
            other.check()


class TestPrograms:
    """A program takes all rows as they lie; of one that reads a row by itself, all devices get a
    copy."""

    def test_a_row_among_others(self, layers: Layers) -> None:
        check(layers.layers[1] + layers.layers[6], layers.twins[1] + layers.twins[6])
        assert is_one_stack(layers)

    def test_a_row_is_written(self, layers: Layers) -> None:
        for values in (layers.layers, layers.twins):
            values[2].mul_(3)
        spmd.sync()
        layers.check()
        layers.step()
        layers.check()
        assert is_one_stack(layers)

    def test_all_rows(self, layers: Layers) -> None:
        total = sum(layer.square().sum() for layer in layers.layers)
        check(total, sum(twin.square().sum() for twin in layers.twins))

    def test_uneven_rows(self, partitioner: None) -> None:
        """The last block is padded."""
        layers = layers_over((4, 2), num=7)
        for _ in range(3):
            layers.step()
        layers.check()
        assert is_one_stack(layers)

    def test_layers_are_scanned(self, partitioner: None, monkeypatch: pytest.MonkeyPatch) -> None:
        """A loop over a stack that is sharded over its rows computes what torch computes."""
        monkeypatch.undo()
        monkeypatch.setattr(spmd.config, "scan_layers", "always")
        mesh = spmd.Mesh(range(8), (4, 2), ("stage", "fsdp"))
        sharding = mesh.sharding(("fsdp", None), 2, "test")
        sharding = sharding.with_spec(sharding.spec._replace(stack=("stage",)))
        twins = [distinct(8, 8).div(64).requires_grad_() for _ in range(ROWS)]
        weights = [torch.nn.Parameter(twin.detach().to("xla")) for twin in twins]
        for weight in weights:
            annotate(weight, sharding)
        for values, device in ((weights, "xla"), (twins, "cpu")):
            optimizer = torch.optim.SGD(values, lr=0.01, momentum=0.9)
            for _ in range(3):
                x = torch.ones(4, 8, device=device)
                for value in values:
                    x = x + torch.tanh(x @ value)
                x.square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
        for weight, twin in zip(weights, twins, strict=True):
            torch.testing.assert_close(weight.detach().cpu(), twin.detach(), rtol=2e-4, atol=2e-5)
        (stack,) = {leaf(weight).store for weight in weights}
        assert stack is not None and {
            shard.data.shape for shard in stack.buffer.addressable_shards
        } == {(2, 4, 8)}
