"""`MpDeviceLoader` and `send_cpu_data_to_device`: batches on the device, by a spec for all or for each key."""

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
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
        loader = MpDeviceLoader([(rows, labels, images, 3)], input_sharding=ShardingSpec(mesh2x4, ("data", "fsdp")))
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
        loader._parallel_loader_kwargs["input_sharding"] = ShardingSpec(mesh8, ("fsdp",))  # as transformers does
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


class TestStructures:
    """Structures come back as they were, with their tensors moved; those that were given stay."""

    @pytest.mark.parametrize(
        "data",
        [
            OrderedDict(x=torch.ones(2)), [torch.ones(2), "text"], (torch.ones(2), None), Pair(torch.ones(2), 1),
            Sample(torch.ones(2)), {"a": {"b": [torch.ones(2)]}}, pack_sequence([torch.ones(2)]),
        ],
        ids=lambda data: type(data).__name__,
    )  # fmt: skip
    def test_there_and_back(self, data: Any) -> None:
        moved = xla_model.send_cpu_data_to_device(data, "xla")
        assert type(moved) is type(data) and moved is not data
        back = xla_model.to_cpu(moved)
        one, other = ((part.data if isinstance(part, PackedSequence) else part) for part in (back, data))
        assert str(one) == str(other)
        assert "xla" in str([moved.data.device] if isinstance(moved, PackedSequence) else moved)
        assert "xla" not in str(data)

    def test_saved(self, tmp_path: Any) -> None:
        state = {"weight": torch.ones(2, device="xla"), "step": 3}
        xla_model.save(state, tmp_path / "a.pt")
        assert torch.load(tmp_path / "a.pt")["weight"].tolist() == [1, 1]
        assert state["weight"].device.type == "xla"
