"""`plan_restore`: the figures are those of the restore that follows."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import nn

import spmd
from spmd.core.base import counters
from spmd.jobs.checkpoint import step_reader

from .object_store import ObjectStore
from .states import MESHES, Run


def uploaded() -> int:
    """The bytes that devices have received so far."""
    metric = counters.metric("OutboundData")
    return 0 if metric is None else int(metric.total)


def sharded(
    shape: tuple[int, ...], mesh: str, *spec: Any, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return spmd.mark_sharding(torch.zeros(shape, device="xla", dtype=dtype), MESHES[mesh], spec)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], int]:
    """The distinct ranges that are read from now on, with their bytes."""
    found: dict[tuple[str, int], int] = {}
    original = step_reader.bytes_at

    def counted(place: Any, begin: int, size: int) -> Any:
        found[str(place), begin] = size
        return original(place, begin, size)

    monkeypatch.setattr(step_reader, "bytes_at", counted)
    return found


class TestFigures:
    """The planned bytes are the counted ones."""

    @pytest.mark.parametrize("mesh", ["8", "2x4", "3", "1"])
    def test_training_run(self, mesh: str, tmp_path: Path, read: dict[Any, int]) -> None:
        run = Run("8")
        run.train(2)
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(2, run.state)
        state = {
            name: value
            for name, value in Run(mesh).state.items()
            if name in ("model", "optimizer", "random")
        }
        read.clear()
        plan = manager.plan_restore(state)
        assert not read and plan.step == 2 and plan.path == str(tmp_path / "2")
        (one,) = plan.processes
        before = uploaded()
        manager.restore(state)
        assert one.process == 0 and one.bytes_read == sum(read.values()) > 0
        assert one.bytes_uploaded == uploaded() - before > 0

    @pytest.mark.parametrize("kind", ["path", "url"])
    def test_layouts(self, kind: str, tmp_path: Path, read: dict[Any, int]) -> None:
        """Columns from rows, another dtype, uneven dims, replicated, on the CPU, a part of a
        step."""
        manager = spmd.CheckpointManager(
            f"store://{tmp_path}/job" if kind == "url" else tmp_path / "job"
        )
        rows = ("8", "fsdp", None)
        saved = {
            name: sharded((16, 24), *rows)
            for name in ("columns", "cast", "whole", "host", "left_out")
        }
        manager.save(
            1, {**saved, "uneven": sharded((10, 4), *rows), "n": 3, "plain": torch.ones(5)}
        )
        state = {
            "columns": sharded((16, 24), "8", None, "fsdp"),
            "whole": sharded((16, 24), "2x4", None, None),
            "cast": sharded((16, 24), *rows, dtype=torch.bfloat16),
            "host": torch.zeros(16, 24),
            "n": 0,
            "uneven": sharded((10, 4), "8", "fsdp", None),
            "plain": torch.zeros(5),
        }
        plan = manager.plan_restore(state)
        assert plan.joined == {"columns": 8, "whole": 8, "host": 8}
        (one,) = plan.processes
        before = uploaded()
        read.clear()
        ObjectStore.fetched.clear()
        manager.restore(state)
        whole = 16 * 24 * 4
        assert one.bytes_read == sum(read.values()) == 4 * whole + 160 + 20
        if kind == "url":
            assert one.bytes_read == sum(
                size for path, _, size in ObjectStore.fetched if path.endswith(".bin")
            )
        assert one.bytes_uploaded == uploaded() - before == whole + 8 * whole + whole // 2 + 160
        # the tensor on the CPU and a saved shard that is mapped, or all that are fetched
        assert one.peak_host_bytes == whole + (whole if kind == "url" else whole // 8)

    def test_values_of_the_state_stay_on_the_host(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(1, {"a": [torch.ones(100), torch.ones(50)], "generator": torch.Generator()})
        state = {"a": [torch.zeros(100), torch.zeros(50)], "generator": torch.Generator()}
        (one,) = manager.plan_restore(state).processes
        size = torch.Generator().get_state().nbytes
        assert (
            one.bytes_read == 600 + size
            and one.peak_host_bytes == 2 * size
            and one.bytes_uploaded == 0
        )

    def test_nothing_changes(self, tmp_path: Path) -> None:
        manager, model = spmd.CheckpointManager(tmp_path), nn.Linear(4, 2).to("xla")
        manager.save(1, {"model": model, "n": 1})
        other = nn.Linear(4, 2).to("xla")
        before, state = other.weight.detach().cpu(), {"model": other, "n": 0}
        manager.plan_restore(state)
        assert torch.equal(other.weight.detach().cpu(), before) and state["n"] == 0


class TestWords:
    """The table, and what is refused."""

    def test_table(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        manager.save(7, {"x": sharded((16, 80), "8", "fsdp", None)})
        text = str(manager.plan_restore({"x": sharded((16, 80), "8", None, "fsdp")}))
        assert text.splitlines() == [
            f"step 7 in {tmp_path / '7'}",
            "process  read from files  uploaded to devices  host memory at most",
            "      0           5.1 KB               5.1 KB               1.3 KB",
            "tensors of which a shard is joined from several saved ones: 1",
            "    x: 8",
        ]

    def test_refused(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(tmp_path)
        with pytest.raises(FileNotFoundError, match="no committed step in"):
            manager.plan_restore({})
        manager.save(1, {"x": torch.ones(3)})
        with pytest.raises(ValueError, match=r"'x' has the shape \[3\] in the step and \[4\] here"):
            manager.plan_restore({"x": torch.ones(4)})


class TestPeak:
    """The host's memory stays below the figure that was told, and a page or two."""

    def test_peak(self, tmp_path: Path) -> None:
        command = [
            sys.executable,
            str(ROOT / "tests/jobs/checkpoint/big_restore.py"),
            "8",
            "1024",
            str(tmp_path),
        ]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert 0 < found["peak"] < found["planned"] + 2**19, found
