"""Loads that each break one limit of `changes.py`: `test_files.py::TestLimits`."""

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from changes import Kind, Values


def write(folder: Path) -> None:
    (folder / "x").write_text("unchanged")


def kind(action: Callable[[Path], object]) -> Kind:
    """A load that does this where its file is not as it was."""

    def load(folder: Path) -> Values:
        file = folder / "x"
        is_file = (
            file.is_file() and not file.is_symlink() and file.stat().st_size == len("unchanged")
        )
        is_unchanged = is_file and file.read_bytes() == b"unchanged"
        return {"x": 1} if is_unchanged and len([*folder.iterdir()]) == 1 else {"x": action(folder)}

    return Kind(write, load)


def busy(_: Path) -> int:
    """Takes six seconds of the processor."""
    end = time.process_time() + 6
    while time.process_time() < end:
        pass
    return 1


def missing(_: Path) -> int:
    return dict[str, int]()["x"]


KINDS = {
    "memory": kind(lambda folder: torch.ones(1 << 26).sum().item()),
    "time": kind(busy),
    "crash": kind(lambda folder: ctypes.string_at(0)),
    "other": kind(lambda folder: 2),
    "error": kind(missing),
    "write": kind(lambda folder: (folder.parent / "outside/y").write_text("")),
    "read": kind(lambda folder: Path("/etc/passwd").read_text() and 1),
    "process": kind(
        lambda folder: subprocess.run([sys.executable, "-c", ""], check=True).returncode + 1
    ),
}
