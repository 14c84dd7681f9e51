"""Two processes of four devices train over one sharded sequence, and one of them is killed: as one
process of eight."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

import spmd

from .sequences import STEPS, Training, resume
from .test_checkpoints import free_ports
from .test_processes import HASTY, environment, outputs

PROGRAM = ROOT / "tests/processes/sequences.py"

pytestmark = pytest.mark.partitioned("a sequence over two processes")


def together(folder: Path, name: str, mesh: str) -> tuple[list[int], list[tuple[str, str]]]:
    """Runs a program of `sequences.py` in two processes; their exit codes, and what each
    printed."""
    port = free_ports()[0]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(PROGRAM),
                str(index),
                port,
                str(folder),
                name,
                mesh,
            ],
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


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spmd.config, "parallel", "ring")  # set again by `Training`


def close(ours: list[float], theirs: list[float]) -> None:
    assert ours == pytest.approx(theirs, rel=1e-12)


@pytest.mark.usefixtures("ring")
class TestSequences:
    """The sequence is over both processes, or each has sequences of its own."""

    @pytest.mark.parametrize(
        "mesh", ["context", pytest.param("fsdp and context", marks=pytest.mark.long)]
    )
    def test_losses(self, mesh: str, tmp_path: Path) -> None:
        found = results(*together(tmp_path, "train", mesh))
        close(found["losses"], Training(mesh).losses(0, 2))
        assert len(found["exchanges"]) == 1 and ": ring at " in found["exchanges"][0]

    @pytest.mark.long
    def test_killed(self, tmp_path: Path) -> None:
        """By SIGKILL in a save.

        Two others resume from the save before, on another mesh, and so does one process.
        """
        expected = Training("context").losses(0, STEPS)
        codes, printed = together(tmp_path, "die", "context")
        assert (
            codes[1] == -signal.SIGKILL and codes[0] != 0 and "another task died" in printed[0][1]
        ), printed
        close(json.loads(printed[0][0].splitlines()[-1]), expected[:4])
        alone = resume(0, tmp_path, "context")
        found = results(*together(tmp_path, "resume", "fsdp and context"))
        for resumed in (found, alone):
            assert resumed["step"] == 2
            close(resumed["losses"], expected[2:])
