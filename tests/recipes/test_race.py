"""`make gpu` on the CPU: every check and every side of each part, and the plans that stand beside a
run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.benchmarks import race
from recipes.benchmarks.race_sides import SIDES


@pytest.mark.long
def test_dry_run(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "recipes.benchmarks.race",
        "--dry-run",
        "--minutes",
        "20",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=race.results.ROOT, capture_output=True, text=True, timeout=1200
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    run = json.loads((tmp_path / "race.json").read_text())
    assert not run["lines"], printed
    assert {part: tuple(sides) for part, sides in run["found"].items()} == SIDES
    checks, *_ = run["tables"]
    assert sum(row[0].startswith("ok ") for row in checks["rows"]) == 9, printed
    for part in ("gpt", "llama"):
        assert all(
            len(figures["losses"]) == 13 and figures["step"] > 0
            for figures in run["found"][part].values()
        )
    tokens = [figures["tokens 8"] for figures in run["found"]["decode"].values()]
    assert tokens[0] == tokens[1] == tokens[2]


def test_the_plans_are_of_every_planned_step() -> None:
    plans = json.loads(race.PLANS.read_text())["plans"]
    named = [(plan["target"], plan["part"], plan["side"]) for plan in plans]
    assert named == [(target, *step) for target in ("h100:1", "h200:1") for step in race.PLANNED]
    assert all(plan["step"] > 0 and plan["peak"] > 0 for plan in plans)


def test_a_planned_step_stands_beside_its_run() -> None:
    figures = {"step": 0.4, "device": "NVIDIA H200", "peak": 2**30}
    table = race.beside({"gpt": {}, "llama": {"compiled": figures}, "decode": {}})
    assert table is not None
    assert [next(iter(column.cells)) for column in table.columns][:2] == [
        "llama, compiled",
        "h200:1",
    ]
    assert race.beside({"gpt": {}, "llama": {}, "decode": {}}) is None


def test_differing_losses_are_wrong(tmp_path: Path) -> None:
    options = type("Options", (), {"out": str(tmp_path), "minutes": 1.0})
    run = race.Race(options)  # type: ignore[arg-type]
    run.found["gpt"] = {"lazy": {"losses": [10.0, 9.0]}, "JAX by hand": {"losses": [10.0, 9.2]}}
    assert run.wrong() == ["gpt: losses of step 2 differ: {'lazy': 9.0, 'JAX by hand': 9.2}"]
