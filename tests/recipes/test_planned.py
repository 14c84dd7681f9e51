"""Every recipe can be planned for other devices by one flag; nothing is trained or timed then."""

import os
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
SMALL = ["--layers=1", "--width=16", "--sequence=16"]


def run(folder: Path, name: str, *arguments: str) -> str:
    """A recipe's output; it runs in a folder and a process of its own."""
    command = [sys.executable, str(RECIPES / name), *SMALL, "--target", "cpu:8", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class TestTarget:
    """`--target`: the plan is printed."""

    def test_main_job(self, tmp_path: Path) -> None:
        printed = run(tmp_path, "train_gpt.py", "--heads=2", "--out=made")
        assert (
            "cpu:8 (fsdp=8)" in printed and "optimizer state" in printed and "all-gather" in printed
        )
        assert "loss" not in printed, "nothing is trained"
        assert (tmp_path / "made" / "plan.html").read_text().startswith("<!doctype html>")

    def test_a_wrong_one_is_one_sentence(self, tmp_path: Path) -> None:
        for name, target, text in (
            (
                "train_gpt.py",
                "abacus:2x2",
                "target 'abacus:2x2' is not known: expected a TPU slice",
            ),
            ("train_gpt.py", "cpu:4", "the step's mesh has 8 devices and 'cpu:4' has 4"),
            ("offload.py", "cpu:4", "there is no device 4"),
        ):
            sizes = ["--layers=1", "--width=16"] + ["--heads=2", "--sequence=16"] * (
                name == "train_gpt.py"
            )
            command = [sys.executable, str(RECIPES / name), *sizes, "--target", target]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, timeout=300
            )
            said = [line for line in done.stderr.splitlines() if line.startswith("--target")]
            assert done.returncode == 1 and len(said) == 1 and text in said[0], done.stderr
            assert "Traceback" not in done.stderr

    def test_step(self, tmp_path: Path) -> None:
        printed = run(tmp_path, "benchmarks/step.py", "--heads=2", "--batch=8")
        assert "cpu:8 (fsdp=8)" in printed and "temporaries" in printed and "compiled in" in printed

    def test_memory(self, tmp_path: Path) -> None:
        printed = run(tmp_path, "benchmarks/memory.py")
        rows = [line.split("│") for line in printed.splitlines() if "│" in line]
        found = [
            (float(row[4]), float(row[5])) for row in rows if "True" in row[1] or "False" in row[1]
        ]
        assert len(found) == 4 and all(here == there for here, there in found), printed
