"""A Hugging Face model as a user wraps it: a few tiny steps, in this process."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

from recipes import wrap_hugging_face

SIZES = {"layers": 1, "width": 16, "heads": 4, "sequence": 16, "batch": 16}
STEPS = {"steps": 4, "warmup": 1, "eval-every": 2, "sample": 3}
TINY = [f"--{name}={value}" for name, value in {**SIZES, **STEPS}.items()]
MODELS = {  # class, flags, a unit's line of fsdp.show
    "llama": (LlamaForCausalLM, "--mesh=fsdp=8", r"model\.layers\.0: LlamaDecoderLayer"),
    "gpt2": (
        GPT2LMHeadModel,
        "--mesh=data=2,fsdp=4",
        r"transformer\.wte\.weight = lm_head\.weight .* tied",
    ),
}


def run(*arguments: str) -> str:
    """The recipe's output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        wrap_hugging_face.main([*TINY, *arguments])
    return printed.getvalue()


class TestModels:
    """It prints units, plan and progress; the saved model is a plain one of the same loss."""

    @pytest.mark.parametrize("name", MODELS)
    def test_trained_saved_and_loaded(self, name: str, tmp_path: Path) -> None:
        kind, mesh, unit = MODELS[name]
        printed = run("--model", name, mesh, "--out", str(tmp_path))
        assert re.search(unit, printed)
        assert re.search(r"here \((data=2, )?fsdp=\d\)", printed) and "all-gather" in printed
        first, last = re.findall(r"step +\d+ +loss ([\d.]+) .* (\d+) compiles", printed)
        assert float(last[0]) < float(first[0]) - 0.05
        # Evaluation is one program more, unless a test before had it; the step is one, from the
        # first on.
        assert int(last[1]) - int(first[1]) <= 1
        ours, plain = re.findall(
            r"held-out loss ([\d.]+) nats per byte, .*; ([\d.]+) of the model", printed
        )[0]
        assert float(plain) == pytest.approx(float(ours), abs=2e-4)
        loaded = kind.from_pretrained(tmp_path / "model")
        assert type(loaded) is kind and all(
            type(weight) is torch.nn.Parameter for weight in loaded.parameters()
        )
        assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG") and "A sample" in printed


class TestTarget:
    """--target plans the step for other devices; nothing is trained."""

    def test_planned(self, tmp_path: Path) -> None:
        printed = run("--target", "cpu:8", "--out", str(tmp_path))
        assert (
            "cpu:8 (fsdp=8)" in printed
            and "optimizer state" in printed
            and "tokens/s" not in printed
        )
        assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--mesh tensor=8", "the axes are fsdp and, if wanted, data, each once"),
            ("--batch 12", "--batch 12 must be a multiple of the 8 devices that share it"),
            ("--steps 0", "--steps must be at least 1"),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            wrap_hugging_face.parse(arguments.split())
        assert message in capsys.readouterr().err
