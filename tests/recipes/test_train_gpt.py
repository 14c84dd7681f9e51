"""`recipes/train_gpt.py` as a user runs it, for a few tiny steps."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recipes import train_gpt

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "train_gpt.py"
SIZES = {
    "layers": 1,
    "width": 16,
    "heads": 2,
    "sequence": 16,
    "batch": 16,
    "steps": 4,
    "warmup": 1,
    "eval-every": 2,
}
TINY = [f"--{name}={value}" for name, value in SIZES.items()] + ["--sample=3"]


def run(folder: Path, *arguments: str) -> str:
    """The recipe's output; it runs in a folder and a process of its own."""
    command = [sys.executable, str(RECIPE), *TINY, "--out", "made", *arguments]
    # The time of a compilation depends on the machine.
    environment = {**os.environ, "SPMD_SLOW_COMPILE_SECONDS": "0"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "nothing but its report is printed: no warning, no log line of XLA"
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    return run(folder)


class TestReport:
    """It prints shardings, loss, speed, compiles, held-out loss and a bigram table's, and leaves
    loss.png."""

    def test_table(self, printed: str) -> None:
        assert "Parameters and their shardings: mesh fsdp=8" in printed
        assert re.search(r"tokens\.weight +\(256, 16\) +fsdp, None +16\.0 KiB +2\.0 KiB", printed)
        assert re.search(r"blocks\.0\.attention\.qkv\.weight +\(48, 16\) +fsdp, None", printed)
        assert re.search(r"[\d,]+ parameters +[\d.]+ KiB +[\d.]+ KiB", printed)
        assert "…" not in printed.split("bytes to train on")[0], "names are shown in full"
        assert re.search(r"optimizer state: [\d.]+ KiB unsharded, [\d.]+ KiB per device", printed)

    def test_progress(self, printed: str) -> None:
        first, last = re.findall(
            r"step +(\d+) +loss [\d.]+ +[\d,]+ tokens/s +(\d+) compiles", printed
        )
        assert first == ("1", "2"), "one program for initialisation, one for the step"
        assert last == ("4", "3"), "evaluation is one program more and does not recompile the step"

    def test_held_out_beside_bigram(self, printed: str) -> None:
        assert len(re.findall(r"step +\d+ +held-out [\d.]+ +\(bigram table 2\.\d+\)", printed)) == 2
        assert re.search(
            r"held-out loss [\d.]+ nats per byte, bigram table 2\.\d+; 4 compiles", printed
        )

    def test_sample_and_picture(self, printed: str, folder: Path) -> None:
        assert "A sample" in printed
        assert (folder / "made" / "loss.png").read_bytes().startswith(b"\x89PNG")


class TestMesh:
    """--devices 1 and --mesh data=2,fsdp=4 need no other change, and give the same numbers."""

    def test_same_losses_everywhere(self, tmp_path: Path) -> None:
        printed = [run(tmp_path, *how.split()) for how in ("--devices 1", "--mesh data=2,fsdp=4")]
        losses = [re.findall(r"(?:loss|held-out) (\d\.\d+)", text) for text in printed]
        assert losses[0] == losses[1] != []
        assert "mesh fsdp=1" in printed[0]
        assert "mesh data=2, fsdp=4" in printed[1]


class TestArguments:
    """A wrong command line is an error that says what to do, before anything runs."""

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--mesh model=8", "the axes are fsdp and, if wanted, data"),
            ("--mesh fsdp=8 --devices 4", "--mesh needs 8 devices, --devices gives 4"),
            ("--batch 12", "--batch 12 must be a multiple of the 8 devices"),
            ("--steps 0", "--steps must be at least 1"),
        ],
    )
    def test_refused(
        self, arguments: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(SystemExit):
            train_gpt.parse(arguments.split())
        assert message in capsys.readouterr().err


def test_muon(tmp_path: Path) -> None:
    """Muon for the matrices of the blocks, which devices compute whole."""
    printed = run(tmp_path, "--optimizer=muon")
    assert re.search(r"step +4 +held-out [\d.]+", printed)
