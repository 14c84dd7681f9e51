"""`MpDeviceLoader` and `send_cpu_data_to_device`: batches on the device, by a spec for all or for
each key."""

import copy
import gc
import threading
import time
from argparse import Namespace
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from batches import Counting, has_no_threads, loader_threads
from support import run_script
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, TensorDataset
from transformers import BatchEncoding

import spmd
from spmd.torch_xla import ShardingSpec, xla_model
from spmd.torch_xla.parallel_loader import MpDeviceLoader, ParallelLoader

Pair = namedtuple("Pair", "x y")


@dataclass
class Sample:
    x: torch.Tensor
    name: str = "sample"


class TestSpecs:
    """input_sharding: one spec, cut or filled to each tensor's rank; or one by key."""

    def test_one(self, mesh2x4: spmd.Mesh) -> None:
        rows, labels = torch.arange(32.0).reshape(8, 4), torch.arange(8)
        images = torch.zeros(8, 2, 4)
        loader = MpDeviceLoader(
            [(rows, labels, images, 3)], input_sharding=ShardingSpec(mesh2x4, ("data", "fsdp"))
        )
        x, y, z, rest = next(iter(loader))
        assert (x.partition_spec, y.partition_spec) == (("data", "fsdp"), ("data",))
        assert z.partition_spec == ("data", "fsdp", None)
        assert x.local_shards[0].data.shape == (4, 1) and rest == 3
        assert torch.equal(x.cpu(), rows) and torch.equal(y.cpu(), labels)

    def test_by_key(self, mesh8: spmd.Mesh) -> None:
        batch = BatchEncoding({"x": torch.ones(8, 2), "y": torch.ones(3)})
        spec = ShardingSpec(mesh8, ("fsdp", None))
        made = next(iter(MpDeviceLoader([batch], "xla", input_sharding={"x": spec, "y": None})))
        assert type(made) is BatchEncoding and made["x"].partition_spec == ("fsdp", None)
        assert made["y"].device.type == "xla" and batch["x"].device.type == "cpu"

    def test_mistakes(self, mesh8: spmd.Mesh) -> None:
        spec = ShardingSpec(mesh8, ("fsdp",))
        with pytest.raises(ValueError, match="batches that are dicts"):
            next(iter(MpDeviceLoader([torch.ones(8)], input_sharding={"x": spec})))
        with pytest.raises(KeyError, match="none is of 'y'"):
            next(iter(MpDeviceLoader([{"y": torch.ones(8)}], input_sharding={"x": spec})))
        with pytest.raises(TypeError, match="misspelt"):
            MpDeviceLoader([], misspelt=1)
        with pytest.raises(ValueError, match="one logical device"):
            ParallelLoader([], ["xla:0", "xla:1"])

    def test_set_later(self, mesh8: spmd.Mesh) -> None:
        loader = MpDeviceLoader([torch.ones(8)])
        # as transformers does
        loader._parallel_loader_kwargs["input_sharding"] = ShardingSpec(mesh8, ("fsdp",))
        assert next(iter(loader)).partition_spec == ("fsdp",)


class TestLoop:
    """A sync before each batch and at the end; the loader's own attributes."""

    @pytest.mark.parametrize(("every", "syncs"), [(1, 4), (2, 3)])
    def test_syncs(self, every: int, syncs: int) -> None:
        loader = MpDeviceLoader([torch.ones(2)] * 3, batches_per_execution=every)
        pending = torch.ones(2, device="xla") + 1  # of the time before the loop
        seen: list[Any] = []
        with spmd.on_sync(seen.append):
            for batch in loader:
                pending = batch + 1
        assert len(seen) == syncs and spmd.residence(pending) == "devices"

    def test_of_a_data_loader(self) -> None:
        data = TensorDataset(torch.arange(6.0))
        loader = ParallelLoader(DataLoader(data, batch_size=2), ["xla"]).per_device_loader("xla")
        assert len(loader) == 3 and loader.dataset is data and loader.batch_size == 2
        assert [batch[0].tolist() for batch in loader] == [batch[0].tolist() for batch in loader]
        assert not hasattr(loader, "unheard_of")


