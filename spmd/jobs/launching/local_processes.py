"""Processes of one script on this machine: started together, watched, and ended together."""

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ...core import variables

_PERIOD = 0.1  # seconds between two looks
# seconds in which the others end by themselves once one has failed, and again after SIGTERM
_GRACE = 4.0
_LAST_LINES = 20
_MOST_SHOWN = 3  # processes, besides the first that failed


@dataclass
class _Process:
    index: int
    popen: "subprocess.Popen[bytes]"
    log: Path | None

    def describe(self) -> str:
        """The process and how it has ended."""
        code = self.popen.returncode
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return f"process {self.index} (pid {self.popen.pid}) has ended with {how}"

    def was_killed(self) -> bool:
        """True if a signal has ended it; jax itself aborts a process when another one dies."""
        return (self.popen.poll() or 0) < 0 and self.popen.returncode != -signal.SIGABRT

    def last_words(self) -> str:
        """The first traceback in its log, else the log's last lines; those of the first process are
        on the terminal."""
        if self.log is None:
            return ""
        lines = self.log.read_text(errors="replace").splitlines()
        # An error of its own comes before what the library prints of all processes.
        raised = next(
            (i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line), None
        )
        lines = lines[-_LAST_LINES:] if raised is None else lines[raised:][:_LAST_LINES]
        return f", with these last words ({self.log}):\n    " + "\n    ".join(lines or ["(none)"])

    def error(self) -> str:
        """The line of the first error in its log that is its own, not that of another process; else
        empty."""
        text = "" if self.log is None else self.log.read_text(errors="replace")
        # as torch.distributed prints it
        lines = re.sub(r"^\[rank\d+\]: ?", "", text, flags=re.MULTILINE).splitlines()
        raised = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
        ends = (next((line for line in lines[i + 1 :] if line[:1].strip()), "") for i in raised)
        return next((line for line in ends if "ProcessError" not in line), "")


def run(command: Sequence[str], count: int, logs: Path, *, devices: int | None) -> int:
    """Runs a command as `count` processes, which find each other by torchrun's variables; returns
    the exit status.

    The first process has this one's terminal, each other one a file in `logs`. When one fails, the
    rest are ended within 10 s, and its last lines are printed. SIGTERM and SIGINT are passed on.

    devices: the accelerators of each process, by its index; None: all of the machine are the
    process's.
    """
    logs.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if count > 1:
        _say(f"{count} processes; all but the first write to {logs}{os.sep}process-*.txt")
    started: list[_Process] = []
    secret = secrets.token_hex(32)
    ended_by: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        ended_by.append(number)
        # Ctrl-C comes to all processes from the terminal
        if number != signal.SIGINT or len(ended_by) > 1:
            _send(started, number if len(ended_by) < 3 else signal.SIGKILL)

    handlers = {
        number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        for index in range(count):
            log = None if index == 0 else logs / f"process-{index}.txt"
            process_variables = variables.variables_of_process(index, count, port, devices, secret)
            with open(os.devnull if log is None else log, "wb") as file:
                output = {} if log is None else {"stdout": file, "stderr": subprocess.STDOUT}
                stdin = None if index == 0 else subprocess.DEVNULL
                popen = subprocess.Popen(command, env=process_variables, stdin=stdin, **output)  # type: ignore[call-overload]
            started.append(_Process(index, popen, log))
        failed = _first_failed(started)
        killed = next((process for process in started if process.was_killed()), None)
        failed = killed or failed
        if failed is not None and not ended_by:
            _say(failed.describe() + failed.last_words())
            _end(started)
            failed_processes = [
                process for process in started if process is not failed and process.popen.poll()
            ]
            # The first to end may have ended for the fault of another one, which waits for all at
            # its end.
            for process in sorted(
                failed_processes,
                key=lambda ended_process: "Traceback" not in ended_process.last_words(),
            )[:_MOST_SHOWN]:
                _say(process.describe() + process.last_words())
            causes = [
                f"process {process.index}: {line}"
                for process in started
                if (line := process.error())
            ]
            if killed or causes:
                _say(f"the first cause: {killed.describe() if killed else causes[0]}")
        for process in started:
            process.popen.wait()
    finally:
        _send(started, signal.SIGKILL)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    code = 0 if failed is None else failed.popen.wait()
    return 128 - code if code < 0 else code


def _first_failed(started: Sequence[_Process]) -> _Process | None:
    """Waits for the processes' ends; returns the first that fails, None where all end well."""
    while True:
        codes = [process.popen.poll() for process in started]
        for process, code in zip(started, codes, strict=True):
            if code not in (None, 0):
                return process
        if None not in codes:
            return None
        time.sleep(_PERIOD)


def _end(started: Sequence[_Process]) -> None:
    """Waits for the processes, which learn of the failure themselves, and ends those that do not
    end."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            _send(started, number)
        deadline = time.monotonic() + _GRACE
        while time.monotonic() < deadline:
            if all(process.popen.poll() is not None for process in started):
                return
            time.sleep(_PERIOD)


def _send(started: Sequence[_Process], number: int) -> None:
    for process in started:
        if process.popen.poll() is None:
            process.popen.send_signal(number)


def _say(text: str) -> None:
    print(f"spmd launch: {text}", file=sys.stderr, flush=True)
