"""Checks that nothing which was tested before goes untested: each test of the baseline is one of
`make test-all`, or `covered.tsv` names the property that shows the same. Names in
`tests/selected.py` must be those of tests.

    python tests/baseline/check.py         # which make lint runs
    python tests/baseline/check.py FILE    # takes over what `pytest --record FILE` wrote

`durations.tsv.gz` holds the baseline: ids of tests, with seconds of the CPU where they were
measured, under GSPMD or Shardy, the longer. A row of `covered.tsv` is an id, or the name of a class
or a file, a tab, and the test that covers it.
"""

import gzip
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from parts import DURATIONS, durations  # noqa: E402
from selected import END_TO_END, PROMISED, names  # noqa: E402


def collected() -> set[str]:
    """The ids of all tests."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return {line for line in done.stdout.splitlines() if "::" in line}


def faults(tests: set[str]) -> list[str]:
    """The faults of the tables, a line each."""
    known = {name for test in tests for name in names(test)}
    rows = [
        row.split("\t") for row in (ROOT / "tests/baseline/covered.tsv").read_text().splitlines()
    ]
    covered = {row[0] for row in rows}
    lost = [test for test in durations() if test not in tests and covered.isdisjoint(names(test))]
    return [
        *(f"no longer tested, and covered by nothing: {test}" for test in lost),
        *(f"covers nothing, as it is no test: {row[1]}" for row in rows if row[1] not in known),
        *(
            f"selected, but no test: {name}"
            for name in (*END_TO_END, *PROMISED)
            if name not in known
        ),
    ]


def take(recorded: Path) -> None:
    """Writes recorded seconds over those of the baseline, and adds the tests that it lacks."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for name, _, taken in (row.rpartition("\t") for row in recorded.read_text().splitlines()):
        seconds[name] = max(seconds[name], float(taken))
    rows = dict.fromkeys(collected()) | durations() | seconds
    text = "".join(
        f"{name}\t{'' if taken is None else taken}\n" for name, taken in sorted(rows.items())
    )
    DURATIONS.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    if sys.argv[1:]:
        take(Path(sys.argv[1]))
    found = faults(collected())
    print(*found or ["each test of the baseline is in make test-all, or covered"], sep="\n")
    sys.exit(bool(found))
