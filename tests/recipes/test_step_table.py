"""The tables of one training step, tiny: by the clock and by the compiler, ours next to JAX by hand
and torch."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
import torch
from rich.console import Console

import spmd
from recipes.benchmarks import step, step_plans, step_table
from recipes.benchmarks.step_table import COMPILED, EAGER, JAX, LAZY
from recipes.gpt import GPT, GPTConfig

SIZES = ["--layers=1", "--width=16", "--heads=8", "--sequence=8", "--batch=8"]


@pytest.fixture(autouse=True)
def flags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restores the flags that the benchmarks set."""
    for name in ("partitioner", "compiler_options", "program_cache"):
        monkeypatch.setattr(spmd.config, name, getattr(spmd.config, name))
    yield


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


class TestByTheClock:
    """Every column of a row ends with the same loss, lazy and compiled bit for bit."""

    def run(self, tmp_path: Path, *more: str) -> dict[str, dict[str, float]]:
        return step_table.main([*SIZES, "--pairs=1", "--out", str(tmp_path), *more])

    def test_one_row(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        sides = (LAZY, COMPILED, JAX, EAGER)
        losses = self.run(tmp_path, "--layouts", "data", "--sides", *sides)["data"]
        assert set(losses) == set(sides) and losses[LAZY] == losses[COMPILED]
        assert losses[LAZY] == pytest.approx(losses[EAGER], rel=1e-5) == losses[JAX]
        assert "data parallel" in capsys.readouterr().out and is_picture(
            tmp_path / "step_table.png"
        )

    def test_both_sides_have_the_same_options(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Under FSDP a program of the library has options of XLA's; JAX's gets them, too."""
        options: dict[str, dict[str, str]] = {}
        compile_lowered = jax.stages.Lowered.compile

        def noted(lowered: jax.stages.Lowered, compiler_options: Any = None) -> Any:
            name = lowered.as_text().partition(" attributes")[0]
            texts = {key: str(value) for key, value in (compiler_options or {}).items()}
            options[name] = texts or options.get(name, {})
            return compile_lowered(lowered, compiler_options=compiler_options)

        monkeypatch.setattr(jax.stages.Lowered, "compile", noted)
        self.run(tmp_path, "--layouts", "fsdp", "--sides", LAZY, JAX)
        assert options["module @jit_step"] == options["module @jit_spmd"] != {}

    def test_options_of_jax_alone(self) -> None:
        """XLA's defaults, though ours has options."""
        assert step.options_of("", "fsdp") == {} != step.options_of(None, "fsdp")
        assert step.parse(["--jax-options", ""]).jax_options == ""

    def test_rounds(self) -> None:
        """The sides take turns to be the first; torch has its fused AdamW."""
        names: list[str] = []
        sides = [
            step.Side(name, lambda *_, name=name: names.append(name), lambda: 0.0) for name in "abc"
        ]  # type: ignore[misc]
        step.run_rounds(sides, iter([(torch.ones(1),) * 2] * 3), 3, Console(quiet=True))
        assert "".join(names) == "abccbaabc" and all(len(side.seconds) == 3 for side in sides)
        config = GPTConfig(layers=1, width=16, heads=2, sequence=8)
        assert step.torch_side(GPT(config).state_dict(), config)[1].optimizer.defaults["fused"]

    @pytest.mark.long
    def test_all(self, tmp_path: Path) -> None:
        """In a process of its own: torch's own compilers warn of themselves, and warnings are
        errors here."""
        command = [sys.executable, step_table.__file__, *SIZES, "--pairs=1", "--out", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        for title in step_table.TITLES.values():
            assert len(re.findall(rf"^│ {title} ", done.stdout, re.MULTILINE)) == 2, (
                "ratios and losses"
            )
        assert is_picture(tmp_path / "step_table.png")

    def test_another_loss_is_an_error(self) -> None:
        with pytest.raises(SystemExit, match="must be equal bit for bit"):
            step_table.compare_losses({LAZY: 1.0, COMPILED: 1.0 + 1e-9, JAX: 1.0})
        with pytest.raises(SystemExit, match="expected equal losses"):
            step_table.compare_losses({LAZY: 1.0, JAX: 1.01})

    def test_sides_without_jax_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            step_table.parse(["--sides", LAZY])
        assert "must hold 'JAX by hand'" in capsys.readouterr().err


class TestByTheCompiler:
    """Figures of both programs, read in one way; here for simulated devices, which need no
    libtpu."""

    def run(
        self, tmp_path: Path, *names: str
    ) -> dict[tuple[str, str], tuple[step_plans.Figures, step_plans.Figures]]:
        found = step_plans.main(
            [*SIZES, "--targets", "cpu:8", "--out", str(tmp_path), "--layouts", *names]
        )
        assert list(found) == [("cpu:8", name) for name in names] and is_picture(
            tmp_path / "step_plans.png"
        )
        return found

    def test_data_parallel(self, tmp_path: Path) -> None:
        ((ours, theirs),) = self.run(tmp_path, "data").values()
        # Each gradient is summed over the devices once; torch counts the targets that are not
        # ignored, too.
        assert 0 < theirs["moved"] <= ours["moved"] <= 1.002 * theirs["moved"]

    @pytest.mark.long
    def test_others(self, tmp_path: Path) -> None:
        pairs = self.run(tmp_path, "fsdp", "tensor")
        ours, theirs = pairs["cpu:8", "tensor"]
        assert (
            0 < ours["moved"] <= 1.05 * theirs["moved"] and ours["exchanges"] <= theirs["exchanges"]
        )
        ours, theirs = pairs["cpu:8", "fsdp"]
        # gathered again in backward
        assert ours["temporaries"] > 0 and 0 < ours["moved"] <= 1.5 * theirs["moved"]

    def test_long_sequences_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            step_plans.parse(["--sequence=512"])
        assert "must be below 512" in capsys.readouterr().err