class TestAhead:
    """The next batches are uploaded by a thread while the step runs; it ends with the iteration."""

    def test_runs_ahead(self, mesh8: spmd.Mesh) -> None:
        source = Counting()
        loader = MpDeviceLoader(
            source, device_prefetch_size=3, input_sharding=ShardingSpec(mesh8, ("fsdp",))
        )
        batches = iter(loader)
        assert source.pulled == 0 and not loader_threads()
        assert spmd.residence(next(batches)) == "devices"
        deadline = time.monotonic() + 10
        while source.pulled < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert source.pulled == 5  # one is out, three wait, one more is on the host
        assert copy.deepcopy(loader)._threads == []
        ParallelLoader.close(type("Parallel", (), {"_loader": loader})())  # type: ignore[arg-type]
        assert not loader_threads() and list(batches) == []

    @pytest.mark.parametrize("end", [lambda batches: None, next, lambda batches: batches.close()])
    def test_dropped(self, end: Callable[[Iterator[Any]], None]) -> None:
        batches = iter(MpDeviceLoader(Counting()))
        next(batches)
        assert loader_threads()
        end(batches)
        del batches
        gc.collect()
        assert has_no_threads()

    def test_break_and_again(self) -> None:
        """A source is not begun again while a thread of an earlier pass is inside it."""
        inside: list[int] = []

        class Slow:
            def __iter__(self) -> Iterator[torch.Tensor]:
                for _ in range(3):
                    inside.append(threading.get_ident())
                    time.sleep(0.05)
                    assert len(inside) == 1
                    inside.clear()
                    yield torch.ones(8)

        loader = MpDeviceLoader(Slow())
        for _ in loader:
            break
        assert len(list(loader)) == 3 and has_no_threads()

    def test_errors(self, mesh8: spmd.Mesh) -> None:
        def failing() -> Iterator[torch.Tensor]:
            yield torch.ones(8)
            raise LookupError("no more files")

        batches = iter(MpDeviceLoader(failing(), input_sharding=ShardingSpec(mesh8, ("fsdp",))))
        next(batches)
        with pytest.raises(LookupError, match="no more files"):
            next(batches)
        assert has_no_threads()

    def test_snapshots(self, mesh8: spmd.Mesh) -> None:
        rows = torch.zeros(8)

        def filling() -> Iterator[torch.Tensor]:
            for i in range(3):
                yield rows.fill_(i)

        for sharding in (None, ShardingSpec(mesh8, ("fsdp",))):
            found = list(MpDeviceLoader(filling(), input_sharding=sharding))
            assert [batch.tolist() for batch in found] == [[float(i)] * 8 for i in range(3)]

    def test_other_tensors(self, mesh8: spmd.Mesh) -> None:
        """A tensor in a graph of autograd's stays in it; one of other lengths is left to the
        programs, which pad."""
        weight = torch.ones(8, requires_grad=True)
        (batch,) = MpDeviceLoader([weight * 2], input_sharding=ShardingSpec(mesh8, ("fsdp",)))
        batch.sum().backward()
        assert weight.grad is not None and weight.grad.tolist() == [2.0] * 8
        marked = torch.ones(8, 3)
        torch._dynamo.mark_dynamic(marked, 1)
        (batch,) = MpDeviceLoader([marked])
        assert spmd.residence(batch) == "pending"  # data that its program pads
        texts = [torch.ones(8, length) for length in (3, 5, 3)]
        loader = MpDeviceLoader(texts, input_sharding=ShardingSpec(mesh8, ("fsdp",)))
        assert [spmd.residence(text) for text in loader] == ["devices", "host", "host"]
        rows = [torch.ones(8, 3), torch.ones(5, 3)]
        assert [
            spmd.residence(each) for each in MpDeviceLoader(rows, input_sharding=loader_spec(mesh8))
        ] == ["devices", "devices"]

    def test_one_device(self) -> None:
        """Without a sharding a batch is uploaded where there is one device, and the mesh's programs
        take it."""
        found = run_script("""
            import torch, spmd
            from spmd.torch_xla.parallel_loader import MpDeviceLoader
            spmd.simulate(1)
            for batch in MpDeviceLoader([torch.ones(8, 2)] * 2):
                assert not isinstance(batch, spmd.torch_xla.XLAShardedTensor)
                print(spmd.residence(batch), (batch + 1).sum().item())
        """)
        assert found.split() == ["devices", "32.0"] * 2


