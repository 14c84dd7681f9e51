"""Kills saves of a checkpoint at each of their writes, syncs and renames, in each process, and at
random moments.

    python tests/jobs/checkpoint/kill_saves.py        # each operation, before, amid and after; 400
                                                      # at random
    python tests/jobs/checkpoint/kill_saves.py --few  # a part of it, in seconds

After each kill the folder must hold the last committed step, whole, and the next save must succeed
and leave nothing of the dead one. A crash of the machine, which loses what is not synced, is
followed in the list of operations: before the rename all that it names is synced. The writers are
forked from this process, which imports neither torch nor jax.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
import types
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[3]
# the folders, without their doors, which import torch
for name in ("spmd", "spmd.jobs", "spmd.jobs.checkpoint"):
    package = types.ModuleType(name)
    package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
    sys.modules[name] = package
all_or_none: Any = importlib.import_module("spmd.jobs.checkpoint.all_or_none")
step_folder: Any = importlib.import_module("spmd.jobs.checkpoint.step_folder")
step_saving: Any = importlib.import_module("spmd.jobs.checkpoint.step_saving")
manifest: Any = importlib.import_module("spmd.jobs.checkpoint.manifest")
assert not {"torch", "jax", "numpy"} & sys.modules.keys()

SHARDS = (0, 3000, 1, 40_000)  # bytes of each shard; several writes of a block
BEGINS = (0, 3000, 3001)  # of each shard but the empty one, in the row of its process
step_saving.BLOCK = 4096
OPERATIONS = ("open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir", "ftruncate", "pwrite")
MOMENTS = ("before", "middle", "after")


class Peer:
    """The exchange of two processes over a socket.

    A process whose other one dies ends, as jax ends it.
    """

    count = 2

    def __init__(self, index: int, connection: socket.socket) -> None:
        self.index, self._stream = index, connection.makefile("rwb")
        self._known: dict[str, str] = {}

    def publish(self, name: str, words: str) -> None:
        self._known[name] = words
        try:
            self._stream.write(json.dumps([name, words]).encode() + b"\n")
            self._stream.flush()
        except OSError:
            os._exit(3)

    def read(self, name: str) -> str:
        while name not in self._known:
            try:
                line = self._stream.readline()
            except ConnectionResetError:
                line = b""
            if not line:
                os._exit(3)
            key, words = json.loads(line)
            self._known[key] = words
        return self._known[name]


def content(step: int, index: int, number: int, size: int) -> bytes:
    return random.Random(f"{step} {index} {number}").randbytes(size)


def save(folder: Path, step: int, index: int, exchange: Any, keep: int, version: int) -> None:
    """One process's part of a save."""

    def shards() -> Iterator[Any]:
        for number, size in enumerate(SHARDS[1:]):
            data = memoryview(content(step + version, index, number, size))
            yield step_saving.ShardBytes("x", (index, BEGINS[number]), (1, size), data)

    tensors = {"x": {"dtype": "uint8", "shape": [exchange.count, sum(SHARDS)], "on_host": False}}
    values = {
        "n": {"kind": "value", "state": step + version},
        "x": {"kind": "tensor", "state": {"$tensor": "x"}},
    }
    storage = step_folder.StepFolder(folder)
    step_saving.save_step(
        storage, step, shards(), step_saving.Description(tensors, values, {}), exchange, keep
    )


def whole(path: Path, step: int, count: int) -> int:
    """Checks that a committed step is whole; returns its version."""
    body = manifest.read(path)
    assert body["step"] == step
    version: int = body["values"]["n"]["state"] - step
    shards = body["tensors"]["x"]["shards"]
    assert len(shards) == count * len(SHARDS[1:])
    for shard in shards:
        data = (path / shard["file"]).read_bytes()[
            shard["offset"] : shard["offset"] + shard["bytes"]
        ]
        index, begin = shard["at"]
        assert f"{zlib.crc32(data):08x}" == shard["crc32"]
        assert data == content(step + version, index, BEGINS.index(begin), shard["shape"][1])
    assert {file.name for file in path.iterdir()} == {manifest.NAME, *body["files"]}
    assert all((path / name).stat().st_size == size for name, size in body["files"].items())
    return version


