"""T5 as a user trains it: a few tiny steps, in this process; its data, and its losses sharded
against plain PyTorch."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
from transformers import T5ForConditionalGeneration

import spmd
from recipes import spelling, train_t5

TINY = [
    "--layers=1",
    "--width=16",
    "--heads=2",
    "--batch=16",
    "--steps=4",
    "--warmup=1",
    "--eval-every=4",
]


class TestReport:
    """It prints units, progress, the held-out spellings and a table; the saved model spells
    alike."""

    @pytest.mark.long
    def test_sharded(self, tmp_path: Path) -> None:
        spmd.metrics.clear()  # of the tests before
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            train_t5.main([*TINY, "--mesh", "data=2,fsdp=4", "--out", str(tmp_path)])
        found = printed.getvalue()
        assert re.search(r"decoder\.block\.0: T5Block", found) and "tied" in found
        assert len(re.findall(r"step +\d+ +loss [\d.]+ .* \d+ compiles", found)) == 2
        ours, plain = re.findall(
            r"([\d.]+)% of 32 held-out numbers spelled exactly; ([\d.]+)% by the model", found
        )[0]
        assert ours == plain
        assert "Held-out numbers, mistakes first" in found
        compiled = int(re.findall(r"(\d+) compiles, ", found)[0])
        assert compiled <= 4 + 9 + 4, (
            "initialization and a step for three pairs of lengths; generate's first two batches"
        )
        assert (
            type(T5ForConditionalGeneration.from_pretrained(tmp_path / "model"))
            is T5ForConditionalGeneration
        )
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")

    def test_plain_pytorch(self, tmp_path: Path) -> None:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            train_t5.main([*TINY, "--device=cpu", "--out", str(tmp_path)])
        found = printed.getvalue()
        assert "Held-out numbers, mistakes first" in found
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


class TestPlain:
    """The same steps, sharded, on batches that are padded further: plain PyTorch's losses and
    tokens."""

    def test_losses_and_tokens(self, mesh8: spmd.Mesh) -> None:
        args = train_t5.parse(TINY)
        plain = T5ForConditionalGeneration(train_t5.configure(args))
        with torch.device("xla"):
            model = T5ForConditionalGeneration(train_t5.configure(args))
        model = train_t5.wrap(model, mesh8)
        model.load_state_dict(plain.state_dict())
        losses: dict[str, list[float]] = {}
        batches = [
            spelling.encoded(spelling.drawn(16, digits, torch.Generator(), heldout=False))
            for digits in (4, 5)
        ]
        for name, module, mesh in (("cpu", plain, None), ("xla", model, mesh8)):
            optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, eps=1e-4)
            losses[name] = [
                train_t5.train_step(module, optimizer, batch, clip=1.0).item()
                for batch in train_t5.load(batches, mesh)
            ]
        assert losses["xla"] == pytest.approx(losses["cpu"], abs=1e-4)
        heldout = spelling.heldout(batch=16, count=1)
        assert train_t5.generate(model, heldout, mesh8) == train_t5.generate(plain, heldout, None)


class TestData:
    """Numbers are spelled as in English; what is held out is in no training batch."""

    @pytest.mark.parametrize(
        ("number", "words"),
        [
            (0, "zero"),
            (17, "seventeen"),
            (80, "eighty"),
            (417, "four hundred seventeen"),
            (1000, "one thousand"),
            (919599, "nine hundred nineteen thousand five hundred ninety nine"),
        ],
    )
    def test_spelled(self, number: int, words: str) -> None:
        assert " ".join(spelling.spelled(number)) == words
        batch = spelling.encoded([number, 999999])
        assert spelling.decoded(batch["labels"])[0] == words
        assert spelling.decoded(batch["input_ids"])[0] == " ".join(spelling.placed(number))
        assert batch["attention_mask"].sum().item() == len(str(number)) + 1 + 7

    def test_heldout(self) -> None:
        assert all(
            spelling.is_heldout(n) for n in spelling.drawn(50, 4, torch.Generator(), heldout=True)
        )
        assert not any(
            spelling.is_heldout(n) for n in spelling.drawn(50, 4, torch.Generator(), heldout=False)
        )


class TestTarget:
    """--target plans the step for other devices; nothing is trained."""

    def test_planned(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train_t5.main([*TINY, "--target=cpu:8", "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert (
            "cpu:8 (fsdp=8)" in printed
            and "optimizer state" in printed
            and "held-out" not in printed
        )
        assert [path.name for path in tmp_path.iterdir()] == ["plan.html"]


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--batch 12", "--batch 12 must be a multiple of the 8 devices that share it"),
            ("--width 30", "--width 30 must be a multiple of --heads 4"),
            ("--compile --device cpu", "--compile is of steps on xla"),
            ("--steps 0", "--steps must be at least 1"),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            train_t5.parse(arguments.split())
        assert message in capsys.readouterr().err
