"""`recipes/pretrain.py`: each file builds, and trains as narrowed."""

import sys
from pathlib import Path

import pytest

import spmd
from recipes import pretrain

CONFIGS = sorted((Path(pretrain.__file__).parent / "configs").glob("*.toml"))
FEW = ("llama-8b", "mixtral-8x7b")  # in `make test`


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=() if file.stem in FEW else pytest.mark.long)
        for file in CONFIGS
    ],
)
def test_losses_fall(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spmd.config, "replay_steps", False)
    monkeypatch.setattr(sys, "argv", ["pretrain.py", str(file), "--small", "--steps=11"])
    pretrain.main()
    losses = [
        float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "loss" in line
    ]
    assert len(losses) == 2 and losses[1] < losses[0] - 0.2


def test_changes(tmp_path: Path) -> None:
    (file,) = (one for one in CONFIGS if one.stem == "llama-70b")
    config = pretrain.read(file, is_small=False, changes=["model.num_hidden_layers=4", "batch=16"])
    assert config["model"]["num_hidden_layers"] == 4 and config["batch"] == 16
    with pytest.raises(SystemExit, match=r"has no model\.layers"):
        pretrain.read(file, is_small=False, changes=["model.layers=4"])


def test_a_file_of_text(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one\ntwo\n")
    documents = pretrain._documents(file)
    assert [bytes(next(documents)) for _ in range(3)] == [b"one\n", b"two\n", b"one\n"]
