"""Each package around the library, and all of them, may be missing: the rest imports, records,
compiles and trains."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support import run_script

from spmd.packages import NAMES

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("adaptive", "jobs", "names", "parallel", "steps", "tools")
HIDE = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); import hidden\n"


@pytest.mark.parametrize("hidden", [*PACKAGES, " ".join(PACKAGES)])
def test_tour_and_main_job(hidden: str) -> None:
    environment = {
        **os.environ,
        "HIDDEN": hidden,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "hidden"]
    done = subprocess.run(
        [*command, "tests/test_tour.py", "tests/main_job.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "8 passed" in done.stdout


@pytest.mark.parametrize(("module", "names"), NAMES.items())
def test_a_name_of_a_missing_package(module: str, names: str) -> None:
    package, _, rest = module.partition(".")
    name = names.split()[0] if names else rest
    code = f"""
        import spmd
        for code in ("spmd.{name}", "from spmd import {name}"):
            try:
                exec(code)
            except ImportError as error:
                print(error)
    """
    text = f"spmd.{name} is of the package spmd.{package}, which is not installed\n"
    assert run_script(HIDE + textwrap.dedent(code), HIDDEN=package) == 2 * text
