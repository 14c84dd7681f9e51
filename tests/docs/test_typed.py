"""Public names have types: `mypy --strict` knows each of them, and passes a program that uses
most."""

import subprocess
import sys
from pathlib import Path

import pytest
from test_public_api import DOORS, public, shown

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests/docs/all_public_names.py"


@pytest.mark.long
def test_strict(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    names = tmp_path / "names.py"
    imports = sorted(f"import {shown(module)}" for module in DOORS)
    uses = sorted(f"{shown(module)}.{name}" for module in DOORS for name in public(module))
    names.write_text("\n".join([*imports, *uses, ""]))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir=.mypy_cache/typed",
    ]
    result = subprocess.run(
        [*command, str(FILE), str(names)], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
