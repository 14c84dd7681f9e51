"""Two processes of four devices train in stages, and one of them is killed: as one process of
eight, on another number of stages and on none."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

from tests.parallel.staged import Model, loss_of

from .stages import LAYERS, STEPS, batch, resume
from .test_checkpoints import free_ports
from .test_processes import HASTY, environment, outputs

PROGRAM = ROOT / "tests/processes/stages.py"
CLOSE = 1e-12

pytestmark = pytest.mark.partitioned("stages over two processes")


def together(folder: Path, name: str, stages: int) -> tuple[list[int], list[tuple[str, str]]]:
    """Runs a program of `stages.py` in two processes; their exit codes, and what each printed."""
    port = free_ports()[0]
    command = [sys.executable, "-W", "error", str(PROGRAM)]
    started = [
        subprocess.Popen(
            [*command, str(index), port, str(folder), name, str(stages)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(XLA_FLAGS=HASTY),
            cwd=ROOT,
        )
        for index in range(2)
    ]
    printed = outputs(started)
    return [process.returncode for process in started], printed


def results(codes: list[int], printed: list[tuple[str, str]]) -> Any:
    """What both print last."""
    assert codes == [0, 0], printed
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in printed)
    assert first == second
    return first


def expected(steps: int = STEPS) -> tuple[list[float], list[float]]:
    """The losses of one device, by torch on the CPU, and the sums of the layers' weights."""
    torch.manual_seed(5)
    model = Model(LAYERS).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        loss = loss_of(model, batch(step))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [layer.up.weight.sum().item() for layer in model.layers]


@pytest.mark.parametrize("stages", [2, 8])
def test_steps(stages: int, tmp_path: Path) -> None:
    """Two stages are one a process; of eight, four are in each."""
    found = results(*together(tmp_path, "train", stages))
    losses, weights = expected(2)
    assert found["losses"] == pytest.approx(losses, rel=CLOSE)
    assert found["weights"] == pytest.approx(weights, rel=1e-9)
    assert found["stages"] == ["2 loops in stages"]


def test_killed_and_resumed(tmp_path: Path) -> None:
    """The second process is killed by SIGKILL while it writes. The step before goes on in two
    processes, and in one, on another number of stages and on none."""
    codes, printed = together(tmp_path, "die", 4)
    assert codes[1] == -signal.SIGKILL and codes[0] != 0, printed
    losses, _ = expected()
    assert json.loads(printed[1][0].splitlines()[-1]) == pytest.approx(losses[:4], rel=CLOSE)
    found = [results(*together(tmp_path, "resume", 2))]
    found += [resume(0, tmp_path, stages) for stages in (8, 4, 0)]
    for resumed in found:
        assert resumed["step"] == 2
        assert resumed["losses"] == pytest.approx(losses[2:], rel=CLOSE)
