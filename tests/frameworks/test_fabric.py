"""Lightning Fabric on the device: a loop of its own gives the CPU's losses, sharded too, and its
checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric, strategies
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import spmd

pytestmark = [
    pytest.mark.usefixtures("use"),
    pytest.mark.filterwarnings("ignore:The '\\w+' does not have many workers"),
]


class Training:
    """A classifier, its optimizer and its batches, as a Fabric sets them up."""

    def __init__(self, accelerator: str, strategy: Any = "auto", **how: Any) -> None:
        self.fabric = Fabric(accelerator=accelerator, strategy=strategy, **how)
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8))
        self.model, self.optimizer = self.fabric.setup(
            model, torch.optim.AdamW(model.parameters(), lr=0.01)
        )
        data = TensorDataset(torch.randn(40, 8), torch.randint(8, (40,)))
        self.batches = self.fabric.setup_dataloaders(DataLoader(data, batch_size=16))

    def epoch(self, accumulate: int = 1) -> list[float]:
        losses = []
        for number, (x, y) in enumerate(self.batches, 1):
            is_accumulating = number % accumulate != 0
            with self.fabric.no_backward_sync(self.model, enabled=is_accumulating):
                loss = nn.functional.cross_entropy(self.model(x), y)
                self.fabric.backward(loss / accumulate)
            if not is_accumulating:
                norm = self.fabric.clip_gradients(self.model, self.optimizer, max_norm=0.5)
                self.optimizer.step()
                self.optimizer.zero_grad()
                losses.append(norm.item())
            losses.append(self.fabric.all_reduce(loss.detach()).item())
            self.device = x.device.type
        self.fabric.barrier()
        return losses


@pytest.fixture(scope="module")
def expected() -> list[float]:
    training = Training("cpu")
    assert training.epoch() and training.device == "cpu"
    return training.epoch()


class TestFit:
    """Two epochs give the CPU's losses and norms, over the devices that were requested."""

    @pytest.mark.parametrize(
        ("accelerator", "strategy", "devices"),
        [
            ("auto", "auto", "auto"),
            ("xla", "xla", 8),
            ("tpu", "auto", 1),
            ("xla", "xla_fsdp", "auto"),
            ("auto", "fsdp", "auto"),
        ],
    )
    def test_losses(
        self, accelerator: str, strategy: str, devices: Any, expected: list[float]
    ) -> None:
        training = Training(accelerator, strategy, devices=devices)
        training.epoch()
        assert training.epoch() == pytest.approx(expected, rel=1e-5) and training.device == "xla"
        assert training.fabric.strategy.mesh.size() == (1 if devices == 1 else 8)
        assert (training.fabric.world_size, training.fabric.is_global_zero) == (1, True)
        shards = training.model.module[0].weight.local_shards
        assert shards[0].data.shape == ((4, 8) if "fsdp" in strategy else (32, 8))

    def test_with_a_policy(self, expected: list[float]) -> None:
        mesh = spmd.Mesh(range(8), (2, 4), ("data", "fsdp"))
        training = Training(
            "xla", strategies.XLAFSDPStrategy({nn.Linear}, mesh, activation_checkpointing=True)
        )
        training.fabric.launch()
        training.epoch()
        assert training.epoch() == pytest.approx(expected, rel=1e-5)
        assert training.model.module[0].weight.partition_spec == ("fsdp", None)

    def test_accumulation_and_precision(self) -> None:
        found = [Training(device, precision="bf16-mixed").epoch(2) for device in ("cpu", "xla")]
        assert found[1] == pytest.approx(found[0], rel=2e-2)

    def test_devices(self) -> None:
        with pytest.raises(ValueError, match="expected devices='auto', 1 or 8, got 3"):
            Fabric(accelerator="xla", devices=3)


class TestFiles:
    """save and load: the state of a sharded run, which a machine without this library reads."""

    def test_resumed(self, tmp_path: Path, expected: list[float]) -> None:
        training = Training("xla", "xla_fsdp")
        training.epoch()
        training.fabric.save(
            tmp_path / "a.ckpt",
            {"model": training.model, "optimizer": training.optimizer, "epoch": 1},
        )
        held = torch.load(tmp_path / "a.ckpt")
        tensors = [
            *held["model"].values(),
            *(state["exp_avg"] for state in held["optimizer"]["state"].values()),
        ]
        assert {tensor.device.type for tensor in tensors} == {"cpu"} and next(
            iter(held["model"])
        ) == "0.weight"
        other = Training("xla", "xla_fsdp")
        rest = other.fabric.load(
            tmp_path / "a.ckpt", {"model": other.model, "optimizer": other.optimizer}
        )
        assert rest == {"epoch": 1} and other.epoch() == pytest.approx(expected, rel=1e-5)
        assert {len(state["exp_avg"].local_shards) for state in other.optimizer.state.values()} == {
            8
        }
