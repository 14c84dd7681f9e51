"""The comparison with the systems replaced, tiny: each side in a process of its own, on the systems
that are here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support import own_environment

from recipes.benchmarks import replaced

SIZES = ["--layers=1", "--width=16", "--sequence=8", "--batch=8", "--rounds=2", "--starts=1"]
HERE = [name for name, side in replaced.SIDES.items() if not side.is_torch_xla]
SHORT = ["torch, eager", "JAX by hand, 8 devices"]


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, replaced.__file__, *SIZES, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=own_environment(), timeout=1200
    )


class TestTable:
    """A row for each side: times, memory, and both starts; the losses are equal, or the program
    ends."""

    @pytest.mark.parametrize(
        "sides", [SHORT, pytest.param(HERE, marks=pytest.mark.long)], ids=["short", "all"]
    )
    def test_sides(self, sides: list[str]) -> None:
        done = run("--sides", *sides)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith("│")]
        cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
        assert [row[0] for row in cells] == sides
        assert all(len(row) == len(replaced.COLUMNS) and float(row[1]) > 0 for row in cells)
        for row in cells:
            first, third, second, last = map(float, row[5:])
            assert 0 < first <= third and 0 < second <= last

    def test_options_of_jax(self) -> None:
        """They go to JAX's compiler, on several devices."""
        done = run("--sides", SHORT[1], "--xla-options", "xla_no_such_option=1")
        assert done.returncode == 1 and "xla_no_such_option" in done.stderr

    def test_options_of_pytorch_xla(self, tmp_path: Path) -> None:
        """Its process has those in its flags that its XLA knows; what else goes wrong is an
        error."""
        python = tmp_path / "python"
        python.write_text(
            '#!/bin/sh\ncase $XLA_FLAGS in --a=*) ;; --b=*) echo "Unknown flag" >&2; exit 134;; '
            "*) exit 3;; esac\n"
        )
        python.chmod(0o755)
        assert replaced.known_options(str(python), "a=1 b=2") == ("a=1",)
        with pytest.raises(SystemExit, match=r"XLA_FLAGS=--c=3 .*exit status 3"):
            replaced.known_options(str(python), "c=3")

    def test_rows(self) -> None:
        start = {"first": 2.0, "third": 3.0, "peak": 4e6}
        side = {
            "cold": start,
            "second": {"first": 1.0, "third": 1.5},
            "peak": 3e6,
            "seconds": [0.2, 0.1, 0.4],
        }
        assert replaced.rows({"a": side}) == [
            ["a", "200", "100 to 400", "3", "4", "2.0", "3.0", "1.0", "1.5"]
        ]

    def test_another_loss_is_an_error(self) -> None:
        replaced.compare_losses({"a": {"loss": 1.0}, "b": {"loss": 1.00001}})
        with pytest.raises(SystemExit, match=r"expected equal losses up to 1e-4, got .*'b': 1.01"):
            replaced.compare_losses({"a": {"loss": 1.0}, "b": {"loss": 1.01}})


class TestProcesses:
    """A process imports what its side needs."""

    def test_nothing_of_ours(self) -> None:
        """The file that PyTorch/XLA's process runs imports the standard library and numpy."""
        script = (
            "import json, sys; from recipes.benchmarks import replaced; "
            "print(json.dumps([*sys.modules]))"
        )
        printed = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env=own_environment(),
            cwd=replaced.ROOT,
        ).stdout
        assert {"torch", "jax", "spmd", "fsdp", "rich", "torch_xla"}.isdisjoint(json.loads(printed))
        assert {side.modules for side in replaced.SIDES.values() if side.is_torch_xla} == {
            ("torch", "torch_xla")
        }

    def test_a_side_that_ends(self, tmp_path: Path) -> None:
        """It is named, with the last lines that it printed."""
        options = replaced.parse([*SIZES, "--sides", SHORT[0]])
        with pytest.raises(
            SystemExit, match=r"torch, eager: exit status 1 instead of a step\n(?s:.*)batches.npy"
        ):
            replaced.Process(SHORT[0], options, tmp_path, tmp_path / "cache")

    def test_without_its_environment(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            replaced.parse(["--torch-xla", "/nosuch/python"])
        assert "--torch-xla /nosuch/python is not there: see --help" in capsys.readouterr().err
        assert replaced.parse(["--torch-xla", "/nosuch/python", "--sides", *HERE]).sides == HERE
