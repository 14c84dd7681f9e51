"""Public names have types: `mypy --strict` passes a program that uses each of them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_public_api import NAMES

from spmd.packages import PATHS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/docs/all_public_names.py"
SHOWN = {path: name for name, path in PATHS.items()} | {"spmd.tensors.metrics": "spmd.metrics"}
DOORS = {SHOWN.get(module.__name__, module.__name__): names.split() for module, names in NAMES.items()}


def used() -> set[str]:
    """The names in the file as `door.name`, also where a variable stands for the door."""
    text = FILE.read_text()
    for short, door in re.findall(r"^ +(\w+) = (spmd\.\w+)$", text, re.MULTILINE):
        text = re.sub(rf"(?<![\w.]){short}\.(?=\w)", f"{door}.", text)
    paths = [path.split(".") for path in re.findall(r"\b(?:spmd|fsdp)(?:\.\w+)+", text)]
    return {".".join(path[:count]) for path in paths for count in (2, 3)}


def test_each_name_is_used() -> None:
    assert {f"{door}.{name}" for door, names in DOORS.items() for name in names} - used() == set()


@pytest.mark.long
def test_strict() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir=.mypy_cache/typed"]
    result = subprocess.run([*command, str(FILE)], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
