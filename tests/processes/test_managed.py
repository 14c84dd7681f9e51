"""`spmd.CheckpointManager` of two processes of four devices: what one of eight has saved, and the other way round."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

import spmd

from .checkpoints import made, train
from .managed import state_of
from .test_checkpoints import free_ports
from .test_processes import LIMIT, environment

PROGRAM = ROOT / "tests/processes/managed.py"


class TestManaged:
    """Both commit together or not at all, resume bit for bit, and are preempted at the same step."""

    def test_two_and_one(self, tmp_path: Path) -> None:
        model, optimizer = made()
        train(model, optimizer)
        state = state_of(model, optimizer)
        state["progress"]["step"] = 4
        spmd.CheckpointManager(tmp_path / "one").save(4, state)
        after = train(model, optimizer)

        port = free_ports()[0]
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "error", str(PROGRAM), str(index), port, str(tmp_path)],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT,
            )
            for index in range(2)
        ]  # fmt: skip
        try:
            printed = [process.communicate(timeout=LIMIT) for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0, 0], printed
        first, second = (json.loads(out.splitlines()[-1]) for out, _ in printed)
        assert first == second
        assert first["after one"] == pytest.approx(after, rel=1e-6)
        assert first["steps"] == [5, 6] and first["left"] == [".lock", "5", "6"]
        assert "process 1: No space left on device at byte 0 of" in first["unwritable"]
        assert 12 <= first["preempted"] < 10_000 - 1

        manager = spmd.CheckpointManager(tmp_path / "two")
        other = state_of(*made())
        with pytest.raises(ValueError, match=r"'own\.number' was another value in each of 2 processes, and here are 1"):
            manager.restore({**other, "own": {"number": 0, "tensor": other["model"][0].bias.detach().cpu()}}, 5)
        assert manager.restore(other, 5) == 5
        assert train(other["model"], other["optimizer"]) == pytest.approx(first["expected"], rel=1e-6)