def loader_spec(mesh: spmd.Mesh) -> ShardingSpec:
    return ShardingSpec(mesh, ("fsdp", None))


class TestStructures:
    """Structures come back as they were, with their tensors moved; those that were given stay."""

    def test_of_a_loader(self, mesh8: spmd.Mesh) -> None:
        packed = pack_sequence([torch.ones(2)])
        for data in (
            Pair(torch.ones(2, 2), 1),
            Sample(torch.ones(2, 2)),
            {"a": {"b": torch.ones(2)}},
        ):
            (made,) = MpDeviceLoader([data], input_sharding=loader_spec(mesh8))
            assert type(made) is type(data) and "xla" in str(made) and "xla" not in str(data)
        (made,) = MpDeviceLoader([packed])
        assert made.data.device.type == "xla" and made.batch_sizes.device.type == "cpu"

    @pytest.mark.parametrize(
        "data",
        [
            OrderedDict(x=torch.ones(2)),
            [torch.ones(2), "text"],
            (torch.ones(2), None),
            Pair(torch.ones(2), 1),
            Sample(torch.ones(2)),
            {"a": {"b": [torch.ones(2)]}},
            pack_sequence([torch.ones(2)]),
        ],
        ids=lambda data: type(data).__name__,
    )
    def test_there_and_back(self, data: Any) -> None:
        moved = xla_model.send_cpu_data_to_device(data, "xla")
        assert type(moved) is type(data) and moved is not data
        back = xla_model.to_cpu(moved)
        one, other = (
            (part.data if isinstance(part, PackedSequence) else part) for part in (back, data)
        )
        assert str(one) == str(other)
        assert "xla" in str([moved.data.device] if isinstance(moved, PackedSequence) else moved)
        assert "xla" not in str(data)

    def test_plain_objects(self, mesh8: spmd.Mesh, tmp_path: Path) -> None:
        """Tensors among their attributes move, in a copy; an object may name the one that it is
        in."""
        inner = Namespace(x=torch.arange(8.0), name="inner", rows={torch.ones(8)})
        batch = Namespace(inner=inner, number=3)
        inner.batch, text = batch, str(inner.x)
        (moved,) = MpDeviceLoader([batch], input_sharding=ShardingSpec(mesh8, ("fsdp",)))
        assert (
            type(moved) is Namespace
            and moved.inner.x.partition_spec == ("fsdp",)
            and moved.inner.batch.number == 3
        )
        assert (
            moved.number == 3
            and next(iter(moved.inner.rows)).device.type == "xla"
            and str(inner.x) == text
        )
        sent = xla_model.send_cpu_data_to_device([batch], "xla")[0]
        assert sent.inner.x.device.type == "xla" and inner.x.device.type == "cpu"
        del sent.inner.batch
        xla_model.save(sent, tmp_path / "a.pt")
        assert (
            torch.load(tmp_path / "a.pt", weights_only=False).inner.x.tolist() == inner.x.tolist()
        )
        assert sent.inner.x.device.type == "xla"

    def test_saved(self, tmp_path: Any) -> None:
        state = {"weight": torch.ones(2, device="xla"), "step": 3}
        xla_model.save(state, tmp_path / "a.pt")
        assert torch.load(tmp_path / "a.pt")["weight"].tolist() == [1, 1]
        assert state["weight"].device.type == "xla"
