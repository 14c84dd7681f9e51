"""Every recipe that trains, lazily and with --compile: steps with equal losses bit for bit, which
are replayed."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recipes import (
    train_diffusion,
    train_gpt,
    train_llama,
    train_mixtral,
    train_resnet,
    training,
    wrap_hugging_face,
)

MODEL = (
    "--layers=1 --width=16 --heads=4 --sequence=16 --batch=16 --warmup=2 --steps=6 --eval-every=3 "
    "--sample=0"
)
DIGITS = "--width=4 --batch=240 --epochs=2"
RECIPES = {"gpt": (train_gpt, f"{MODEL} --dropout=0.1")}
LONG = {
    "llama": (train_llama, f"{MODEL} --kv-heads=2"),
    "hugging_face": (wrap_hugging_face, MODEL),
    "resnet": (train_resnet, DIGITS),
    "llama_of_three_axes": (
        train_llama,
        f"{MODEL} --kv-heads=2 --mesh=data=2,fsdp=2,tensor=2 --save-every=2",
    ),
    "gpt2": (wrap_hugging_face, f"{MODEL} --model=gpt2 --mesh=data=2,fsdp=4"),
    "diffusion": (
        train_diffusion,
        "--width=8 --batch=16 --warmup=2 --steps=6 --eval-every=3 --rows=8 --sampling-steps=4",
    ),
    "mixtral": (train_mixtral, MODEL),
    "resnet_of_rows": (train_resnet, f"{DIGITS} --layout=spatial"),
    "resnet_of_replicas": (train_resnet, f"{DIGITS} --layout=data"),
}


@pytest.mark.parametrize(
    "name", [*RECIPES, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
)
def test_lazy_and_compiled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Histories hold the loss of each step as a float; evaluation stands between steps."""
    recipe, flags = (RECIPES | LONG)[name]
    kept: list[Any] = []
    monkeypatch.setattr(training, "READ_EVERY", 1)
    monkeypatch.setattr(training, "draw", lambda history, **_: kept.append(history))
    monkeypatch.setattr(train_resnet, "draw_curves", lambda history, **_: kept.append(history))
    recipe.main([*flags.split(), "--out", str(tmp_path)])
    assert "spmd.compile of" not in capsys.readouterr().out
    recipe.main([*flags.split(), "--out", str(tmp_path), "--compile"])
    said = re.search(
        r"<spmd\.compile of .*: (\d+) calls recorded, (\d+) replayed", capsys.readouterr().out
    )
    assert said is not None
    recorded, replayed = int(said[1]), int(said[2])
    lazy, compiled = kept
    losses = compiled.loss if recipe is train_resnet else compiled.train
    assert recorded == 2 and recorded + replayed == len(losses) > 5, said[0]
    assert len({loss for _, loss in losses}) > 5, "they change"
    # Evaluations are programs of their own, which read weights where the steps have left them, as
    # rows or alone.
    assert compiled.heldout == [
        (step, pytest.approx(loss, rel=1e-7)) for step, loss in lazy.heldout
    ]
    assert replace(compiled, heldout=lazy.heldout) == lazy
