"""The recipe from slow to fast: every version computes the same, and the tools name what each one
costs."""

import argparse
import re
from pathlib import Path

import pytest

import spmd
from recipes import slow_to_fast as recipe

GIVEN = argparse.Namespace(steps=4, rows=2, width=32, layers=1)


@pytest.fixture(autouse=True)
def fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the recipe's command sets it."""
    monkeypatch.setattr(spmd.config, "fallback", "cpu")


def test_versions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = {}
    for name in ("slow", "fast"):
        spmd.metrics.clear()
        times = recipe.train(recipe.VERSIONS[name], GIVEN)
        assert times["step"] > 0 and times["compile"] > 0
        found[name] = spmd.profiler.hints()
    losses = re.findall(r"loss (\d+\.\d+)", capsys.readouterr().out)
    assert len(losses) == 2 and float(losses[0]) == pytest.approx(float(losses[1]), abs=2e-4)
    lines = {
        kind: [hint.line for hint in found["slow"] if hint.kind == kind]
        for kind in ("fallback", "read", "compile")
    }
    assert any("op(positions, self.most)" in line for line in lines["fallback"])
    assert any("scores.abs().max().item()" in line for line in lines["read"])
    assert any("loss.item()" in line for line in lines["read"]) and lines["compile"]
    assert not {hint.kind for hint in found["fast"]} & {"fallback", "read"}
    recipe.draw({"slow": times, "fast": times}, tmp_path / "drawn.png")
    assert (tmp_path / "drawn.png").stat().st_size > 1_000
