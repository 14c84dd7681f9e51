"""Jobs that go on from the steps of `spmd.CheckpointManager`, on any mesh."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fsdp
import spmd

from .states import MESHES, Run, Tied


class TestResume:
    """A run that was restored goes on with the losses and weights of the one that was not
    stopped."""

    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_same_mesh(self, is_compiled: bool, tmp_path: Path) -> None:
        """Bit for bit, dropout, schedule and loader included."""
        first = Run()
        if is_compiled:
            first.update = spmd.compile(first.update)
        first.train(3)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(3, first.state)
        names = json.loads((tmp_path / "3/manifest.json").read_text())["tensors"]
        # tied: written once
        assert ("model.embed.weight" in names) != ("model.head.weight" in names)
        expected = first.train(3)
        second = Run()
        if is_compiled:
            second.update = spmd.compile(second.update)
        torch.manual_seed(9)
        assert manager.restore(second.state) == 3 and second.state["progress"]["step"] == 3
        assert second.train(3) == expected
        for name, value in first.model.state_dict().items():
            assert torch.equal(second.model.state_dict()[name].cpu(), value.cpu()), name

    def test_back_in_the_same_run(self, tmp_path: Path) -> None:
        """Restoring into tensors that compiled steps use: they are replayed on."""
        run = Run()
        run.update = spmd.compile(run.update)
        run.train(3)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(3, run.state)
        expected = run.train(3)
        manager.restore(run.state)
        run.batches = None
        replayed = run.update.num_replayed
        assert run.train(3) == expected
        assert run.update.num_replayed > replayed > 0, run.update.causes

    @pytest.mark.parametrize(
        ("source", "target"), [("8", "2x4"), ("2x4", "3"), ("3", None), (None, "8")]
    )
    def test_other_mesh(self, source: str | None, target: str | None, tmp_path: Path) -> None:
        """To 1e-6; each tensor keeps the sharding that it has, and moments have that of their
        parameters."""
        first = Run(source, dropout=False)
        first.train(3)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(3, first.state)
        expected = first.train(3)
        second = Run(target, dropout=False)
        before = {
            name: spmd.get_sharding(value) for name, value in second.model.state_dict().items()
        }
        manager.restore(second.state)
        for parameter in second.model.parameters():
            moment = second.optimizer.state[parameter]["exp_avg"]
            assert spmd.get_sharding(moment) is spmd.get_sharding(parameter)
        torch.testing.assert_close(second.train(3), expected, rtol=1e-6, atol=1e-6)
        for name, value in second.model.state_dict().items():
            assert before[name] is None or spmd.get_sharding(value) is before[name]
            torch.testing.assert_close(
                value.cpu(), first.model.state_dict()[name].cpu(), rtol=1e-5, atol=1e-6
            )

    def test_state_of_another_shape(self, tmp_path: Path) -> None:
        """Adafactor's rows and columns of moments."""

        def made(mesh: str) -> Run:
            return Run(mesh, torch.optim.Adafactor, dropout=False)

        first = made("8")
        first.train(2)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(2, first.state)
        expected = first.train(2)
        for mesh in ("8", "2x4"):
            second = made(mesh)
            manager.restore(second.state)
            torch.testing.assert_close(second.train(2), expected, rtol=1e-6, atol=1e-6)

    def test_plain_torch(self, tmp_path: Path) -> None:
        """Sharded state is read into a model on the CPU, and the other way round."""
        first = Run(dropout=False)
        first.train(2)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(2, {"model": first.model, "optimizer": first.optimizer})
        model = Tied()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        manager.restore({"model": model, "optimizer": optimizer})
        for name, value in model.state_dict().items():
            assert torch.equal(value, first.model.state_dict()[name].cpu()), name
        assert model.head.weight is model.embed.weight
        moment = first.optimizer.state[next(first.model.parameters())]["exp_avg"]
        assert torch.equal(optimizer.state[model.embed.weight]["exp_avg"], moment.cpu())
        manager.save(3, {"model": model, "optimizer": optimizer})
        assert manager.restore({"model": first.model, "optimizer": first.optimizer}) == 3

    def test_never_initialised(self, tmp_path: Path) -> None:
        """A model built on the device is filled, and its initial values are never computed."""
        manager = spmd.CheckpointManager(tmp_path)
        with torch.device("xla"):
            layer, other = nn.Linear(8, 8), nn.Linear(8, 8)
        manager.save(0, {"model": layer})
        compiled = spmd.metrics.num_compiles()
        manager.restore({"model": other})
        spmd.sync()
        assert torch.equal(other.weight.detach().cpu(), layer.weight.detach().cpu())
        assert spmd.metrics.num_compiles() == compiled

    def test_loader_with_a_state_of_its_own(self, tmp_path: Path) -> None:
        torchdata = pytest.importorskip("torchdata.stateful_dataloader")

        def made() -> Any:
            data, generator = [*range(20)], torch.Generator().manual_seed(1)
            return torchdata.StatefulDataLoader(
                data, batch_size=4, shuffle=True, generator=generator
            )

        loader = made()
        batches = iter(loader)
        next(batches)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(0, {"loader": loader})
        expected = [batch.tolist() for batch in batches]
        other = made()
        manager.restore({"loader": other})
        assert [batch.tolist() for batch in other] == expected


class TestHostMemory:
    """Parameters and moments that are kept on the hosts are saved from there, restored there, and a
    run goes on."""

    def test_offloaded(self, tmp_path: Path) -> None:
        def made(mesh: str) -> tuple[nn.Module, torch.optim.Optimizer]:
            torch.manual_seed(0)
            layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
            model = fsdp.FullyShardedDataParallel(
                layers, MESHES[mesh], offload_policy=fsdp.CPUOffloadPolicy()
            )
            return model, spmd.offload_optimizer(torch.optim.AdamW(model.parameters(), lr=0.1))

        def train(
            model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2
        ) -> list[float]:
            losses = []
            for _ in range(steps):
                loss = model(torch.ones(8, 8, device="xla")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                spmd.sync()
                losses.append(loss.item())
            return losses

        def memories(model: nn.Module, optimizer: torch.optim.Optimizer) -> set[str]:
            moments = [
                state[name]
                for state in optimizer.state.values()
                for name in ("exp_avg", "exp_avg_sq")
            ]
            assert len(moments) == 8
            return {spmd.get_sharding(value).memory for value in (*model.parameters(), *moments)}

        first = made("8")
        train(*first)
        manager = spmd.CheckpointManager(tmp_path, async_=True)
        manager.save(2, {"model": first[0], "optimizer": first[1]})
        expected = train(*first)
        for mesh, steps in (("8", 0), ("3", 1)):
            other = made(mesh)
            train(*other, steps)
            manager.restore({"model": other[0], "optimizer": other[1]})
            assert memories(*other) == {"pinned_host"}
            assert train(*other) == (expected if mesh == "8" else pytest.approx(expected, rel=1e-6))
