"""`spmd.CheckpointManager` of several processes: what one of eight devices has saved, and the other
way round."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save
from support import ROOT

import spmd

from .checkpoints import made, train
from .managed import state_of
from .test_checkpoints import free_ports
from .test_processes import environment, outputs

PROGRAM = ROOT / "tests/processes/managed.py"


def together(folder: Path, name: str, count: int) -> tuple[list[int], list[tuple[str, str]]]:
    """Runs a program of `managed.py` in several processes; their exit codes, and what each
    printed."""
    port = free_ports()[0]
    started = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                str(PROGRAM),
                str(index),
                str(count),
                port,
                str(folder),
                name,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=ROOT,
        )
        for index in range(count)
    ]
    printed = outputs(started)
    return [process.returncode for process in started], printed


def load_model(folder: Path) -> dict[str, torch.Tensor]:
    """Reads the files that an index names."""
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return {name: load_file(folder / file)[name] for name, file in places.items()}


class TestManaged:
    """All commit together or not at all, resume bit for bit, and are preempted at the same step."""

    @pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
    def test_several_and_one(self, count: int, tmp_path: Path) -> None:
        model, optimizer = made()
        train(model, optimizer)
        state = state_of(model, optimizer)
        state["progress"]["step"] = 4
        spmd.CheckpointManager(tmp_path / "one").save(4, state)
        after = train(model, optimizer)

        codes, printed = together(tmp_path, "run", count)
        assert codes == [0] * count, printed
        first, *others = (json.loads(out.splitlines()[-1]) for out, _ in printed)
        assert all(other == first for other in others)
        assert first["after one"] == pytest.approx(after, rel=1e-6)
        assert first["steps"] == [5, 6] and first["left"] == [".lock", "5", "6"]
        assert "process 1: No space left on device at byte 0 of" in first["unwritable"]
        assert 12 <= first["preempted"] < 10_000 - 1

        manager = spmd.CheckpointManager(tmp_path / "two")
        other = state_of(*made())
        with pytest.raises(
            ValueError,
            match=rf"'own\.number' was another value in each of {count} processes, and here",
        ):
            manager.restore(
                {**other, "own": {"number": 0, "tensor": other["model"][0].bias.detach().cpu()}}, 5
            )
        assert manager.restore(other, 5) == 5
        # what the processes wrote is what the safetensors library writes of the whole tensors
        manager.restore(other, 6)
        train(other["model"], other["optimizer"])
        whole = {name: value.cpu() for name, value in other["model"].state_dict().items()}
        whole |= {"uneven": torch.arange(30.0).view(10, 3), "host": torch.full((3,), 7.0)}
        for name in ("model", "objects"):
            found = load_model(tmp_path / name)
            assert set(found) == set(whole)
            for key, value in found.items():
                torch.testing.assert_close(value, whole[key], rtol=1e-5, atol=1e-6)
        assert sorted(os.listdir(tmp_path / "model")) == sorted(os.listdir(tmp_path / "objects"))
        for name in os.listdir(tmp_path / "model"):
            content = (tmp_path / "model" / name).read_bytes()
            assert content == (tmp_path / "objects" / name).read_bytes()
            if name.endswith(".safetensors"):
                assert content == save(load_file(tmp_path / "model" / name), {"format": "pt"})
        third = load_file(tmp_path / "third.safetensors")
        assert all(
            torch.equal(value, load_model(tmp_path / "model")[key]) for key, value in third.items()
        )

        manager.restore(other, 5)
        assert train(other["model"], other["optimizer"]) == pytest.approx(
            first["expected"], rel=1e-6
        )

    @pytest.mark.long
    def test_killed_while_it_writes(self, tmp_path: Path) -> None:
        """jax ends the other process, and the step before is the last one; the next save removes
        the rest."""
        codes, printed = together(tmp_path, "dying", 2)
        assert (
            codes[1] == -signal.SIGKILL and codes[0] != 0 and "another task died" in printed[0][1]
        ), printed
        manager = spmd.CheckpointManager(tmp_path / "two")
        state = state_of(*made())
        assert (tmp_path / "two/.saving-6").is_dir() and manager.restore(state) == 5
        manager.save(6, state)
        assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [".lock", "5", "6"]
