"""Optimizers, schedulers and scalers of torch in `spmd.CheckpointManager`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import spmd

from .states import MESHES


def sharded(value: torch.Tensor, mesh: str, *spec: Any) -> torch.Tensor:
    return spmd.mark_sharding(value.to("xla"), MESHES[mesh], spec)


def _schedules(optimizer: Any) -> dict[str, Any]:
    kinds = torch.optim.lr_scheduler
    linear = kinds.LinearLR(optimizer)
    return {
        "lambda": kinds.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        "step": kinds.StepLR(optimizer, 2),
        "multi": kinds.MultiStepLR(optimizer, [1, 1, 4]),
        "constant": kinds.ConstantLR(optimizer),
        "exponential": kinds.ExponentialLR(optimizer, 0.9),
        "polynomial": kinds.PolynomialLR(optimizer),
        "cosine": kinds.CosineAnnealingLR(optimizer, 5),
        "restarts": kinds.CosineAnnealingWarmRestarts(optimizer, 3),
        "cyclic": kinds.CyclicLR(optimizer, 0.01, 0.1),
        "one": kinds.OneCycleLR(optimizer, 0.1, total_steps=9),
        "plateau": kinds.ReduceLROnPlateau(optimizer),
        "chained": kinds.ChainedScheduler([linear]),
        "sequential": kinds.SequentialLR(optimizer, [linear, kinds.ConstantLR(optimizer)], [2]),
    }


class TestPriming:
    """`prime_optimizer`: state to load into, and parameters as they were."""

    @pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor])
    def test_state(self, kind: Any) -> None:
        layer = nn.Linear(4, 2).to("xla")
        before = layer.weight.detach().cpu()
        given = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = spmd.checkpoint.prime_optimizer(
            kind(layer.parameters(), lr=0.1, weight_decay=0.5, **given)
        )
        assert set(optimizer.state) == {layer.weight, layer.bias} and layer.weight.grad is None
        assert torch.equal(layer.weight.detach().cpu(), before)

    def test_gradients(self) -> None:
        layer = nn.Linear(4, 2).to("xla")
        layer.weight.grad = torch.ones_like(layer.weight)
        with pytest.raises(ValueError, match="expected parameters without gradients"):
            spmd.checkpoint.prime_optimizer(torch.optim.AdamW(layer.parameters()))


@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning", "ignore:Seems like:UserWarning")
class TestObjects:
    """Torch's own schedulers, optimizers and scaler, whatever their states are made of."""

    def test_schedulers(self, tmp_path: Path) -> None:
        def made() -> dict[str, Any]:
            optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1, momentum=0.9)
            return _schedules(optimizer)

        first, second = made(), made()
        for name, schedule in first.items():
            schedule.step(1.0) if name == "plateau" else schedule.step()
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, first)
        manager.restore(second)
        for name, schedule in first.items():
            assert repr(second[name].state_dict()) == repr(schedule.state_dict()), name

    @pytest.mark.parametrize(
        "name",
        [
            "Adadelta",
            "Adagrad",
            "Adam",
            "Adamax",
            "ASGD",
            "NAdam",
            "RAdam",
            "RMSprop",
            "Rprop",
            "SGD",
            "Muon",
        ],
    )
    def test_optimizers(self, name: str, tmp_path: Path) -> None:
        def made(mesh: str) -> tuple[Any, Any]:
            weight = sharded(torch.arange(32.0).view(8, 4) / 8, mesh, "fsdp", None).requires_grad_()
            return weight, getattr(torch.optim, name)([weight], lr=0.1)

        def stepped(weight: Any, optimizer: Any) -> torch.Tensor:
            weight.grad = (weight.detach() * 0.5).sin()
            optimizer.step()
            return weight.detach().cpu()

        one = made("8")
        stepped(*one)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"weight": one[0], "optimizer": one[1]})
        expected = stepped(*one)
        for mesh in ("8", "2x4"):
            other = made(mesh)
            manager.restore({"weight": other[0], "optimizer": other[1]})
            torch.testing.assert_close(
                stepped(*other), expected, rtol=0 if mesh == "8" else 1e-6, atol=0
            )

    def test_scaler(self, tmp_path: Path) -> None:
        def made() -> Any:
            scaler = torch.amp.GradScaler("xla", init_scale=64.0)
            scaler.scale(torch.ones((), device="xla", requires_grad=True))
            return scaler

        first, second = made(), made()
        first.update(128.0)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"scaler": first})
        manager.restore({"scaler": second})
        assert second.get_scale() == 128.0

    def test_inside_a_compiled_step(self, tmp_path: Path) -> None:
        """A call of the manager is made each time."""
        x = torch.ones(4, device="xla")
        manager = spmd.CheckpointManager(tmp_path)
        found = {"x": torch.zeros(4)}

        @spmd.compile
        def step() -> None:
            x.add_(1)
            manager.save(0, {"x": x})

        for number in range(4):
            step()
            manager.restore(found)
            assert found["x"].tolist() == [number + 2] * 4
