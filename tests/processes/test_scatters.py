"""Sums that two processes scatter between them are right in every element, on every device."""

import json
import subprocess
import sys

from support import ROOT

from .scatters import ITERATIONS
from .test_checkpoints import free_ports
from .test_processes import environment, outputs


def test_large_chunks() -> None:
    port = free_ports()[0]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(ROOT / "tests/processes/scatters.py"),
                str(index),
                port,
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
    for out, _ in printed:
        assert json.loads(out.splitlines()[-1]) == {
            "across": [0] * ITERATIONS,
            "within": [0] * ITERATIONS,
        }
