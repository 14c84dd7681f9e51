"""Folders of orbax that two processes write and read together, and what one of eight devices reads
of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from spmd.checkpoint import load_orbax, save_orbax

from .checkpoints import made, train
from .orbax_saves import compared, state_of
from .test_checkpoints import free_ports
from .test_processes import environment, outputs

PROGRAM = ROOT / "tests/processes/orbax_saves.py"


class TestOrbaxSaves:
    """A save of two processes equals that of one."""

    def test_two_and_one(self, tmp_path: Path) -> None:
        model, optimizer = made()
        train(model, optimizer)
        save_orbax(state_of(model, optimizer, (1, 7)), tmp_path / "one")
        after = train(model, optimizer)
        port = free_ports()[0]
        started = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "error",
                    str(PROGRAM),
                    str(index),
                    "2",
                    port,
                    str(tmp_path),
                    "run",
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
                cwd=ROOT,
            )
            for index in range(2)
        ]
        printed = outputs(started)
        assert [process.returncode for process in started] == [0, 0], printed
        first, second = (json.loads(out.splitlines()[-1]) for out, _ in printed)
        assert first == second and first["after one"] == pytest.approx(after, rel=1e-6)
        state = state_of(*made())
        load_orbax(state, tmp_path / "two")
        compared(state)
        assert train(state["model"], state["optimizer"]) == pytest.approx(
            first["expected"], rel=1e-6
        )
