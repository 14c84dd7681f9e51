"""Files of earlier versions load, or are refused in one sentence: `tests/saved_before`, each with
its `make.py`."""

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from support import run_script
from torch import nn

import fsdp
import spmd
from spmd.tools.explain import program_folder

FOLDERS = Path(__file__).parents[2] / "saved_before"
SAVED = FOLDERS / "renamed"
DOORS = FOLDERS / "doors"


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
    """The parameters of both folders, whose seeds are equal."""
    loaded: dict[str, torch.Tensor] = torch.load(SAVED / "cpu.pt", weights_only=True)
    return loaded


class TestTensors:
    def test_sharding_and_values(self) -> None:
        loaded = torch.load(SAVED / "tensors.pt", weights_only=False)
        mesh = spmd.Mesh(range(8), (4, 2), ("fsdp", "tensor"))
        expected = spmd.mark_sharding(torch.zeros(8, 8, device="xla"), mesh, ("fsdp", "tensor"))
        assert spmd.get_sharding(loaded["weight"]) == spmd.get_sharding(expected)
        assert torch.equal(loaded["weight"].cpu(), torch.arange(64.0).reshape(8, 8))
        assert (
            isinstance(loaded["parameter"], nn.Parameter)
            and loaded["parameter"].tolist() == [1.0] * 3
        )

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
        its_optimizer.load_state_dict(
            torch.load(SAVED / "training.pt", weights_only=False)["optimizer"]
        )
        losses = [(step(model, optimizer), step(expected, its_optimizer, "cpu")) for _ in range(2)]
        torch.testing.assert_close(
            *map(torch.tensor, zip(*losses, strict=True)), rtol=1e-5, atol=1e-5
        )

    def test_distributed_checkpoint(self, on_cpu: dict[str, torch.Tensor]) -> None:
        model, _ = training()
        state = {"model": model.state_dict()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch: one process
            dcp.load(state, checkpoint_id=SAVED / "distributed", no_dist=True)
        model.load_state_dict(state["model"])
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor.cpu(), on_cpu[name]), name


class TestBeforeTheDoors:
    """Each format that the library wrote at the commit before the core got its doors, of one step
    of training."""

    @pytest.fixture
    def after(self) -> dict[str, list[float]]:
        """Losses of the two steps that followed; the batches of the loader's epoch."""
        loaded: dict[str, list[float]] = json.loads((DOORS / "after.json").read_text())
        return loaded

    def close(self, losses: list[float], after: dict[str, list[float]]) -> None:
        torch.testing.assert_close(
            torch.tensor(losses), torch.tensor(after["losses"]), rtol=1e-5, atol=1e-5
        )

    def test_job(self, after: dict[str, list[float]], tmp_path: Path) -> None:
        """A checkpoint of a job: model, optimizer, a loader in mid-epoch, random streams,
        numbers."""
        shutil.copytree(DOORS / "job", tmp_path / "job")
        model, optimizer = training()
        source = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=8, shuffle=True)
        loader = spmd.DataLoader(source, spmd.Mesh(range(8), (8,), ("fsdp",)), ("fsdp",))
        progress = {"step": 0}
        state = {"model": model, "optimizer": optimizer, "loader": loader, "progress": progress}
        state["random"] = spmd.checkpoint.RandomState()
        assert spmd.CheckpointManager(tmp_path / "job").restore(state) == 2 and progress == {
            "step": 2
        }
        assert [batch.tolist() for batch in loader] == after["batches"][3:]
        self.close([step(model, optimizer) for _ in range(2)], after)

    def test_shards(self, on_cpu: dict[str, torch.Tensor]) -> None:
        model, _ = training()
        fsdp.load_checkpoint(model, DOORS / "shards")
        loaded = model.state_dict()
        assert loaded.keys() == on_cpu.keys()
        for name, value in loaded.items():
            assert torch.equal(value.cpu(), on_cpu[name]), name

    def test_exported_step(self, after: dict[str, list[float]]) -> None:
        program = spmd.load_exported(DOORS / "step")
        x = torch.ones(8, 8, device="xla")
        self.close([program(x).item() for _ in range(2)], after)

    def test_exported_model(self, on_cpu: dict[str, torch.Tensor]) -> None:
        plain, _ = training("cpu")
        plain.load_state_dict(on_cpu)
        x = torch.ones(8, 8)
        made = spmd.load_exported(DOORS / "model")(x.to("xla"))
        torch.testing.assert_close(made.cpu(), plain(x), rtol=1e-5, atol=1e-5)

    def test_rules(self) -> None:
        rules = spmd.ShardingRules.load(DOORS / "rules.toml")
        assert rules.spec_of("0.weight") == spmd.P("fsdp", None) and rules.checkpoint.keys() == {
            "0"
        }

    def test_programs(self) -> None:
        """A folder of programs is of one version of the library and one machine: the error names
        what differs."""
        try:
            assert spmd.load_programs(DOORS / "programs") == 1  # by the version that wrote them
        except ValueError as error:
            assert re.search("differs|here, and was", str(error))
        finally:
            program_folder.remove(DOORS / "programs")

    def test_cache(self, tmp_path: Path) -> None:
        """Programs of another version in the cache's folder are neither run nor removed nor told to
        be damaged."""
        shutil.copytree(DOORS / "cache", tmp_path / "cache", copy_function=shutil.copy)
        (tmp_path / "cache").chmod(0o700)
        for file in (tmp_path / "cache").iterdir():
            file.chmod(0o600)
        script = """
            import torch, spmd

            spmd.simulate(8)
            x = spmd.mark_sharding(
                torch.ones(8, device="xla"), spmd.Mesh(range(8), (8,), ("data",)), ("data",)
            )
            print(
                (x * 2).sum().item(),
                spmd.metrics.num_loaded(),
                spmd.metrics.counter("programs_unreadable"),
            )
        """
        printed = run_script(
            script, SPMD_PROGRAM_CACHE="1", SPMD_PROGRAM_CACHE_DIR=str(tmp_path / "cache")
        )
        assert printed.split() == ["16.0", "0", "0"]
        kept = {file.name for file in (tmp_path / "cache").iterdir()}
        assert {file.name for file in (DOORS / "cache").iterdir()} <= kept
