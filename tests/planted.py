"""Faults planted in a copy of the tree, each of which a guard must name: python tests/planted.py

A row is the guard's command, the file, what is appended to it, and words of the guard's answer.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LINT = (
    "-c",
    "from importlinter.cli import lint_imports_command; lint_imports_command(['--no-cache'])",
)
TESTS = "-m", "pytest", "-q", "-p", "no:cacheprovider"
FLOORS = *TESTS, "tests/test_floors.py"
SIZE = *TESTS, "tests/test_size.py"


class Fault(NamedTuple):
    guard: tuple[str, ...]
    file: str
    text: str
    words: str


FAULTS = (
    Fault(
        LINT,
        "spmd/core/base/dtypes.py",
        "from ..record import storage\n",
        "own layer and lower ones BROKEN",
    ),
    Fault(
        LINT,
        "spmd/mesh/notes.py",
        "from .. import tensors\nfrom ..tensors import shards\n",
        "lower ones BROKEN",
    ),
    Fault(
        LINT,
        "spmd/tools/hlo/program_facts.py",
        "from ...core.graph import store\n",
        "past its doors BROKEN",
    ),
    Fault(LINT, "spmd/names/torch_words.py", "from ..core import extend\n", "door BROKEN"),
    Fault(
        LINT,
        "fsdp/units.py",
        "from spmd.tensors import shards\n",
        "FSDP reaches spmd through its door BROKEN",
    ),
    Fault(LINT, "spmd/mesh/notes.py", "import fsdp.units\n", "own layer and lower ones BROKEN"),
    Fault(LINT, "fsdp/policies.py", "import spmd\n", "Policies and plans touch no device BROKEN"),
    Fault(
        LINT, "spmd/ops/floats.py", "from ..core.base import config\n", "jax and torch alone BROKEN"
    ),
    Fault(
        LINT,
        "spmd/core/graph/meta.py",
        "from . import rewrite\n",
        "No cycle inside a package BROKEN",
    ),
    Fault(FLOORS, "spmd/tools/unlisted.py", "NUMBER = 1\n", "test_each_package_has_a_layer"),
    Fault(
        FLOORS,
        "spmd/mesh/notes.py",
        "def late():\n    import json\n",
        "test_no_import_inside_a_function",
    ),
    Fault(
        FLOORS,
        "spmd/mesh/notes.py",
        "import os\nHOME = os.environ['HOME']\n",
        "test_only_config_reads",
    ),
    Fault(
        FLOORS,
        "spmd/mesh/notes.py",
        "import jax._src.core\n",
        "test_only_one_file_knows_private_names_of_jax",
    ),
    Fault(FLOORS, "spmd/core/__init__.py", "NUMBER = 1\n", "test_doors_only_open"),
    Fault(SIZE, "spmd/adaptive/lm_head.py", "NUMBER = 1\n" * 60, "commit tests/size.tsv alone"),
)


def copy_tree(folder: Path) -> None:
    """Copies the files of the checkout into a folder."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def unnoticed(faults: tuple[Fault, ...] = FAULTS) -> Iterator[str]:
    """The faults that their guard does not name, a line each; first of all a guard that fails
    without one."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        copy_tree(copy)

        def answer(guard: tuple[str, ...]) -> tuple[int, str]:
            environment = os.environ | {
                "PYTHONPATH": str(copy),
                "PYTHONDONTWRITEBYTECODE": "1",
                "COLUMNS": "200",
            }
            done = subprocess.run(
                [sys.executable, *guard], cwd=copy, env=environment, capture_output=True, text=True
            )
            return done.returncode, done.stdout + done.stderr

        for guard in dict.fromkeys(fault.guard for fault in faults):
            code, output = answer(guard)
            if code:
                yield f"{guard[-1]} fails without a fault: {output[-600:]}"
        for fault in faults:
            path = copy / fault.file
            text = path.read_text() if path.exists() else None
            path.write_text((text or "") + fault.text)
            code, output = answer(fault.guard)
            if not code or fault.words not in output:
                yield f"{fault.file} with {fault.text[:40]!r}: exit {code}, {output[-600:]}"
            path.unlink() if text is None else path.write_text(text)


if __name__ == "__main__":
    found = [*unnoticed()]
    print(*found, f"{len(FAULTS) - len(found)} of {len(FAULTS)} planted faults are named", sep="\n")
    sys.exit(bool(found))
