"""Checks that nothing which was tested before goes untested: each test of the baseline is one of `make test-all`, or
`covered.tsv` names the property that shows the same. Names in `tests/selected.py` must be those of tests.

    python tests/baseline/check.py

`durations.tsv.gz` holds the baseline: the ids of commit b92dced, with seconds of the CPU where they were measured
(`pytest --record FILE` writes such rows). A row of `covered.tsv` is an id, or the name of a class or a file, a tab, and
the test that covers it.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from parts import durations  # noqa: E402
from selected import LONG, PROMISED, names  # noqa: E402


def collected() -> set[str]:
    """The ids of all tests."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


def faults(tests: set[str]) -> list[str]:
    """The faults of the tables, a line each."""
    known = {name for test in tests for name in names(test)}
    rows = [row.split("\t") for row in (ROOT / "tests/baseline/covered.tsv").read_text().splitlines()]
    covered = {row[0] for row in rows}
    lost = [test for test in durations() if test not in tests and covered.isdisjoint(names(test))]
    return [
        *(f"no longer tested, and covered by nothing: {test}" for test in lost),
        *(f"covers nothing, as it is no test: {row[1]}" for row in rows if row[1] not in known),
        *(f"selected, but no test: {name}" for name in (*LONG, *PROMISED) if name not in known),
    ]


if __name__ == "__main__":
    found = faults(collected())
    print(*found or ["each test of the baseline is in make test-all, or covered"], sep="\n")
    sys.exit(bool(found))
