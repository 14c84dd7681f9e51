"""Folders by URL: steps that are there as a whole or not at all in an object store, and models read
by ranges."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.registry import known_implementations
from safetensors.torch import save, save_file
from torch import nn

import spmd
from spmd.checkpoint import DamagedError, SaveError
from spmd.jobs.checkpoint import lease
from spmd.jobs.checkpoint.places import UrlPath, place_of
from spmd.jobs.checkpoint.stored_objects import StepObjects

from .object_store import ObjectStore
from .states import MESHES, Run
from .test_damage import state, values


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch) -> Any:
    ObjectStore.fetched.clear()
    monkeypatch.setattr(ObjectStore, "fails_at", None)
    memory = fsspec.filesystem("memory")
    yield
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    lease._leases.clear()  # whose thread ends then


@pytest.fixture(params=["store", "memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://job" if request.param == "memory" else f"{request.param}://{tmp_path}/job"


def sharded(shape: tuple[int, ...], *spec: Any) -> torch.Tensor:
    return spmd.mark_sharding(torch.empty(shape, device="xla"), MESHES["8"], spec)


class TestSteps:
    """The same calls as with a path."""

    def test_resume(self, url: str) -> None:
        run = Run()
        run.train(2)
        manager = spmd.CheckpointManager(url, keep=2, async_=True)
        manager.save(2, run.state)
        expected = run.train(2)
        manager.wait()
        for mesh in ("8", "2x4"):
            other = Run(mesh)
            assert spmd.CheckpointManager(url).restore(other.state) == 2
            losses = other.train(2)
            assert losses == expected if mesh == "8" else len(losses) == 2

    def test_keep_and_again(self, url: str) -> None:
        manager = spmd.CheckpointManager(url, keep=2)
        for step in (1, 2, 3, 2):
            manager.save(step, {"n": 10 * step + len(manager.all_steps()), "x": torch.arange(4.0)})
        assert manager.all_steps() == [2, 3]
        found = {"n": 0}
        assert manager.restore(found, 2) == 2 and found["n"] == 22
        assert manager.verify() == 3
        with pytest.raises(FileNotFoundError, match=r"no committed step 1 in .*job; it has 2, 3"):
            manager.restore(found, 1)

    def test_clock_that_goes_back(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        manager, clock = spmd.CheckpointManager(url, keep=2), time.time_ns()
        for step, hours in ((9, 2), (10, 1), (10, 0), (11, 0)):
            monkeypatch.setattr(time, "time_ns", lambda hours=hours: clock + hours * 3600 * 10**9)
            manager.save(step, {"n": 10 * step + hours})
        found = {"n": 0}
        assert manager.all_steps() == [10, 11]
        assert manager.restore(found, 10) == 10 and found["n"] == 100

    def test_none(self, url: str) -> None:
        manager = spmd.CheckpointManager(url)
        assert manager.all_steps() == []
        with pytest.raises(FileNotFoundError, match="no committed step in"):
            manager.restore({"n": 0})

    def test_a_file_url_is_a_path(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(f"file://{tmp_path}/job")
        assert manager.folder == tmp_path / "job"
        manager.save(1, {"n": 1})
        assert sorted(os.listdir(tmp_path / "job")) == [".lock", "1"]

    def test_damage(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        for step in (1, 2):
            manager.save(step, state(step))
        (place,) = (tmp_path / "job").glob("2.*")
        file = place / "shards-0.bin"
        data = bytearray(file.read_bytes())
        data[-3] ^= 4
        file.write_bytes(data)
        with pytest.raises(
            DamagedError, match=r"shards-0\.bin is damaged: .*an older step is there"
        ):
            manager.restore(state(0))
        found = state(0)
        assert manager.restore(found, skip_damaged=True) == 1 and values(found) == values(state(1))

    def test_each_shard_is_fetched_once(self, tmp_path: Path) -> None:
        """Also where each shard of another layout needs a part of each, and none that is not
        needed."""
        rows, other = sharded((16, 8), "fsdp", None), sharded((8,), "fsdp")
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        manager.save(1, {"x": rows.copy_(torch.arange(128.0).view(16, 8)), "other": other.fill_(1)})
        ObjectStore.fetched.clear()
        found = {"x": sharded((16, 8), None, "fsdp")}
        manager.restore(found)
        assert torch.equal(found["x"].cpu(), torch.arange(128.0).view(16, 8))
        fetched = [one for one in ObjectStore.fetched if one[0].endswith("shards-0.bin")]
        assert (
            len(fetched) == len(set(fetched)) == 8
            and sum(size for *_, size in fetched) == 16 * 8 * 4
        )


class TestFailures:
    """A store that stops answering at any write: the last committed step is there, and the next
    save succeeds."""

    def test_each_write(self, tmp_path: Path) -> None:
        url = f"store://{tmp_path}/job"
        manager = spmd.CheckpointManager(url, keep=2)
        for step in (1, 2):
            manager.save(step, state(step))
        failed = 0
        for at in range(200):
            ObjectStore.fails_at = at
            try:
                manager.save(3 + at, state(3 + at))
            except SaveError as error:
                failed += 1
                assert "the store does not answer" in str(error) and str(manager.folder) in str(
                    error
                )
            else:
                break
            finally:
                ObjectStore.fails_at = None
            steps = manager.all_steps()
            assert len(steps) >= 2
            for step in steps:
                found = state(0)
                manager.restore(found, step)
                assert values(found) == values(state(step))
        assert failed > 5 and manager.all_steps()[-1] == 3 + at
        names = {path.name for path in (tmp_path / "job").iterdir()} - {lease.NAME}
        assert len(names) == 2, names

    def test_left_by_a_dead_save(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        manager.save(1, {"n": 1})
        for name in ("2.17", "7.99"):
            (tmp_path / "job" / name).mkdir()
            (tmp_path / "job" / name / "shards-0.bin").write_bytes(b"half")
        assert manager.all_steps() == [1]
        manager.save(3, {"n": 3})
        assert sorted(path.name.split(".")[0] for path in (tmp_path / "job").iterdir()) == [
            "",
            "1",
            "3",
        ]


class TestTwoJobs:
    """A lease names the job that has the folder; one that is not renewed is taken."""

    @pytest.fixture(autouse=True)
    def _fast(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease, "PERIOD", 0.05)

    def other(self, tmp_path: Path, number: int) -> None:
        (tmp_path / "job").mkdir(exist_ok=True)
        words = {
            "token": "of another",
            "process": 7,
            "host": "far",
            "command": "train.py",
            "renewal": number,
        }
        (tmp_path / "job" / lease.NAME).write_text(json.dumps(words))

    def test_alive(self, tmp_path: Path) -> None:
        self.other(tmp_path, 0)
        stop = threading.Event()

        def renew() -> None:
            number = 0
            while not stop.wait(0.02):
                number += 1
                self.other(tmp_path, number)

        thread = threading.Thread(target=renew)
        thread.start()
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        try:
            with pytest.raises(
                SaveError,
                match=r'belongs to another job, which runs: .*"host": "far", "command": "tr',
            ):
                manager.save(1, {"n": 1})
        finally:
            stop.set()
            thread.join()
        assert manager.all_steps() == []

    def test_dead(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.other(tmp_path, 0)
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        assert manager.save(1, {"n": 1}) and manager.all_steps() == [1]
        assert "for a sign of the job that saved there" in capsys.readouterr().err

    def test_lost(self, tmp_path: Path) -> None:
        """A job that was silent for long is told at its next save, and writes no manifest."""
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        manager.save(1, {"n": 1})
        self.other(tmp_path, 5)
        with pytest.raises(
            SaveError, match=r"was taken by another job while this one was silent.*train\.py"
        ):
            manager.save(2, {"n": 2})
        assert manager.all_steps() == [1]

    def test_lost_while_it_writes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lease, "PERIOD", 60.0)
        manager, created = spmd.CheckpointManager(f"store://{tmp_path}/job"), StepObjects.new_file

        def create(*args: Any) -> Any:
            self.other(tmp_path, 5)
            return created(*args)

        monkeypatch.setattr(StepObjects, "new_file", staticmethod(create))
        with pytest.raises(
            SaveError, match=r"step 1 was not saved in .*: .* was taken by another job"
        ):
            manager.save(1, {"n": 1})
        assert manager.all_steps() == []

    @pytest.mark.parametrize("content", [b"[]", b"[" * 100_000, b"3", b""])
    def test_other_object(
        self, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lease, "PERIOD", 0.02)
        (tmp_path / "job").mkdir()
        (tmp_path / "job/.lease").write_bytes(content)
        assert spmd.CheckpointManager(f"store://{tmp_path}/job").save(1, {"n": 1})

    def test_renewed(self, tmp_path: Path) -> None:
        manager = spmd.CheckpointManager(f"store://{tmp_path}/job")
        manager.save(1, {"n": 1})
        before = (tmp_path / "job" / lease.NAME).read_text()
        assert json.loads(before)["process"] == os.getpid()
        deadline = time.monotonic() + 30
        while (tmp_path / "job" / lease.NAME).read_text() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (tmp_path / "job" / lease.NAME).read_text() != before


class TestModels:
    """`load_checkpoint` and `save_checkpoint` by URL."""

    @pytest.mark.parametrize("spec", [("fsdp", None), (None, "fsdp")], ids=str)
    def test_ranges(self, spec: Any, tmp_path: Path) -> None:
        """Each byte is fetched once: of rows those of a shard, of columns all rows."""
        source = {"weight": torch.randn(16, 8), "left_out": torch.randn(100)}
        save_file(source, tmp_path / "model.safetensors")
        layer = nn.Linear(8, 16, bias=False, device="xla")
        spmd.mark_sharding(layer.weight, MESHES["8"], spec)
        ObjectStore.fetched.clear()
        found = spmd.load_checkpoint(layer, f"store://{tmp_path}", strict=False)
        assert found.unexpected_keys == ["left_out"] and torch.equal(
            layer.weight.detach().cpu(), source["weight"]
        )
        sizes = [size for _, _, size in ObjectStore.fetched if size in (64, 512)]
        assert sizes == ([64] * 8 if spec[0] else [512])

    def test_files(self, tmp_path: Path) -> None:
        """Indexed files, and a file of torch.save."""
        torch.manual_seed(0)
        source = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        spmd.save_checkpoint(source, f"store://{tmp_path}/model", max_shard_size=300)
        assert len(list((tmp_path / "model").iterdir())) == 3
        torch.save(source.state_dict(), tmp_path / "model.pt")
        for name in ("model", "model.pt"):
            model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to("xla")
            spmd.mark_sharding(model[1].weight, MESHES["8"], ("fsdp", None))
            spmd.load_checkpoint(model, f"store://{tmp_path}/{name}")
            assert all(
                torch.equal(value.cpu(), source.state_dict()[key])
                for key, value in model.state_dict().items()
            )

    def test_save(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Joined some rows at a time; an earlier model is replaced."""
        monkeypatch.setattr("spmd.jobs.checkpoint.stored_objects._BLOCK", 100)
        whole = {
            "a": torch.randn(16, 8),
            "b": torch.randn(9, 3).bfloat16(),
            "c": torch.tensor(2.0),
            "d": torch.ones(2),
        }
        tensors = {
            "a": spmd.mark_sharding(whole["a"].to("xla"), MESHES["2x4"], ("fsdp", "data")),
            "b": spmd.mark_sharding(whole["b"].to("xla"), MESHES["8"], ("fsdp", None)),
            "c": whole["c"].to("xla"),
            "d": whole["d"],
        }
        memory = fsspec.filesystem("memory")
        for most, count in ((60, 3), (520, 2), ("1KB", 1), (60, 3)):
            spmd.save_checkpoint(tensors, "memory://model", max_shard_size=most)
            names = [name.removeprefix("/model/") for name in memory.find("/model")]
            assert len(names) == (count + 1 if count > 1 else 1), names
        spmd.save_checkpoint(tensors, "memory://one/x.safetensors")
        assert memory.cat_file("/one/x.safetensors") == save(whole, {"format": "pt"})

    def test_save_that_fails(self, tmp_path: Path) -> None:
        """The object of one file stays as it was, at whichever write the store stops answering."""
        old, new = {"x": torch.zeros(64)}, {"x": torch.ones(64)}
        url, failed = f"store://{tmp_path}/model", 0
        spmd.save_checkpoint(old, url)
        for at in range(50):
            ObjectStore.fails_at = at
            try:
                spmd.save_checkpoint(new, url)
            except SaveError as error:
                failed += 1
                assert "the store does not answer" in str(error)
            else:
                break
            finally:
                ObjectStore.fails_at = None
            content = (tmp_path / "model/model.safetensors").read_bytes()
            assert content in (save(old, {"format": "pt"}), save(new, {"format": "pt"}))
        assert failed > 4 and content == save(new, {"format": "pt"})
        assert os.listdir(tmp_path / "model") == ["model.safetensors"]


