"""Steps that cannot be written, and files that have changed: the error says what and where."""

import os
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

import spmd
from spmd.checkpoint import DamagedError, SaveError
from spmd.jobs.checkpoint import manifest

from .states import MESHES


def state(factor: float = 1.0) -> dict[str, Any]:
    x = spmd.mark_sharding((torch.arange(64.0) * factor).to("xla"), MESHES["8"], ("fsdp",))
    return {"x": x, "y": torch.ones(300) * factor, "n": factor}


def values(found: dict[str, Any]) -> list[Any]:
    return [found["x"].tolist(), found["y"].tolist(), found["n"]]


@pytest.fixture
def manager(tmp_path: Path) -> spmd.CheckpointManager:
    """Steps 1 and 2 are committed."""
    made = spmd.CheckpointManager(tmp_path)
    for step in (1, 2):
        made.save(step, state(step))
    return made


class TestDamage:
    """A file that is cut short or changed is never loaded; the error names it, the tensor, and an older step."""

    def test_truncated(self, manager: spmd.CheckpointManager) -> None:
        file = manager.folder / "2/shards-0.bin"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(
            DamagedError, match=r"2/shards-0.bin is cut short or changed: it has .* expected .*; it holds "
        ):
            manager.restore(state())
        with pytest.raises(DamagedError, match=r"an older step is there: restore\(state, step=1\)"):
            manager.restore(state())

    def test_missing(self, manager: spmd.CheckpointManager) -> None:
        (manager.folder / "2/shards-0.bin").unlink()
        with pytest.raises(DamagedError, match=r"shards-0\.bin is missing, expected"):
            manager.restore(state())

    def test_flipped(self, manager: spmd.CheckpointManager) -> None:
        file = manager.folder / "2/shards-0.bin"
        data = bytearray(file.read_bytes())
        data[-3] ^= 4
        file.write_bytes(data)
        with pytest.raises(
            DamagedError, match=r"shards-0.bin is damaged: the 32 bytes .*, of 'x' at \[56\], have the CRC-32"
        ):
            manager.restore(state())
        with pytest.raises(DamagedError, match="step 2: "):
            manager.verify()
        assert manager.verify(1) == 1

    def test_manifest(self, manager: spmd.CheckpointManager) -> None:
        file = manager.folder / "2/manifest.json"
        file.write_text(file.read_text().replace('"at": [8]', '"at": [9]'))
        with pytest.raises(DamagedError, match=r"manifest.json is damaged: its contents do not have the sha256"):
            manager.restore(state())

    def test_next_older_one_when_asked(
        self, manager: spmd.CheckpointManager, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = manager.folder / "2/shards-0.bin"
        file.write_bytes(b"\1" + file.read_bytes()[1:])
        found = state(0)
        assert manager.restore(found, skip_damaged=True) == 1 and values(found) == values(state(1))
        assert "step 2 is left out: " in capsys.readouterr().err
        (manager.folder / "1/manifest.json").write_text("{}")
        with pytest.raises(DamagedError, match=r"no step in .* is as it was written"):
            manager.restore(state(), skip_damaged=True)

    def test_path_outside(self, manager: spmd.CheckpointManager) -> None:
        """A manifest that is sealed and names a file elsewhere."""
        body = manifest.read(manager.folder / "2")
        body["files"] = {"../1/shards-0.bin": next(iter(body["files"].values()))}
        (manager.folder / "2/manifest.json").write_text(manifest.text(body))
        with pytest.raises(DamagedError, match="is not in the folder of the step"):
            manager.restore(state())

    def test_thousand_corrupted_files(self, manager: spmd.CheckpointManager) -> None:
        """Each is found, or what was changed is not read: blanks of the manifest, bytes between two shards."""
        draw, expected, found_out = random.Random(0), values(state(2)), 0
        files = [manager.folder / "2" / name for name in ("shards-0.bin", "manifest.json")]
        originals = {file: file.read_bytes() for file in files}
        for number in range(1000):
            file = files[number % 2]
            data = bytearray(originals[file])
            place = draw.randrange(len(data))
            if number % 4 < 2:
                data[place] ^= 1 << draw.randrange(8)
            else:
                del data[place : place + draw.randrange(1, 100)]
            file.write_bytes(data)
            found = {"x": torch.zeros(64), "y": torch.zeros(300), "n": 0.0}
            try:
                manager.restore(found)
            except DamagedError:
                found_out += 1
            else:
                assert values(found) == expected
            file.write_bytes(originals[file])
        assert found_out > 700


class TestNotWritten:
    """A save that fails leaves the earlier steps, and the next one removes its rest."""

    def test_full_disk(self, manager: spmd.CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = os.open

        def full(path: Any, flags: int, *args: Any, **given: Any) -> int:
            if str(path).endswith(".bin") and flags & os.O_CREAT:
                path, flags = "/dev/full", os.O_WRONLY
            return opened(path, flags, *args, **given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            with pytest.raises(SaveError, match=r"step 3 was not saved in .*: No space left on device at byte 0 of "
                               r".*/shards-0\.bin, [\d,]+ bytes are free\. Earlier steps are unchanged"):  # fmt: skip
                manager.save(3, state(3))
        assert sorted(os.listdir(manager.folder)) == [".lock", "1", "2"]
        found = state(0)
        assert manager.restore(found) == 2 and values(found) == values(state(2))
        assert manager.save(3, state(3))

    def test_later_error_of_a_thread(self, manager: spmd.CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*args: Any) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            manager.save_async(3, state(3))
            with pytest.raises(SaveError, match="Input/output error at byte"):
                manager.wait()
        manager.wait()
        assert manager.all_steps() == [1, 2] and manager.save(4, state(4))

    @pytest.mark.parametrize("waits", [False, True])
    def test_end_of_the_program(self, waits: bool, tmp_path: Path) -> None:
        """The whole error is printed, even where the program has ended; with `wait` the exit status tells, too."""
        folder = tmp_path / "a folder with a long name that no terminal has room for" / "and another one in it"
        done = subprocess.run(
            [sys.executable, "-c", FAILED, str(folder), "wait" if waits else ""],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}, timeout=120,
        )  # fmt: skip
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("spmd: ")]
        assert said.startswith(f"spmd: CheckpointManager: step 3 was not saved in {folder}: Input/output error at byte")
        assert ". Earlier steps are unchanged. The " in said
        assert said.endswith(
            "exit status of the program does not show it" if waits else "its exit status does not show it"
        )
        assert done.returncode == int(waits) and ("Traceback" in done.stderr) == waits, done.stderr

    def test_one_cause(self, manager: spmd.CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The traceback of a failed save has the error and that of the system, and no other."""

        def fails(*args: Any) -> None:
            raise OSError(5, "Input/output error")

        (tmp_path / "file").write_text("")
        tensors = {"x": torch.ones(4, device="xla")}
        saves: list[Callable[[], Any]] = [
            lambda: manager.save(3, state(3)), lambda: manager.save_async(3, state(3)) and manager.wait(),
            lambda: spmd.CheckpointManager(tmp_path / "file/steps").save(1, state()),
            lambda: spmd.save_checkpoint(tensors, tmp_path / "model"),
            lambda: spmd.save_checkpoint(tensors, tmp_path / "file/model"),
        ]  # fmt: skip
        monkeypatch.setattr(os, "fsync", fails)
        for save in saves:
            with pytest.raises(SaveError) as raised:
                save()
            text = "".join(traceback.format_exception(raised.value))
            assert text.count("Traceback (most recent call last)") == 2, text
            assert text.count("SaveError: ") == 1 and isinstance(raised.value.__cause__, OSError)

    def test_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(SaveError, match=r"step 1 was not saved in .*/file/steps: NotADirectoryError: .*/file"):
            spmd.CheckpointManager(tmp_path / "file/steps").save(1, state())

    def test_read_only(self) -> None:
        """A folder in which no user may write."""
        with pytest.raises(
            SaveError, match=r"step 1 was not saved in /proc/self/steps: \w+Error: .*'/proc/self/steps'"
        ):
            spmd.CheckpointManager("/proc/self/steps").save(1, state())

    def test_left_by_a_dead_save(self, manager: spmd.CheckpointManager) -> None:
        for name in (".saving-3", ".deleting-1", ".saving-7"):
            (manager.folder / name).mkdir()
            (manager.folder / name / "shards-0.bin").write_bytes(b"half")
        assert manager.all_steps() == [1, 2]
        manager.save(3, state(3))
        assert sorted(os.listdir(manager.folder)) == [".lock", "1", "2", "3"]


FAILED = """
import os, sys, threading, torch, spmd

def fails(descriptor):
    if not waits:
        threading.main_thread().join(60)  # to its end
    raise OSError(5, "Input/output error")

os.fsync, waits = fails, sys.argv[2]
manager = spmd.CheckpointManager(sys.argv[1], async_=True)
manager.save(3, {"x": torch.ones(8)})
if waits:
    manager.wait()
"""


OTHER = """
import importlib, pathlib, sys, types
package = types.ModuleType("checkpoint")  # without the library's own import
package.__path__ = [sys.argv[1]]
sys.modules["checkpoint"] = package
importlib.import_module("checkpoint.step_folder").lock(pathlib.Path(sys.argv[2]))
print("locked", flush=True)
sys.stdin.read()
"""


class TestTwoJobs:
    """One job saves in a folder; a second one gets an error that names the first."""

    def test_second(self, tmp_path: Path) -> None:
        job = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(ROOT / "spmd/jobs/checkpoint"), str(tmp_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with job:
            assert job.stdout is not None and job.stdout.readline() == "locked\n"
            manager = spmd.CheckpointManager(tmp_path)
            with pytest.raises(SaveError, match=f'belongs to another job, which runs: .*"process": {job.pid}, "host"'):
                manager.save(1, {"n": 1})
            assert os.listdir(tmp_path) == [".lock"]
            job.kill()
        assert manager.save(1, {"n": 1})
        assert spmd.CheckpointManager(tmp_path).save(2, {"n": 2})  # the same job