class Killer:
    """Counts the operations of this process, and kills it at one of them. log: the operations, with
    their arguments."""

    def __init__(self, at: int | None, moment: str) -> None:
        self.at, self.moment = at, moment
        self.log: list[tuple[str, Any]] = []
        for name in OPERATIONS:
            setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **given: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return original(*args, **given)
            is_here = len(self.log) == self.at
            descriptor = (
                [os.readlink(f"/proc/self/fd/{args[0]}")] if name in ("write", "fsync") else []
            )
            self.log.append((name, descriptor or list(args)))
            if is_here and self.moment == "before":
                die()
            if is_here and self.moment == "middle" and name == "write":
                original(args[0], args[1][: len(args[1]) // 2])
                die()
            try:
                return original(*args, **given)
            finally:
                if is_here:
                    die()

        return call


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def start(count: int, run: Callable[[int, Any], None]) -> list[int]:
    """Forks the processes of a save; returns their ids."""
    ends = socket.socketpair() if count == 2 else None
    started = []
    for index in range(count):
        child = os.fork()
        if child == 0:
            status = 2
            try:
                if ends is not None:
                    ends[1 - index].close()
                run(index, all_or_none.Alone() if ends is None else Peer(index, ends[index]))
                status = 0
            except BaseException as error:
                print(
                    f"process {index}: {type(error).__name__}: {error}", file=sys.stderr, flush=True
                )
            finally:
                os._exit(status)
        started.append(child)
    for end in ends or ():
        end.close()
    return started


def wait(started: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started]


class Trial:
    """A folder with two committed steps, and a save in it that is killed. step: 3, or 2, which is
    there already."""

    def __init__(self, count: int, step: int) -> None:
        self.count, self.step = count, step
        self.root = Path(tempfile.mkdtemp())
        self.folder = self.root / "job"
        self.done: Counter[str] = Counter()
        self.saved(self.root / "at first", 1, keep=2)
        self.saved(self.root / "at first", 2, keep=2)

    def saved(self, folder: Path, step: int, keep: int) -> None:
        """Saves a step that is not killed."""
        codes = wait(
            start(self.count, lambda i, exchange: save(folder, step, i, exchange, keep, 0))
        )
        assert codes == [0] * self.count, codes

    def begin(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.root / "at first", self.folder)

    def run(
        self, killed: int | None, at: int | None, moment: str, note: Path | None = None
    ) -> list[int]:
        def one(index: int, exchange: Any) -> None:
            killer = Killer(at if index == killed else None, moment)
            save(self.folder, self.step, index, exchange, 2, 10)
            if note is not None:
                names = [[name, [str(arg)[:200] for arg in args]] for name, args in killer.log]
                (note / str(index)).write_text(json.dumps(names))

        return wait(start(self.count, one))

    def check(self, what: str, *, is_committed: bool | None = None) -> None:
        """Checks the folder after a kill, and that the next save succeeds."""
        found = step_folder.StepFolder(self.folder).steps()
        versions = {step: whole(path, step, self.count) for step, path in found.items()}
        assert 2 in versions, f"{what}: steps {versions}"
        is_new = versions.get(self.step) == 10
        assert is_committed in (None, is_new), (
            f"{what}: expected committed {is_committed}, found {versions}"
        )
        if not is_new:
            assert versions == {1: 0, 2: 0}, f"{what}: {versions}"
        self.done["committed" if is_new else "as before"] += 1
        self.saved(self.folder, 4, keep=2)
        after = step_folder.StepFolder(self.folder).steps()
        assert max(after) == 4 and len(after) == 2, f"{what}: then {[*after]}"
        assert all(whole(path, step, self.count) in (0, 10) for step, path in after.items())
        left = {path.name for path in self.folder.iterdir()} - {
            path.name for path in after.values()
        }
        assert left == {step_folder.LOCK}, f"{what}: left {left}"

    def operations(self) -> list[list[list[Any]]]:
        """The operations of each process in a save that is not killed; checks that a crash loses
        none."""
        self.begin()
        note = self.root / "operations"
        note.mkdir(exist_ok=True)
        assert self.run(None, None, "") == [0] * self.count
        self.begin()
        assert self.run(None, None, "", note) == [0] * self.count
        logs = [json.loads((note / str(index)).read_text()) for index in range(self.count)]
        for index, log in enumerate(logs):
            names = [name for name, _ in log]
            commit = next(
                (
                    i
                    for i, (name, args) in enumerate(log)
                    if name == "rename" and ".saving-" in args[0]
                ),
                None,
            )
            assert (commit is not None) == (index == 0)
            end = len(log) if commit is None else commit
            unsynced: set[str] = set()
            for name, args in log[:end]:
                if name == "write":
                    unsynced.add(args[0])
                elif name == "fsync":
                    unsynced.discard(args[0])
            assert not unsynced, f"not synced before the commit: {unsynced}"
            assert names[end - 1] == "fsync", (
                "the names in the folder are not synced before the commit"
            )
            assert commit is None or names[commit + 1] == "fsync", "the commit is not synced"
        return logs

    def each(self, moments: tuple[str, ...], every: int = 1) -> None:
        """Kills at each operation of each process."""
        for killed, log in enumerate(self.operations()):
            commit = next(
                (
                    i
                    for i, (name, args) in enumerate(log)
                    if name == "rename" and ".saving-" in args[0]
                ),
                None,
            )
            for at in range(0, len(log), every):
                for moment in moments:
                    if moment == "middle" and log[at][0] != "write":
                        continue
                    self.begin()
                    what = (
                        f"{self.count} processes, {killed} killed {moment} operation {at}, "
                        f"{log[at]}"
                    )
                    codes = self.run(killed, at, moment)
                    assert codes[killed] == -signal.SIGKILL, f"{what}: {codes}"
                    expected = (
                        None
                        if commit is None
                        else at > commit or (at == commit and moment == "after")
                    )
                    self.check(what, is_committed=expected)

    def at_random(self, times: int, draw: random.Random) -> None:
        """Kills all processes, or one of them, at any moment."""
        self.begin()
        begin = time.perf_counter()
        self.run(None, None, "")
        window = time.perf_counter() - begin
        for number in range(times):
            self.begin()
            started = start(
                self.count, lambda i, exchange: save(self.folder, self.step, i, exchange, 2, 10)
            )
            time.sleep(draw.random() * window)
            for child in draw.sample(started, draw.randint(1, self.count)):
                os.kill(child, signal.SIGKILL)
            wait(started)
            self.check(f"{self.count} processes, random kill {number}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--few", action="store_true")
    few = parser.parse_args().few
    draw, begin, total = random.Random(0), time.perf_counter(), Counter[str]()
    for count in (1, 2):
        for step in (3, 2):
            trial = Trial(count, step)
            try:
                if few:
                    trial.each(("after",), every=5)
                    trial.at_random(5, draw)
                else:
                    trial.each(MOMENTS)
                    trial.at_random(100, draw)
            finally:
                shutil.rmtree(trial.root)
            print(f"{count} process(es), step {step}: {dict(trial.done)}", flush=True)
            total += trial.done
    print(
        f"{total.total()} kills in {time.perf_counter() - begin:.0f} s: always the last committed "
        "step"
    )


if __name__ == "__main__":
    main()
