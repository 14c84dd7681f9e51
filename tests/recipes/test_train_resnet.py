"""The ResNet's recipe as a user runs it, tiny; its layouts against plain torch."""

import argparse
import copy
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from recipes import images, train_resnet
from recipes.training import make_console
from spmd import config

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "train_resnet.py"


def run(folder: Path, *arguments: str) -> str:
    """The recipe's output; it runs in a folder and a process of its own."""
    command = [sys.executable, str(RECIPE), "--out", "made", *arguments]
    # The time of a compilation depends on the machine.
    environment = {**os.environ, "SPMD_SLOW_COMPILE_SECONDS": "0"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "nothing but its report is printed: no warning, no log line of XLA"
    return done.stdout


class TestReport:
    """It prints the plan and an epoch's loss and accuracies, and leaves two pictures."""

    def test_digits(self, tmp_path: Path) -> None:
        sizes = ("--width=4", "--batch=360", "--epochs=1", "--chart", "8")
        printed = run(tmp_path, "--layout=spatial", *sizes)
        assert "8 device(s) here (height=8)" in printed and "collective-permute" in printed, (
            "rows of the neighbours"
        )
        assert re.search(
            r"epoch 1   loss \d\.\d+   training [\d.]+%   [\d,]+ images/s   held-out [\d.]+%",
            printed,
        )
        assert re.findall(r"(data|fsdp|spatial) +8 +[\d.]+ +[\d.]+", printed) == [
            "data",
            "fsdp",
            "spatial",
        ]
        for name in ("loss.png", "bytes.png"):
            assert (tmp_path / "made" / name).read_bytes().startswith(b"\x89PNG")

    def test_planned_at_the_shapes_of_imagenet(self, tmp_path: Path) -> None:
        sizes = ("--width=4", "--batch=8", "--fake_images=8")
        printed = run(tmp_path, "--fake_data", "--layout=spatial", *sizes, "--target=cpu:8")
        assert "cpu:8 (height=8)" in printed and "max_pool2d" in printed
        assert "epoch" not in printed, "nothing is trained"
        assert (tmp_path / "made" / "plan.html").read_text().startswith("<!doctype html>")


def steps(model: nn.Module, place: train_resnet.Placement) -> list[float]:
    """The losses of two steps of the recipe."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, eps=1e-4)
    data, losses = images.digits(), []
    for batch in list(images.batches(*data.train, batch=16, seed=0))[:2]:
        loss, _ = train_resnet.train_step(model, optimizer, *place.put(*batch))
        place.sync()
        losses.append(loss.item())
    return losses


class TestLayouts:
    """Each layout gives plain torch's losses and state, batch norm's statistics included."""

    @pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
    @pytest.mark.parametrize("layout", ["data", "fsdp", "spatial"])
    def test_same(self, layout: str, partitioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(config, "partitioner", partitioner)
        args = argparse.Namespace(fake_data=False, width=4, seed=0, lr=5e-3)
        plain, _ = train_resnet.make(train_resnet.Placement(), args, classes=10)
        place = train_resnet.MeshPlacement(layout, 8)
        model = place.wrap(copy.deepcopy(plain).to("xla"))
        assert steps(model, place) == pytest.approx(
            steps(plain, train_resnet.Placement()), rel=1e-5
        )
        for (name, value), wanted in zip(
            model.state_dict().items(), plain.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(
                value.cpu(), wanted, rtol=2e-5, atol=2e-5, msg=lambda text, name=name: name + text
            )


class TestImages:
    """The digits and their split; batches of an epoch."""

    def test_digits(self) -> None:
        data = images.digits()
        assert data.train[0].shape == (1437, 1, 32, 32) and data.heldout[0].shape == (
            360,
            1,
            32,
            32,
        )
        assert data.train[1].bincount().min() > 100 and data.classes == 10

    def test_batches(self) -> None:
        pictures = torch.arange(10.0).view(10, 1, 1, 1)
        made = list(images.batches(pictures, torch.arange(10), batch=4, seed=0))
        assert [len(labels) for _, labels in made] == [4, 4]
        assert all(torch.equal(some.flatten().long(), labels) for some, labels in made)
        assert len({*torch.cat([labels for _, labels in made]).tolist()}) == 8


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--batch 12", "--batch 12 must be a multiple of the 8 devices"),
            ("--layout model", "invalid choice: 'model'"),
            ("--steps 0", "--steps must be at least 1, got 0"),
            ("--steps 3 --epochs 1", "not allowed with"),
            ("--epochs 0", "at least one epoch"),
            ("--fake-data --fake-images 8", "at least one batch"),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            train_resnet.parse(arguments.split())
        assert message in capsys.readouterr().err

    def test_steps_end_within_an_epoch(self) -> None:
        args = train_resnet.parse(["--device=cpu", "--steps=3", "--batch=480", "--width=2"])
        history = train_resnet.train(
            train_resnet.Placement(), args, images.digits(), make_console()
        )
        assert [number for number, _ in history.loss] == [1, 2, 3], "two batches an epoch"
        assert [number for number, _ in history.heldout] == [2, 3]

    def test_defaults(self) -> None:
        digits, fake = (
            train_resnet.parse([]),
            train_resnet.parse(["--fake-data", "--layout", "spatial"]),
        )
        assert (digits.batch, digits.epochs, digits.width) == (64, 6, 16)
        assert (fake.batch, fake.epochs, fake.width) == (16, 1, 64)
