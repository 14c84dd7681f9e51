"""Two processes of four devices train in stages, and one of them is killed: as one process of
eight, on another number of stages and on none."""

import json
import signal
from pathlib import Path

import pytest
import torch
from support import ROOT

from tests.parallel.staged import Model, loss_of

from .killed import STEPS, resume
from .stages import LAYERS, Training, batch
from .two_processes import results, together

PROGRAM = ROOT / "tests/processes/stages.py"
CLOSE = 1e-12

pytestmark = pytest.mark.partitioned("stages over two processes")


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
    found = results(*together(PROGRAM, tmp_path, "train", stages))
    losses, weights = expected(2)
    assert found["losses"] == pytest.approx(losses, rel=CLOSE)
    assert found["weights"] == pytest.approx(weights, rel=1e-9)
    assert found["stages"] == ["2 loops in stages"]


def test_killed_and_resumed(tmp_path: Path) -> None:
    """The second process is killed by SIGKILL while it writes. The step before goes on in two
    processes, and in one, on another number of stages and on none."""
    codes, printed = together(PROGRAM, tmp_path, "die", 4)
    assert codes[1] == -signal.SIGKILL and codes[0] != 0, printed
    losses, _ = expected()
    assert json.loads(printed[1][0].splitlines()[-1]) == pytest.approx(losses[:4], rel=CLOSE)
    found = [results(*together(PROGRAM, tmp_path, "resume", 2))]
    found += [resume(tmp_path, Training(stages)) for stages in (8, 4, 0)]
    for resumed in found:
        assert resumed["step"] == 2
        assert resumed["losses"] == pytest.approx(losses[2:], rel=CLOSE)
