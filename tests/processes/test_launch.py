"""`python -m spmd launch`: several processes of a script on one machine, and how they end
together."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT

from spmd.jobs.launching import local_processes

from .test_processes import HASTY, environment

SCRIPT = ROOT / "tests/processes/launched.py"
# The sum of the parts of two processes; each of their tensors on xla is the same.
TWO = "56.0 3.0 4.0 4.0 [{'rank': 0}, {'rank': 1}] ['from 0']"
ONE = "28.0 1.0 2.0 2.0 [{'rank': 0}] ['from 0']"


def launch(
    logs: Path, *arguments: str, options: tuple[str, ...] = ()
) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "spmd",
        "launch",
        "--logs",
        str(logs),
        *options,
        str(SCRIPT),
        *arguments,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env=environment(XLA_FLAGS=HASTY),
        cwd=ROOT,
    )


class TestScripts:
    """A script without a word of several processes, under the process group "xla"."""

    @pytest.mark.parametrize(
        ("processes", "devices"), [("2", "4"), pytest.param("4", "2", marks=pytest.mark.long)]
    )
    def test_ends_well(self, processes: str, devices: str, tmp_path: Path) -> None:
        done = launch(tmp_path, options=("--processes", processes, "--devices", devices))
        assert done.returncode == 0, done.stderr
        found = [done.stdout, *[path.read_text() for path in sorted(tmp_path.iterdir())]]
        assert len(found) == int(processes)
        if processes == "2":
            assert all(TWO in text for text in found)

    def test_simulates_others(self, tmp_path: Path) -> None:
        """A script that simulates eight devices over all processes, which were given two each."""
        done = launch(tmp_path, options=("--devices", "2"))
        assert done.returncode == 1
        assert (
            "simulate(8) counts the devices of all 2 processes, 4 each, and each has 2 already"
            in done.stderr
        )

    def test_in_one_process(self, tmp_path: Path) -> None:
        options = ("--processes", "2", "--devices", "4", "--debug-single-process")
        done = launch(tmp_path, options=options)
        assert done.returncode == 0, done.stderr
        assert ONE in done.stdout and not [*tmp_path.iterdir()]

    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            ("raise", 1, "exit code 1, with these last words"),
            pytest.param(
                "kill", 137, "signal SIGKILL, with these last words", marks=pytest.mark.long
            ),
        ],
    )
    def test_ends_together(self, how: str, code: int, words: str, tmp_path: Path) -> None:
        done = launch(tmp_path, how, options=("--devices", "4"))
        assert done.returncode == code, done.stderr
        assert words in done.stderr
        assert how == "kill" or "ValueError: a fault of this process alone" in done.stderr
        # the first cause comes first, ahead of the traceback of a process that waits for this one
        if how == "raise":
            said = [
                line
                for line in done.stderr.splitlines()
                if line.startswith(("spmd: process", "Traceback"))
            ]
            assert said[0] == (
                "spmd: process 1 has ended by ValueError('a fault of this process alone'), and "
                "others go on to programs of all processes."
            )
            assert done.stderr.splitlines()[-1] == (
                "spmd launch: the first cause: process 1: ValueError: a fault of this process alone"
            )


class TestProcesses:
    """The launcher and its processes, whatever they run."""

    def run(self, code: str, count: int, logs: Path) -> int:
        return local_processes.run([sys.executable, "-S", "-c", code], count, logs, devices=None)

    def test_environment(self, tmp_path: Path) -> None:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
        code = f"import os; print(*(os.environ[name] for name in {names!r}))"
        assert self.run(code, 3, tmp_path) == 0
        found = [path.read_text().strip() for path in sorted(tmp_path.iterdir())]
        assert found == ["1 3 1 127.0.0.1", "2 3 2 127.0.0.1"]

    def test_one_fails(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code = (
            "import os, sys, time\nif os.environ['RANK'] == '1': sys.exit('the last word')\n"
            "time.sleep(1000)"
        )
        assert self.run(code, 3, tmp_path) == 1
        error = capsys.readouterr().err
        assert (
            "process 1 (pid " in error
            and "ended with exit code 1" in error
            and "the last word" in error
        )

    def test_first_cause_last(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The error of one process is the last line, though others end first with errors about
        it."""
        code = (
            "import os, time\n"
            "class ProcessError(Exception): pass\n"
            "index = int(os.environ['RANK'])\n"
            "time.sleep(index / 4)\n"
            "raise KeyError('lr') if index == 2 else ProcessError('another process has failed')\n"
        )
        assert self.run(code, 3, tmp_path) == 1
        assert (
            capsys.readouterr().err.splitlines()[-1]
            == "spmd launch: the first cause: process 2: KeyError: 'lr'"
        )

    def test_one_ignores_sigterm(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local_processes, "_GRACE", 0.5)
        code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "0":
    sys.exit(3)
time.sleep(1000)
"""
        assert self.run(code, 2, tmp_path) == 3

    def test_sigterm_is_passed_on(self, tmp_path: Path) -> None:
        code = (
            "import sys, time; from signal import *; signal(SIGTERM, lambda *_: sys.exit(0)); "
            "print('up', flush=True)"
        )
        command = [sys.executable, "-S", "-c", f"{code}; time.sleep(60)"]
        runner = (
            "import sys; from pathlib import Path; from spmd.jobs.launching import local_processes;"
            f"sys.exit(local_processes.run({command!r}, 2, Path({str(tmp_path)!r}), devices=None))"
        )
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen(
            [sys.executable, "-c", runner], env=env, stdout=subprocess.PIPE, text=True
        ) as started:
            assert started.stdout is not None
            assert started.stdout.readline() == "up\n"
            while not any(path.read_text() for path in tmp_path.iterdir()):
                time.sleep(0.05)
            started.send_signal(signal.SIGTERM)
            assert started.wait(timeout=30) == 0
