"""Files of an earlier version load: `tests/spmd/saved_before/make.py` wrote them before the code was renamed."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import fsdp
import spmd

SAVED = Path(__file__).with_name("saved_before")


def training(device: str = "xla") -> tuple[Any, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).to(device)
    if device == "xla":
        model = fsdp.FullyShardedDataParallel(model, mesh=spmd.Mesh(range(8), (8,), ("fsdp",)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: Any, optimizer: torch.optim.Optimizer, device: str = "xla") -> float:
    loss = model(torch.ones(8, 8, device=device)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@pytest.fixture
def on_cpu() -> dict[str, torch.Tensor]:
    loaded: dict[str, torch.Tensor] = torch.load(SAVED / "cpu.pt", weights_only=True)
    return loaded


class TestTensors:
    def test_sharding_and_values(self) -> None:
        loaded = torch.load(SAVED / "tensors.pt", weights_only=False)
        mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
        expected = spmd.mark_sharding(torch.zeros(8, 8, device="xla"), mesh, ("fsdp", "tensor"))
        assert spmd.get_sharding(loaded["weight"]) == spmd.get_sharding(expected)
        assert torch.equal(loaded["weight"].cpu(), torch.arange(64.0).reshape(8, 8))
        assert isinstance(loaded["parameter"], nn.Parameter) and loaded["parameter"].tolist() == [1.0] * 3

    def test_module(self) -> None:
        loaded = torch.load(SAVED / "module.pt", weights_only=False)
        sharding = spmd.get_sharding(loaded.weight)
        assert sharding is not None and sharding.partition_spec(2) == ("fsdp", None)
        assert loaded(torch.ones(2, 4, device="xla")).shape == (2, 4)


class TestTraining:
    """Parameters and optimizer state of an earlier version go on as torch's on the CPU do."""

    def test_state_dicts(self, on_cpu: dict[str, torch.Tensor]) -> None:
        saved = torch.load(SAVED / "training.pt", weights_only=False)
        model, optimizer = training()
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        expected, its_optimizer = training("cpu")
        expected.load_state_dict(on_cpu)
        its_optimizer.load_state_dict(torch.load(SAVED / "training.pt", weights_only=False)["optimizer"])
        losses = [(step(model, optimizer), step(expected, its_optimizer, "cpu")) for _ in range(2)]
        torch.testing.assert_close(*map(torch.tensor, zip(*losses, strict=True)), rtol=1e-5, atol=1e-5)

    def test_distributed_checkpoint(self, on_cpu: dict[str, torch.Tensor]) -> None:
        model, _ = training()
        state = {"model": model.state_dict()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: one process
            dcp.load(state, checkpoint_id=SAVED / "distributed", no_dist=True)
        model.load_state_dict(state["model"])
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.cpu(), on_cpu[name]), name
