"""No program that a recipe's plan compiles for a TPU has the pattern of a known miscompile."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from tests.recipes.small import RECIPES

pytestmark = [
    pytest.mark.long,  # each plan compiles for 10 to 200 s
    pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra tpu"),
]

TARGETS = ("v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1")

# Runs a recipe; each program's text, as it is used, is searched for every pattern of an optimised
# program.
SEARCHED = """
import runpy, sys
from spmd.core.programs import miscompiles
from spmd.core.programs import compiler

compile_right = miscompiles.compile_right


def searched(lowered, options, platform):
    executable, notes = compile_right(lowered, options, platform)
    if platform == "tpu":
        assert not miscompiles.has_moved_scatter(executable)
        used = {row.name: row for row in miscompiles.MISCOMPILES if row.applies(platform, options)}
        named = {name for name, _ in notes}
        text = lowered.as_text()
        late = {
            name
            for name, row in used.items()
            if row.in_lowered(lowered, text) or row.in_optimized(executable)
        }
        assert late <= named, (late, named)
        print("searched", sorted(named))
    return executable, notes


miscompiles.compile_right = searched
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_pattern(recipe: str, target: str, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        SEARCHED,
        str(ROOT / "recipes" / f"{recipe}.py"),
        *RECIPES[recipe],
    ]
    done = subprocess.run(
        [*command, "--target", target],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert "searched" in done.stdout, done.stdout
