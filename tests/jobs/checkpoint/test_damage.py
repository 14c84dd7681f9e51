"""Steps that cannot be written, and files that have changed: the error says what and where."""

import hashlib
import json
import os
import random
import shutil
import signal
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
from spmd.jobs.checkpoint import manifest, step_saving

from .states import MESHES


def state(factor: float = 1.0) -> dict[str, Any]:
    x = spmd.mark_sharding((torch.arange(64.0) * factor).to("xla"), MESHES["8"], ("fsdp",))
    return {"x": x, "y": torch.ones(300) * factor, "n": factor}


def deep(levels: int) -> Any:
    return json.loads("[" * levels + "]" * levels)


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
    """A file that is cut short or changed is never loaded; the error names it, the tensor, and an
    older step."""

    def test_truncated(self, manager: spmd.CheckpointManager) -> None:
        file = manager.folder / "2/shards-0.bin"
        file.write_bytes(file.read_bytes()[:-1])
        with pytest.raises(
            DamagedError,
            match=r"2/shards-0.bin is cut short or changed: it has .* expected .*; it holds ",
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
            DamagedError,
            match=r"shards-0.bin is damaged: the 32 bytes .*, of 'x' at \[56\], have the CRC-32",
        ):
            manager.restore(state())
        with pytest.raises(DamagedError, match="step 2: "):
            manager.verify()
        assert manager.verify(1) == 1

    def test_manifest(self, manager: spmd.CheckpointManager) -> None:
        file = manager.folder / "2/manifest.json"
        file.write_text(file.read_text().replace('"at": [8]', '"at": [9]'))
        with pytest.raises(
            DamagedError, match=r"manifest.json is damaged: its contents do not have the sha256"
        ):
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
        with pytest.raises(DamagedError, match=r"every step in .* is damaged"):
            manager.restore(state(), skip_damaged=True)

    def test_path_outside(self, manager: spmd.CheckpointManager) -> None:
        """A manifest that is sealed and names a file elsewhere."""
        body = manifest.read(manager.folder / "2")
        body["files"] = {"../1/shards-0.bin": next(iter(body["files"].values()))}
        (manager.folder / "2/manifest.json").write_text(manifest.text(body))
        with pytest.raises(DamagedError, match="is not in the folder of the step"):
            manager.restore(state())

    @pytest.mark.parametrize(
        "change",
        [
            lambda shard, body: shard.update(file="/etc/hostname"),
            lambda shard, body: shard.update(file="../1/shards-0.bin"),
            lambda shard, body: (shard.update(file=".."), body["files"].update({"..": 4096})),
            lambda shard, body: shard.update(offset=body["files"]["shards-0.bin"] - 8),
            lambda shard, body: shard.update(offset=-64),
            # its bytes once more
            lambda shard, body: body["tensors"]["y"]["shards"][0].update(offset=shard["offset"]),
            lambda shard, body: shard.update(bytes=1 << 40),
            lambda shard, body: shard.update(shape=[1 << 40]),
            lambda shard, body: shard.update(at=[60]),
            lambda shard, body: body["tensors"]["x"].update(shape=[1 << 40]),
            lambda shard, body: body["tensors"]["x"].update(dtype="nn"),
            lambda shard, body: body["tensors"].pop("x"),
            lambda shard, body: body["values"]["n"].update(state={"$scalar": ["S", 3_000_000_000]}),
            lambda shard, body: body["values"]["n"].update(state={"$scalar": ["V3000000000", 1]}),
            lambda shard, body: body["values"]["n"].update(state={"$size": ["a"]}),
            lambda shard, body: body["values"]["n"].update(state={"$device": "nowhere"}),
            lambda shard, body: body["values"]["n"].update(state=deep(480)),
            lambda shard, body: body["values"]["n"].update(kind="code"),
            lambda shard, body: body["values"].update(n={"by_process": []}),
            lambda shard, body: body.update(files=[]),
            lambda shard, body: body.pop("values"),
        ],
    )
    def test_sealed_by_a_stranger(
        self, change: Callable[[Any, Any], Any], manager: spmd.CheckpointManager, tmp_path: Path
    ) -> None:
        """A manifest with the right sha256 that no save has written: nothing is read for it, an
        older step loads."""
        file = manager.folder / "2/manifest.json"
        body = manifest.read(manager.folder / "2")
        change(body["tensors"]["x"]["shards"][0], body)
        digest = hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()
        file.write_text(json.dumps({"format": manifest.FORMAT, "sha256": digest, **body}))
        with pytest.raises(DamagedError, match=r"2/manifest\.json is damaged"):
            manager.restore(state())
        found = state(0)
        assert manager.restore(found, skip_damaged=True) == 1 and values(found) == values(state(1))

    @pytest.mark.parametrize("name", ["manifest.json", "shards-0.bin"])
    def test_link(self, name: str, manager: spmd.CheckpointManager, tmp_path: Path) -> None:
        (manager.folder / "2" / name).rename(tmp_path / "elsewhere")
        (manager.folder / "2" / name).symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DamagedError, match=f"2/{name}.* link"):
            manager.restore(state())

    def test_nested_too_deep_to_be_read(self, manager: spmd.CheckpointManager) -> None:
        with pytest.raises(SaveError, match="its values are nested more than 100 deep"):
            manager.save(3, {"n": deep(120)})
        assert manager.save(3, {"n": deep(80)}) and manager.restore({"n": 0}) == 3

    def test_large_manifest(self, manager: spmd.CheckpointManager) -> None:
        """Its length alone is read: a file with holes takes no room on the disk, and all of the
        memory."""
        os.truncate(manager.folder / "2/manifest.json", 1 << 40)
        with pytest.raises(DamagedError, match=r"expected a file of at most 1,073,741,824 bytes"):
            manager.restore(state())

    def test_state_of_another_class(self, tmp_path: Path) -> None:
        """An object's own error does not name the file."""
        weight = torch.nn.Parameter(torch.ones(2))
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            torch.optim.SGD([weight], lr=1.0), lambda step: 1.0
        )
        other = spmd.checkpoint.RandomState()
        spmd.CheckpointManager(tmp_path).save(1, {"object": other})
        with pytest.raises(
            ValueError,
            match=r"LambdaLR at 'object' does not take the state that .*/1 has for it: Key",
        ):
            spmd.CheckpointManager(tmp_path).restore({"object": scheduler})

    def test_number_in_the_place_of_a_tensor(self, tmp_path: Path) -> None:
        """torch's own RuntimeError, too."""

        class Number:
            def state_dict(self) -> dict[str, Any]:
                return {"weight": 1.5}

            def load_state_dict(self, state: dict[str, Any]) -> None:
                raise NotImplementedError

        spmd.CheckpointManager(tmp_path).save(1, {"object": Number()})
        with pytest.raises(
            ValueError, match=r"Linear at 'object' does not take the state that .*/1 has.*: Runtime"
        ):
            spmd.CheckpointManager(tmp_path).restore({"object": torch.nn.Linear(2, 1, bias=False)})

    def test_thousand_corrupted_files(self, manager: spmd.CheckpointManager) -> None:
        """Each is found, or what was changed is not read: blanks of the manifest, bytes between two
        shards."""
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

    def test_full_disk(
        self, manager: spmd.CheckpointManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened = os.open

        def full(path: Any, flags: int, *args: Any, **given: Any) -> int:
            if str(path).endswith(".bin") and flags & os.O_CREAT:
                path, flags = "/dev/full", os.O_WRONLY
            return opened(path, flags, *args, **given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", full)
            with pytest.raises(
                SaveError,
                match=r"step 3 was not saved in .*: No space left on device at byte 0 of "
                r".*/shards-0\.bin, [\d,]+ bytes are free\. Earlier steps are unchanged",
            ):
                manager.save(3, state(3))
        assert sorted(os.listdir(manager.folder)) == [".lock", "1", "2"]
        found = state(0)
        assert manager.restore(found) == 2 and values(found) == values(state(2))
        assert manager.save(3, state(3))

    def test_later_error_of_a_thread(
        self, manager: spmd.CheckpointManager, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        """The whole error is printed, even where the program has ended; with `wait` the exit status
        tells, too."""
        folder = (
            tmp_path
            / "a folder with a long name that no terminal has room for"
            / "and another one in it"
        )
        done = subprocess.run(
            [sys.executable, "-c", FAILED, str(folder), "wait" if waits else ""],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
            timeout=120,
        )
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("spmd: ")]
        assert said.startswith(
            f"spmd: CheckpointManager: step 3 was not saved in {folder}: Input/output error at byte"
        )
        assert ". Earlier steps are unchanged. The " in said
        assert said.endswith(
            "exit status of the program does not show it"
            if waits
            else "its exit status does not show it"
        )
        assert done.returncode == int(waits) and ("Traceback" in done.stderr) == waits, done.stderr

    def test_one_cause(
        self, manager: spmd.CheckpointManager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The traceback of a failed save has the error and that of the system, and no other."""

        def fails(*args: Any) -> None:
            raise OSError(5, "Input/output error")

        (tmp_path / "file").write_text("")
        tensors = {"x": torch.ones(4, device="xla")}
        saves: list[Callable[[], Any]] = [
            lambda: manager.save(3, state(3)),
            lambda: manager.save_async(3, state(3)) and manager.wait(),
            lambda: spmd.CheckpointManager(tmp_path / "file/steps").save(1, state()),
            lambda: spmd.save_checkpoint(tensors, tmp_path / "model"),
            lambda: spmd.save_checkpoint(tensors, tmp_path / "file/model"),
        ]
        monkeypatch.setattr(os, "fsync", fails)
        for save in saves:
            with pytest.raises(SaveError) as raised:
                save()
            text = "".join(traceback.format_exception(raised.value))
            assert text.count("Traceback (most recent call last)") == 2, text
            assert text.count("SaveError: ") == 1 and isinstance(raised.value.__cause__, OSError)

    def test_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(
            SaveError, match=r"step 1 was not saved in .*/file/steps: NotADirectoryError: .*/file"
        ):
            spmd.CheckpointManager(tmp_path / "file/steps").save(1, state())

    def test_read_only(self) -> None:
        """A folder in which no user may write."""
        with pytest.raises(
            SaveError,
            match=r"step 1 was not saved in /proc/self/steps: \w+Error: .*'/proc/self/steps'",
        ):
            spmd.CheckpointManager("/proc/self/steps").save(1, state())

    def test_left_by_a_dead_save(self, manager: spmd.CheckpointManager) -> None:
        for name in (".saving-3", ".deleting-1", ".saving-7"):
            (manager.folder / name).mkdir()
            (manager.folder / name / "shards-0.bin").write_bytes(b"half")
        assert manager.all_steps() == [1, 2]
        manager.save(3, state(3))
        assert sorted(os.listdir(manager.folder)) == [".lock", "1", "2", "3"]

    def test_files_and_links_among_what_is_left(
        self, manager: spmd.CheckpointManager, tmp_path: Path
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere/file").write_text("is not ours")
        (manager.folder / ".saving-x").write_text("")
        (manager.folder / ".deleting-x").symlink_to(tmp_path / "elsewhere")
        (manager.folder / ".saving-3").symlink_to(tmp_path / "no such")
        assert manager.save(3, state(3))
        assert sorted(os.listdir(manager.folder)) == [".lock", "1", "2", "3", "elsewhere"]
        assert (tmp_path / "elsewhere/file").read_text() == "is not ours"


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
for name in ("spmd", "spmd.jobs", "spmd.jobs.checkpoint"):  # without the library's own import
    package = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path(sys.argv[1], *name.split(".")))]
    sys.modules[name] = package
importlib.import_module("spmd.jobs.checkpoint.step_folder").lock(pathlib.Path(sys.argv[2]))
print("locked", flush=True)
sys.stdin.read()
"""


class TestTwoJobs:
    """One job saves in a folder; a second one gets an error that names the first."""

    def test_second(self, tmp_path: Path) -> None:
        job = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(ROOT), str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with job:
            assert job.stdout is not None and job.stdout.readline() == "locked\n"
            manager = spmd.CheckpointManager(tmp_path)
            with pytest.raises(
                SaveError,
                match=f'belongs to another job, which runs: .*"process": {job.pid}, "host"',
            ):
                manager.save(1, {"n": 1})
            assert os.listdir(tmp_path) == [".lock"]
            job.kill()
        assert manager.save(1, {"n": 1})
        assert spmd.CheckpointManager(tmp_path).save(2, {"n": 2})  # the same job

    def test_after_a_copy_of_the_folder(self, tmp_path: Path) -> None:
        """The lock lasts when its own process opens and closes the file, as a backup does."""
        manager = spmd.CheckpointManager(tmp_path / "job")
        manager.save(1, {"n": 1})
        shutil.copytree(tmp_path / "job", tmp_path / "backup")
        (tmp_path / "job/.lock").read_bytes()
        done = subprocess.run(
            [sys.executable, "-c", OTHER, str(ROOT), str(tmp_path / "job")],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert "belongs to another job" in done.stderr and done.stdout == ""

    def test_link(self, tmp_path: Path) -> None:
        """A link in the lock's place, and a second name of a file, which both may be another's."""
        (tmp_path / "diary").write_text("all of it")
        (tmp_path / "job").mkdir()
        (tmp_path / "job/.lock").symlink_to(tmp_path / "diary")
        with pytest.raises(SaveError, match=r"step 1 was not saved in .*'.*/job/\.lock'"):
            spmd.CheckpointManager(tmp_path / "job").save(1, {"n": 1})
        (tmp_path / "job/.lock").unlink()
        os.link(tmp_path / "diary", tmp_path / "job/.lock")
        assert spmd.CheckpointManager(tmp_path / "job").save(1, {"n": 1})
        assert (tmp_path / "diary").read_text() == "all of it"

    def test_without_arguments(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What others read names the job, and has no secret of its command."""
        monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--token", "hf_secret"])
        spmd.CheckpointManager(tmp_path).save(1, {"n": 1})
        said = (tmp_path / ".lock").read_text()
        assert json.loads(said)["command"] == "train.py" and "secret" not in said
        assert (tmp_path / ".lock").stat().st_mode & 0o077 == 0
        assert "secret" not in json.dumps(step_saving.this_job())  # of a lease, too

    def test_fork_of_a_killed_job(self, tmp_path: Path) -> None:
        """A worker that outlives its job does not keep the folder."""
        script = OTHER.replace(
            "sys.stdin.read()",
            "import os, time; os.fork() or print('forked', flush=True); time.sleep(60)",
        )
        job = subprocess.Popen(
            [sys.executable, "-c", script, str(ROOT), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with job:
            assert job.stdout is not None and job.stdout.readline() == "locked\n"
            assert job.stdout.readline() == "forked\n"  # it has left what is its parent's
            (worker,) = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            job.kill()
            job.wait()
            try:
                assert spmd.CheckpointManager(tmp_path).save(1, {"n": 1})
            finally:
                os.kill(int(worker), signal.SIGKILL)
