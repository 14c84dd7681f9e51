"""The tests that `make test` runs (`--quick`) of those that `make test-all` runs, and a tenth of
the others in `.ci/run` (`--sample`).

In `make test` a test takes at most `MOST` seconds of the processor, by `baseline/durations.tsv.gz`.
Of a parametrized test whose cases take longer together, a share of these runs, by the commit and at
least one. What takes longer by itself does not run, nor what is marked `long`, but for what
`selected.py` names.

Under Shardy run of these the promises that both partitioners must keep: the tests of `tests/spmd`,
`tests/manual` and `tests/golden`, each class `TestSharded`, and what `selected.py` or a marker
names (`@pytest.mark.partitioned("gradients")`).

A test without a row in the table is new: it counts as the mean of its other cases, or as short.
`pytest --record FILE` writes rows, and `python tests/baseline/check.py FILE` takes them over.
"""

import datetime
import os
import subprocess
import zlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import pytest
from parts import MOST, UNKNOWN, durations
from selected import END_TO_END, PROMISED, names

SAMPLES = 10  # of all tests, one of which `.ci/run` takes

_TESTS = Path(__file__).resolve().parent
_PROMISES = ("spmd", "manual", "golden")
Chosen = tuple[list[pytest.Item], list[pytest.Item]]  # the tests that run, and those that do not


def commit() -> int:
    """The commit's id as a number, which draws shares; where there is no git, the day."""
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=_TESTS, check=False
    )
    return int(git.stdout, 16) if git.returncode == 0 else datetime.date.today().toordinal()


def quick(items: Iterable[pytest.Item], commit: int, partitioner: str) -> Chosen:
    """The tests of `make test` under a partitioner."""
    items = list(items)
    seconds = {name: taken for name, taken in durations().items() if taken is not None}
    by_test: defaultdict[str, list[float]] = defaultdict(list)
    for name, taken in seconds.items():
        by_test[_test(name)].append(taken)
    for item in items:  # a new case takes what the others do
        if item.nodeid not in seconds:
            seconds[item.nodeid] = fmean(by_test.get(_test(item.nodeid), [UNKNOWN]))
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    chosen: set[pytest.Item] = set()
    for item in items:
        known = names(item.nodeid)
        if item.get_closest_marker("long") or (
            partitioner == "shardy" and not _is_promised(item, known)
        ):
            continue
        if not END_TO_END.isdisjoint(known):
            chosen.add(item)
        elif seconds[item.nodeid] <= MOST:
            cases[_test(item.nodeid)].append(item)
    for same in cases.values():
        shares = 1 + int(sum(seconds[item.nodeid] for item in same) / MOST)
        chosen.update(sorted(same, key=_hash)[commit % min(shares, len(same)) :: shares])
    return _split(items, chosen)


def sample(items: Iterable[pytest.Item], commit: int, partitioner: str) -> Chosen:
    """A tenth of all tests, by a commit: ten commits run all, by chance; under Shardy every second
    one of these. What `make test` runs on this commit with the same generated code (XLA_FLAGS of
    `run.sh`) is left out."""
    items = list(items)
    shares = SAMPLES * (1 + (partitioner == "shardy"))
    drawn = {item for item in items if _hash(item) % shares == commit % shares}
    if os.environ.get("XLA_FLAGS"):
        drawn.difference_update(quick(items, commit, partitioner)[0])
    return _split(items, drawn)


def _is_promised(item: pytest.Item, known: Iterable[str]) -> bool:
    if hasattr(item, "callspec") and not {"gspmd", "shardy"}.isdisjoint(
        map(str, item.callspec.params.values())
    ):
        return False  # it sets the partitioner itself, and runs under both
    folder = item.path.relative_to(_TESTS).parts[0]
    is_named = "::TestSharded::" in item.nodeid or not PROMISED.keys().isdisjoint(known)
    return is_named or folder in _PROMISES or item.get_closest_marker("partitioned") is not None


def _test(name: str) -> str:
    """A test's id without its case."""
    return name.partition("[")[0]


def _hash(item: pytest.Item) -> int:
    return zlib.crc32(item.nodeid.encode())


def _split(items: list[pytest.Item], chosen: set[pytest.Item]) -> Chosen:
    return [item for item in items if item in chosen], [
        item for item in items if item not in chosen
    ]
