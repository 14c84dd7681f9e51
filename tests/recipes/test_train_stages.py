"""`recipes/train_stages.py`: the losses of FSDP alone, and the pictures."""

from pathlib import Path

import pytest

import spmd
from recipes import train_stages

SMALL = ["--width=16", "--length=16", "--layers=4", "--steps=3"]


@pytest.fixture(autouse=True)
def micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules set it for the process."""
    monkeypatch.setattr(spmd.config, "micro_batches", 0)


def test_losses(capsys: pytest.CaptureFixture[str]) -> None:
    losses = train_stages.main([*SMALL, "--stages=4", "--micro-batches=4"])
    assert "4 layers on 4 stages over stage, forward: 4 micro-batches" in capsys.readouterr().out
    assert train_stages.main([*SMALL, "--stages=1"]) == pytest.approx(losses, rel=1e-5)


def test_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stages.png"
    assert train_stages.main([*SMALL, "--batch=8", f"--picture={file}"]) == []
    assert file.read_bytes().startswith(b"\x89PNG")
    assert "4 micro-batches" in capsys.readouterr().out


def test_schedule() -> None:
    """Each stage has each micro-batch once forward and once backward, the later stages later."""
    numbers = train_stages.schedule(3, 4)
    assert numbers.shape == (3, 12)
    assert numbers[0].tolist() == [1, 2, 3, 4, 0, 0, 0, 0, -1, -2, -3, -4]
    assert numbers[2].tolist() == [0, 0, 1, 2, 3, 4, -1, -2, -3, -4, 0, 0]