class TestPlaces:
    """The parts that a URL needs, and texts that are none."""

    def test_a_package_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {
            "class": "no_such_package.FileSystem",
            "err": "Install no_such_package to access it",
        }
        monkeypatch.setitem(known_implementations, "far", known)
        for call in (spmd.CheckpointManager, lambda at: spmd.load_checkpoint(nn.Linear(2, 2), at)):
            with pytest.raises(
                ImportError,
                match=r"far://x: fsspec needs another package .*: Install no_such_package",
            ):
                call("far://x")

    def test_unknown(self) -> None:
        with pytest.raises(ValueError, match="Protocol not known: nowhere"):
            spmd.CheckpointManager("nowhere://x")
        with pytest.raises(ValueError, match="expected a URL as a str"):
            place_of(Path("memory://x"))

    def test_path(self, tmp_path: Path) -> None:
        file = tmp_path / "a/b.txt"
        file.parent.mkdir()
        file.write_text("some words")
        found = place_of(f"store://{tmp_path}/a")
        assert (
            isinstance(found, UrlPath)
            and found.is_dir()
            and [file.name for file in found.iterdir()] == ["b.txt"]
        )
        assert (found / "b.txt").read_bytes() == b"some words" and (
            found / "b.txt"
        ).stat().st_size == 10
        assert (found / "b.txt").parent == found and not list((found / "none").iterdir())
        with pytest.raises(EOFError, match=r"b.txt ends at byte 10, expected 12 or more"):
            (found / "b.txt").read_range(2, 10)
