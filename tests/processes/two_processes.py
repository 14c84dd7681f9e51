"""Runs of a program of `killed.py` in two processes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import ROOT

from .test_checkpoints import free_ports
from .test_processes import HASTY, environment, outputs


def together(
    program: Path, folder: Path, name: str, kind: object
) -> tuple[list[int], list[tuple[str, str]]]:
    """Runs a program in two processes; their exit codes, and what each printed."""
    port = free_ports()[0]
    command = [sys.executable, "-W", "error", str(program)]
    started = [
        subprocess.Popen(
            [*command, str(index), port, str(folder), name, str(kind)],
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
