"""The benchmark of the host's part, tiny: it measures known programs, and its figures are
complete."""

from pathlib import Path

import pytest
import torch

import spmd
from recipes.benchmarks import host_cost
from recipes.benchmarks.host_cost import DISPATCH, KEY, TRACE


def test_syncs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = host_cost.main(
        ["--parts", "syncs", "--nodes", "20", "60", "--rounds", "1", "--out", str(tmp_path)]
    )["syncs"]
    assert list(found) == [20, 60]
    assert all(costs[name] > 0 for costs in found.values() for name in (TRACE, KEY, DISPATCH))
    assert "A sync of a known program" in capsys.readouterr().out
    assert (tmp_path / "host_cost.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_ops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_cost, "REPEAT", 3)
    found = host_cost.main(["--parts", "ops", "--rounds", "1", "--out", str(tmp_path)])["ops"]
    assert list(found) == list(host_cost.cases("cpu"))
    assert all(time > 0 for pairs in found.values() for pair in pairs for time in pair)


def test_layers_are_one_known_program() -> None:
    """They record as many ops as is said, and compile once."""
    made = {}
    for device in ("xla", "cpu"):
        x, *weights = (torch.linspace(0.5, 1.5, 4, device=device) for _ in range(6))
        spmd.sync()
        before = spmd.metrics.counter("recorded_ops"), spmd.metrics.num_compiles()
        made[device] = host_cost.deep(x, weights)
        if device == "xla":
            assert spmd.metrics.counter("recorded_ops") - before[0] == 5 * host_cost.LAYER
            spmd.sync()
            again = host_cost.deep(x, weights)
            spmd.sync()
            assert spmd.metrics.num_compiles() - before[1] == 1
            torch.testing.assert_close(again.cpu(), made["xla"].cpu(), rtol=0, atol=0)
    torch.testing.assert_close(made["xla"].cpu(), made["cpu"])


@pytest.mark.long
def test_devices(tmp_path: Path) -> None:
    flags = ["--devices", "1", "8", "--layers", "1", "--rounds", "1", "--out", str(tmp_path)]
    found = host_cost.main(["--parts", "devices", *flags])
    assert list(found["devices"]) == [1, 8] and all(
        costs[TRACE] > 0 for costs in found["devices"].values()
    )
