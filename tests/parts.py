"""The files of some folders in parts that take about equally long, by
`tests/baseline/durations.tsv.gz`.

    python tests/parts.py 1 2 tests/core              the files of the first of two parts
    python tests/parts.py --quick 1 2 tests/core      as long as they take in `make test`

A file that has no duration there counts by its length. Needs no torch, so that it costs nothing.
"""

import gzip
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = ROOT / "tests/baseline/durations.tsv.gz"
MOST = 0.3  # seconds of the CPU that a test takes in `make test`, all its cases together
UNKNOWN = 0.1  # of a test that is not in the table
_PER_LINE = 0.05  # seconds of the CPU: about the mean over all files


def durations() -> dict[str, float | None]:
    """By test id, its seconds of the CPU when they were last recorded; None where they were not."""
    rows = (
        row.split("\t") for row in gzip.decompress(DURATIONS.read_bytes()).decode().splitlines()
    )
    return {name: float(seconds) if seconds else None for name, seconds in rows}


def parts(files: list[Path], number: int, *, quick: bool = False) -> list[list[Path]]:
    """Files in this many parts: the longest first, each to what is shortest then."""
    by_test: defaultdict[str, float] = defaultdict(float)
    for name, seconds in durations().items():
        if seconds and not (quick and seconds > MOST):
            by_test[name.partition("[")[0]] += seconds
    taken: defaultdict[str, float] = defaultdict(float)
    for name, seconds in by_test.items():
        taken[name.partition("::")[0]] += min(seconds, MOST) if quick else seconds
    by_file = {
        file: taken.get(_name(file)) or _PER_LINE * len(file.read_text().splitlines())
        for file in files
    }
    made: list[list[Path]] = [[] for _ in range(number)]
    for file in sorted(files, key=lambda file: (-by_file[file], file)):
        min(made, key=lambda part: sum(by_file[f] for f in part)).append(file)
    return [sorted(part) for part in made]


def _name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


if __name__ == "__main__":
    quick = sys.argv[1] == "--quick"
    part, number, *folders = sys.argv[1 + quick :]
    paths = [ROOT / folder for folder in folders]
    files = sorted(
        file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))
    )
    for file in parts(files, int(number), quick=quick)[int(part) - 1]:
        print(_name(file))
