"""A ratchet: the figures of tests/house.py and the code lines of each folder are at most those of tests/budget.tsv.

    python tests/test_house.py    # lowers the rows that have become smaller, and drops those of folders that are gone

A row is raised by hand, in the commit whose message says what for.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "tests/budget.tsv"


# A thread or a signal may add a call to a count that a run makes.
COUNTED_BY_RUNNING = ("functions entered", "hops between files")


def budget() -> dict[str, float]:
    rows = (line.split("\t") for line in BUDGET.read_text().splitlines())
    return {name: float(value) for name, value in rows}


def counted() -> dict[str, float]:
    """The figures by name, and the code lines by folder: of a folder itself, without the folders below it."""
    script = ROOT / "tests/house.py"
    names: dict[str, object] = {"__name__": "house", "__file__": str(script)}
    before, sys.argv = sys.argv, [str(script), str(ROOT)]
    try:
        with suppress(SystemExit), redirect_stdout(io.StringIO()):  # it ends in exit(1) while a figure falls short
            exec(compile(script.read_text(), script, "exec"), names)
    finally:
        sys.argv = before
    figures: list[tuple[str, float, float]] = names["rows"]  # type: ignore[assignment]
    folders: dict[str, float] = {}
    for file in names["files"]:  # type: ignore[attr-defined]
        folder = file.name.rpartition("/")[0]
        folders[folder] = folders.get(folder, 0) + file.code
    return {name: value for name, value, _ in figures} | {f"code lines of {name}/": n for name, n in folders.items()}


def over(now: dict[str, float], most: dict[str, float]) -> Iterator[str]:
    for name, value in now.items():
        if name not in most:
            yield f"{name}: {value:,}, and tests/budget.tsv has no row of it"
        elif value > most[name] * (1.01 if name.startswith(COUNTED_BY_RUNNING) else 1):
            yield f"{name}: {value:,}, at most {most[name]:,}"


def test_nothing_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:  # other code runs under other settings
        if name.startswith(("XLA_", "SPMD_", "JAX_", "TPU_")):
            monkeypatch.delenv(name)
    grown = [*over(counted(), budget())]
    assert not grown, "\n".join(grown)


def test_what_grows_is_named() -> None:
    found = [*over({"a": 2, "b": 1, "c": 1}, {"a": 1, "b": 1})]
    assert found == ["a: 2, at most 1", "c: 1, and tests/budget.tsv has no row of it"]


if __name__ == "__main__":
    now = counted()
    most = budget() if BUDGET.exists() else now
    rows = {name: min(value, most.get(name, value)) for name, value in now.items()}
    BUDGET.write_text("".join(f"{name}\t{value:g}\n" for name, value in rows.items()))
