"""Two processes of four devices train over one sharded sequence, and one of them is killed: as one
process of eight."""

import json
import signal
from pathlib import Path

import pytest
from support import ROOT

import spmd

from .killed import STEPS, resume
from .sequences import Training
from .two_processes import results, together

PROGRAM = ROOT / "tests/processes/sequences.py"

pytestmark = pytest.mark.partitioned("a sequence over two processes")


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
        found = results(*together(PROGRAM, tmp_path, "train", mesh))
        close(found["losses"], Training(mesh).losses(0, 2))
        assert len(found["exchanges"]) == 1 and ": ring at " in found["exchanges"][0]

    @pytest.mark.long
    def test_killed(self, tmp_path: Path) -> None:
        """By SIGKILL in a save.

        Two others resume from the save before, on another mesh, and so does one process.
        """
        expected = Training("context").losses(0, STEPS)
        codes, printed = together(PROGRAM, tmp_path, "die", "context")
        assert (
            codes[1] == -signal.SIGKILL and codes[0] != 0 and "another task died" in printed[0][1]
        ), printed
        close(json.loads(printed[0][0].splitlines()[-1]), expected[:4])
        alone = resume(tmp_path, Training("context"))
        found = results(*together(PROGRAM, tmp_path, "resume", "fsdp and context"))
        for resumed in (found, alone):
            assert resumed["step"] == 2
            close(resumed["losses"], expected[2:])
