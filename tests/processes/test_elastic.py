"""A training whose process is killed, restarted by torchrun: it goes on from the newest step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import ROOT
from torch import nn

import fsdp
import spmd

from .elastic import STEPS
from .test_processes import HASTY, environment


def unbroken(devices: int) -> list[float]:
    """The losses of the same training in this process."""
    mesh = spmd.Mesh(range(devices), (devices,), ("fsdp",))
    torch.manual_seed(0)
    with torch.device("xla"):
        model = fsdp.fully_shard(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8)), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    losses = []
    for step in range(STEPS):
        batch = torch.randn(16, 16, generator=torch.Generator().manual_seed(step))
        loss = model(batch.to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("processes", "devices"), [(2, 2), pytest.param(4, 1, marks=pytest.mark.long)]
)
def test_killed_and_restarted(processes: int, devices: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--standalone", "--nproc_per_node", str(processes), "--max-restarts", "1"),
            *("tests/processes/elastic.py", str(tmp_path), str(devices)),
        ],
        cwd=ROOT,
        env=environment(XLA_FLAGS=HASTY) | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "exitcode: -9" in done.stderr
    lines = [line.split() for line in (tmp_path / "losses.txt").read_text().splitlines()]
    assert [int(step) for step, _ in lines] == [*range(STEPS)]  # none is made twice
    losses = [float(loss) for _, loss in lines]
    assert losses == pytest.approx(unbroken(processes * devices), rel=1e-5)
