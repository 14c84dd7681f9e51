"""Two processes hold the rows that data counts alike: the numbers of torch on the CPU, few
programs."""

import json
import subprocess
import sys

from support import ROOT

from .test_checkpoints import free_ports
from .test_processes import environment, outputs


def test_rows_that_data_counts() -> None:
    port, script = free_ports()[0], str(ROOT / "tests/processes/counts.py")
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", script, str(index), port],
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
        last = json.loads(out.splitlines()[-1])
        assert last["wrong"] == [] and sum(last["programs"]) <= 4, last
