"""`torch.distributed.checkpoint` of sharded tensors: a chunk for each piece, read into any other
layout."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import spmd
from spmd.names.torch_xla import distributed_checkpoint as checkpoint

# it says so of a single process
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

LAYOUTS = {
    "8": ((8,), ("a",), ("a", None)),
    "8 columns": ((8,), ("a",), (None, "a")),
    "2x4": ((2, 4), ("a", "b"), ("b", "a")),
    "2x4 joined": ((2, 4), ("a", "b"), (None, ("b", "a"))),
    "4": ((4,), ("a",), ("a", None)),
    "1": ((1,), ("a",), ("a", None)),
}


def resharded(tensor: torch.Tensor, name: str) -> torch.Tensor:
    shape, axes, spec = LAYOUTS[name]
    return spmd.mark_sharding(
        tensor, spmd.Mesh(range(torch.Size(shape).numel()), shape, axes), spec
    )


def save(state: dict[str, torch.Tensor], path: Path) -> None:
    dcp.save(state, checkpoint_id=path, no_dist=True)


def load(state: dict[str, torch.Tensor], path: Path) -> None:
    dcp.load(state, checkpoint_id=path, no_dist=True)


def chunks(path: Path, name: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    found = dcp.FileSystemReader(path).read_metadata().state_dict_metadata[name]
    return sorted((tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in found.chunks)


@pytest.mark.parametrize("saved", LAYOUTS)
@pytest.mark.parametrize("loaded", [*LAYOUTS, None])
class TestLayouts:
    """Saved as it lies on one mesh, loaded as it is to lie on another, or into a CPU tensor; no
    program is compiled."""

    def test_same(self, saved: str, loaded: str | None, tmp_path: Path) -> None:
        whole = {"even": torch.randn(16, 8), "uneven": torch.randn(10, 6)}
        before = spmd.metrics.num_compiles()
        save({name: resharded(value.to("xla"), saved) for name, value in whole.items()}, tmp_path)
        state = {name: torch.zeros_like(value) for name, value in whole.items()}
        if loaded is not None:
            state = {name: resharded(value.to("xla"), loaded) for name, value in state.items()}
        load(state, tmp_path)
        assert all(torch.equal(state[name].cpu(), value) for name, value in whole.items())
        assert spmd.metrics.num_compiles() == before
        if loaded is not None:
            assert torch.equal((state["uneven"] * 2).cpu(), whole["uneven"] * 2)


class TestSaved:
    """The values of a checkpoint, which are those of when it was saved."""

    def test_chunks(self, tmp_path: Path) -> None:
        """A piece that several devices hold is written once, a piece of padding alone never."""
        state = {
            "rows": resharded(torch.zeros(10, 6).to("xla"), "8"),
            "both": resharded(torch.zeros(8, 6).to("xla"), "2x4"),
            "whole": spmd.mark_sharding(
                torch.zeros(4, device="xla"), spmd.Mesh(range(8), (8,), ("a",)), (None,)
            ),
            "one": torch.ones((), device="xla") * 3,
        }
        save(state, tmp_path)
        assert chunks(tmp_path, "rows") == [((start, 0), (2, 6)) for start in range(0, 10, 2)]
        assert chunks(tmp_path, "both") == [
            ((row, column), (2, 3)) for row in range(0, 8, 2) for column in (0, 3)
        ]
        assert chunks(tmp_path, "whole") == [((0,), (4,))] and chunks(tmp_path, "one") == [((), ())]

    def test_pending_views_and_empty(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(16.0, device="xla"), mesh8, ("fsdp",)) + 1
        state = {
            "pending": x,
            "view": x.view(4, 4).t()[1],
            "empty": torch.empty(0, 3, device="xla"),
            "number": 3,
        }
        save(state, tmp_path)
        found = {
            "pending": torch.zeros(16, device="xla"),
            "view": torch.zeros(8, device="xla")[::2],
            "empty": torch.empty(0, 3, device="xla"),
            "number": 0,
        }
        load(found, tmp_path)
        assert found["pending"].tolist() == [*range(1, 17)] and found["view"].tolist() == [
            2.0,
            6.0,
            10.0,
            14.0,
        ]
        assert found["number"] == 3

    def test_without_this_library(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        """Its own tools make of it a file of torch.save with plain tensors."""
        layer = nn.Linear(8, 16).to("xla")
        spmd.mark_sharding(layer.weight, mesh8, ("fsdp", None))
        save(layer.state_dict(), tmp_path / "dcp")
        dcp_to_torch_save(tmp_path / "dcp", tmp_path / "all.pt")
        state = torch.load(tmp_path / "all.pt")
        assert type(state["weight"]) is torch.Tensor and state["weight"].device.type == "cpu"
        assert torch.equal(state["weight"], layer.weight.detach().cpu())

    @pytest.mark.parametrize(
        "dtype", [torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn], ids=str
    )
    def test_dtypes(self, dtype: torch.dtype, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        whole = (torch.arange(16) % 3).to(dtype)
        save({"x": spmd.mark_sharding(whole.to("xla"), mesh8, ("fsdp",))}, tmp_path)
        state = {"x": spmd.mark_sharding(torch.zeros(16, device="xla").to(dtype), mesh8, ("fsdp",))}
        load(state, tmp_path)
        assert torch.equal(state["x"].cpu().float(), whole.float())

    def test_async_save(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        """A write of the program into the tensors meanwhile is not saved."""
        x = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh8, ("fsdp",))
        with torch.no_grad():
            saving = dcp.async_save({"x": x}, checkpoint_id=tmp_path, no_dist=True)
            x.zero_()
            spmd.sync()
        saving.result()
        load({"x": x}, tmp_path)
        assert x.tolist() == [*range(16)]


class TestLoaded:
    """The tensors stay what they are; a load that fails leaves no trace."""

    def test_in_place(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        save({"weight": torch.eye(8)}, tmp_path)
        layer = nn.Linear(8, 8, bias=False, device="xla")
        spmd.mark_sharding(layer.weight, mesh8, ("fsdp", None))
        optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
        load(layer.state_dict(), tmp_path)
        layer(torch.ones(1, 8, device="xla")).sum().backward()
        optimizer.step()
        assert torch.equal(layer.weight.detach().cpu(), torch.eye(8) - 1)
        assert spmd.get_sharding(layer.weight).text(2).startswith("{devices=[8,1]")

    def test_failed(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        x = spmd.mark_sharding(torch.arange(16.0).to("xla"), mesh8, ("fsdp",))
        save({"x": x}, tmp_path / "good")
        (tmp_path / "bad").mkdir()
        for file in (tmp_path / "good").iterdir():
            data = file.read_bytes()
            (tmp_path / "bad" / file.name).write_bytes(
                data if file.name == ".metadata" else b"\0" * len(data)
            )
        with pytest.raises(dcp.CheckpointException):
            load({"x": x}, tmp_path / "bad")
        assert x.tolist() == [*range(16)]
        save({"x": x}, tmp_path / "again")
        x.zero_()
        load({"x": x}, tmp_path / "again")
        assert x.tolist() == [*range(16)]

    def test_size(self, tmp_path: Path, mesh8: spmd.Mesh) -> None:
        save({"x": torch.ones(16)}, tmp_path)
        x = spmd.mark_sharding(torch.zeros(8, device="xla"), mesh8, ("fsdp",))
        with pytest.raises(dcp.CheckpointException, match="Size mismatch"):
            load({"x": x}, tmp_path)

    def test_copy_of_itself(self) -> None:
        """A tensor that a load has written in place is loaded again by `load_state_dict`: that
        records nothing."""
        layer = nn.Linear(4, 4).to("xla")
        spmd.sync()
        before, compiled = layer.weight.detach().cpu(), spmd.metrics.num_compiles()
        layer.load_state_dict(layer.state_dict())
        spmd.sync()
        assert (
            torch.equal(layer.weight.detach().cpu(), before)
            and spmd.metrics.num_compiles() == compiled
        )


class TestShardsOnTheCpu:
    """A state dict of PyTorch/XLA's `_sharded_cpu_state_dict`: chunks of shards, not of tensors."""

    @pytest.mark.parametrize("layout", ["8", "2x4 joined", "4"])
    def test_saved(self, layout: str, tmp_path: Path) -> None:
        source = torch.arange(7 * 8.0).view(7, 8)
        state = {"x": resharded(source.to("xla"), layout), "model": {"y": torch.ones(3).to("xla")}}
        on_cpu = checkpoint.sharded_cpu_state_dict(state)
        assert isinstance(on_cpu["x"], checkpoint.CpuShards)
        assert on_cpu["model"]["y"].device.type == "cpu"
        assert sum(one.unpadded_data.numel() for one in on_cpu["x"].shards) == source.numel()
        state["x"].zero_()
        planner = checkpoint.SPMDSavePlanner()
        dcp.save(on_cpu, checkpoint_id=tmp_path, planner=planner, no_dist=True)
        assert [*planner.sharded_state_dict] == ["x"]
        assert [*planner.unsharded_state_dict] == ["model.y"]
        target = {"x": resharded(torch.zeros(7, 8).to("xla"), "8 columns")}
        dcp.load(target, checkpoint_id=tmp_path, planner=checkpoint.SPMDLoadPlanner(), no_dist=True)
        assert torch.equal(target["x"].cpu(), source)
