"""Files as PyTorch/XLA's FSDPv2 leaves them, in names and in pickles, read into models of ours."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import nn

import fsdp
import spmd
from spmd.torch_xla.distributed_checkpoint import SPMDLoadPlanner


class OnXla:
    """A tensor of PyTorch/XLA's device, as `torch.save` pickles it without `xm.save`."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        arguments = (self.value, self.value.dtype, "xla:0", False)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, arguments


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.Sequential(nn.BatchNorm1d(16), nn.Linear(16, 8, bias=False))
    )


def wrapped(state: dict[str, Any]) -> dict[str, Any]:
    """The names of a model of which the root and its second module are FSDPv2's, and one is
    checkpointed by torch."""
    longer = {
        name: name.replace("1.", "1._orig_module._checkpoint_wrapped_module.", 1) for name in state
    }
    return {f"_orig_module.{longer[name]}": value for name, value in state.items()}


def sharded() -> nn.Module:
    with torch.device("xla"):
        return fsdp.SpmdFullyShardedDataParallel(
            net(), mesh=spmd.Mesh(range(8), (8,), ("fsdp",)), auto_wrap_policy={nn.Sequential}
        )


MODELS = {
    "FSDPv2": sharded,
    "compiled": lambda: torch.compile(net().to("xla"), backend="eager"),
    "cpu": net,
}


def same(model: nn.Module, source: nn.Module) -> bool:
    names = {spmd.checkpoint.bare_name(name): value for name, value in model.state_dict().items()}
    return all(torch.equal(names[name].cpu(), value) for name, value in source.state_dict().items())


@pytest.mark.parametrize("name", MODELS)
class TestLoadCheckpoint:
    def test_formats(self, name: str, tmp_path: Path) -> None:
        source = net()
        state = wrapped(source.state_dict())
        torch.save({"model": state}, tmp_path / "moved.pt")  # xm.save
        torch.save(
            {"model": {name: OnXla(value) for name, value in state.items()}}, tmp_path / "device.pt"
        )
        save_file(state, tmp_path / "model.safetensors")
        torch.save(source.state_dict(), tmp_path / "plain.pt")
        for file, key in (
            ("moved.pt", "model"),
            ("device.pt", "model"),
            ("model.safetensors", None),
            ("plain.pt", None),
        ):
            model = MODELS[name]()
            assert not same(model, source)
            assert spmd.load_checkpoint(model, tmp_path / file, key=key) == ([], [])
            assert same(model, source), file


class TestStateDicts:
    """Loads by name, of torch and of the manager."""

    def test_load_state_dict(self) -> None:
        source, model = net(), sharded()
        model.load_state_dict(wrapped(source.state_dict()))
        assert same(model, source)

    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
    def test_distributed_checkpoint(self, tmp_path: Path) -> None:
        source = net()
        saved = {
            "model": wrapped(source.state_dict()),
            "optim": {"state": {"0": torch.ones(3)}},
            "step": 7,
        }
        dcp.save(saved, checkpoint_id=tmp_path)
        model = sharded()
        state = {"model": model.state_dict(), "optim": {"state": {"0": torch.zeros(3)}}, "step": 0}
        dcp.load(state, checkpoint_id=tmp_path, planner=SPMDLoadPlanner())
        assert (
            same(model, source)
            and state["step"] == 7
            and state["optim"]["state"]["0"].tolist() == [1.0] * 3
        )
        again = {"model": wrapped(net().state_dict())}  # the other way round, and the same names
        dcp.load(again, checkpoint_id=tmp_path, planner=SPMDLoadPlanner())
        assert all(
            torch.equal(again["model"][name], value) for name, value in saved["model"].items()
        )
        with pytest.raises(
            dcp.api.CheckpointException, match=r"Missing key in checkpoint state_dict: model\.2"
        ):
            dcp.load(
                {"model": {"2.weight": torch.ones(1)}},
                checkpoint_id=tmp_path,
                planner=SPMDLoadPlanner(),
            )

    def test_manager(self, tmp_path: Path) -> None:
        source, model = net(), sharded()
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"model": wrapped(source.state_dict())})
        manager.restore({"model": model.state_dict()})
        assert same(model, source)
        manager.save(1, {"model": torch.compile(sharded(), backend="eager")})
        manager.restore({"model": model}, 1)
        assert not same(model, source)

    def test_file_of_one_rank(self, tmp_path: Path) -> None:
        shards = {"_fsdp_shard.weight": torch.ones(128)}
        torch.save(
            {"model": shards, "shard_metadata": {"world_size": 4, "rank": 0}}, tmp_path / "rank.pth"
        )
        with pytest.raises(
            ValueError, match=r"one rank of PyTorch/XLA's FSDP: python -m fsdp\.consolidate"
        ):
            spmd.load_checkpoint(nn.Linear(2, 1), tmp_path / "rank.pth", key="model")
