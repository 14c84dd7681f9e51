"""The folder of a step: written under another name, and renamed once all of it is on the disk, by all processes.

A step is there as a whole or not at all, whenever a process or the machine stops. Only the standard library, so that
this can be tried in a process that is killed at each of its writes (`tests/spmd/checkpoints/kill_saves.py`).
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import socket
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from . import manifest

SAVING, DELETING, LOCK = ".saving-", ".deleting-", ".lock"
_BLOCK = 1 << 24  # bytes of a write
ALIGNMENT = 64  # bytes: a shard begins at a multiple of it


class SaveError(RuntimeError):
    """A step was not saved; the steps before it are as they were."""


class Exchange(Protocol):
    """The words that the processes of a save exchange. index, count: this process, and their number."""

    index: int
    count: int

    def publish(self, name: str, words: str) -> None:
        """Makes a text known to all, under a name that is used once."""

    def read(self, name: str) -> str:
        """Waits until a name is known; returns its text."""


class Alone:
    """The exchange of one process."""

    index, count = 0, 1

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def publish(self, name: str, words: str) -> None:
        self._known[name] = words

    def read(self, name: str) -> str:
        return self._known[name]


class Shard(NamedTuple):
    """A shard to be written: the tensor's name, the first index in each dim, the shape, and its bytes."""

    name: str
    at: tuple[int, ...]
    shape: tuple[int, ...]
    data: memoryview


class Description(NamedTuple):
    """The tensors of this process without their shards, its values, and the facts of the whole step."""

    tensors: dict[str, dict[str, Any]]
    values: dict[str, Any]
    facts: dict[str, Any]


def save(
    folder: Path, step: int, shards: Iterable[Shard], description: Description, exchange: Exchange, keep: int | None
) -> Path:
    """Writes this process's shards, and with all others commits the step; returns its folder.

    keep: the number of steps that stay; the oldest are deleted. Raises SaveError in all processes if one has failed.
    """
    saving = folder / f"{SAVING}{step}"
    unsaved = f"step {step} was not saved in {folder}: {{}}. Earlier steps are unchanged"
    with _under_way(saving):
        _by_first(exchange, "begin", lambda: _begin(folder, saving), unsaved)
        failure = _failure(lambda: _write_part(saving, exchange.index, shards, description))
        exchange.publish(f"written/{exchange.index}", _words(failure))
        _by_first(exchange, "end", lambda: _end(folder, step, saving, exchange, description), unsaved, failure)
    undeleted = f"step {step} is saved in {folder}, and older ones are not deleted: {{}}"
    _by_first(exchange, "deleted", lambda: _delete_old(folder, step, keep), undeleted)
    return steps(folder).get(step, folder / str(step))  # a shared disk may show it to this process later


_saving: set[Path] = set()  # the folders that threads of this process write


@contextlib.contextmanager
def _under_way(saving: Path) -> Iterator[None]:
    if saving in _saving:
        raise SaveError(f"CheckpointManager: {saving} is being written by another thread of this process")
    _saving.add(saving)
    try:
        yield
    finally:
        _saving.discard(saving)


def _end(folder: Path, step: int, saving: Path, exchange: Exchange, description: Description) -> None:
    """Commits the step when all processes have written their parts; removes it where one has failed."""
    said = [exchange.read(f"written/{process}") for process in range(exchange.count)]
    failed = [
        f"process {process}: {words}" if exchange.count > 1 else words for process, words in enumerate(said) if words
    ]
    try:
        if failed:
            raise SaveError("; ".join(failed))
        _commit(folder, step, saving, exchange.count, description.facts)
    except BaseException:
        shutil.rmtree(saving, ignore_errors=True)  # the next save removes what is left
        raise


def _by_first(
    exchange: Exchange, name: str, action: Callable[[], Any], form: str, cause: BaseException | None = None
) -> None:
    """Has the first process do something; raises in all processes if it fails, with the words in this form."""
    if exchange.index == 0:
        failure = _failure(action)
        exchange.publish(name, _words(failure))
        cause, words = cause or failure, _words(failure)
    else:
        words = exchange.read(name)
    if words:
        raise SaveError(f"CheckpointManager: {form.format(words)}") from cause


def _failure(action: Callable[[], Any]) -> BaseException | None:
    try:
        action()
    except BaseException as error:
        return error
    return None


def _words(failure: BaseException | None) -> str:
    if failure is None:
        return ""
    said = str(failure).rstrip(".") or "no message"
    return said if isinstance(failure, SaveError) else f"{type(failure).__name__}: {said}"


# --- writing ----------------------------------------------------------------------------------------------------------


def _begin(folder: Path, saving: Path) -> None:
    """Takes the folder for this job, and removes what dead saves have left in it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    for left in folder.iterdir():
        if left.name.startswith((SAVING, DELETING)) and left not in _saving - {saving}:
            shutil.rmtree(left)
    saving.mkdir()


def _write_part(saving: Path, index: int, shards: Iterable[Shard], description: Description) -> None:
    if not saving.is_dir():
        raise SaveError(f"{saving} is not there: expected a folder that all processes share, as on a shared disk")
    tensors = {name: {**tensor, "shards": []} for name, tensor in description.tensors.items()}
    file = f"shards-{index}.bin"
    with _Written(saving / file) as written:
        for shard in shards:
            size = shard.data.nbytes
            offset, crc = written.append(shard.data)
            shard.data.release()  # before the next one is read
            tensors[shard.name]["shards"].append(
                {"at": list(shard.at), "shape": list(shard.shape), "file": file, "offset": offset,
                 "bytes": size, "crc32": f"{crc:08x}"}
            )  # fmt: skip
    part = {"tensors": tensors, "values": description.values, "files": {file: written.size}}
    with _Written(saving / f"process-{index}.json") as written:
        written.append(memoryview(json.dumps(part).encode()))
    _sync(saving)


def _commit(folder: Path, step: int, saving: Path, count: int, facts: dict[str, Any]) -> None:
    files = [saving / f"process-{process}.json" for process in range(count)]
    absent = [file for file in files if not file.is_file()]
    if absent:
        raise SaveError(f"{absent[0]} is not there: expected a folder that all processes share, as on a shared disk")
    body = {"step": step, **facts, **manifest.merged([json.loads(file.read_bytes()) for file in files])}
    with _Written(saving / manifest.NAME) as written:
        written.append(memoryview(manifest.text(body).encode()))
    for file in files:
        file.unlink()
    _sync(saving)
    before = _names(folder).get(step, [])
    os.rename(saving, folder / (f"{step}.{before[-1] + 1}" if before else str(step)))
    _sync(folder)


class _Written:
    """A new file that is on the disk when the context ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0

    def __enter__(self) -> "_Written":
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self._tried(lambda: os.fsync(self._descriptor))
        finally:
            os.close(self._descriptor)

    def append(self, data: memoryview) -> tuple[int, int]:
        """Appends bytes at a multiple of `ALIGNMENT`; returns their offset and their CRC-32."""
        self._write(memoryview(bytes(-self.size % ALIGNMENT)))
        offset, crc = self.size, 0
        for begin in range(0, data.nbytes, _BLOCK):
            block = data[begin : begin + _BLOCK]
            crc = zlib.crc32(block, crc)
            self._write(block)
        return offset, crc

    def _write(self, data: memoryview) -> None:
        while data.nbytes:
            count = self._tried(lambda data=data: os.write(self._descriptor, data))  # type: ignore[misc]
            self.size += count
            data = data[count:]

    def _tried(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:  # of a descriptor, which says no name
            free = shutil.disk_usage(self._path.parent).free
            room = f", {free:,} bytes are free" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise SaveError(f"{error.strerror} at byte {self.size:,} of {self._path}{room}") from error


def _sync(folder: Path) -> None:
    """Has the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the steps of a folder --------------------------------------------------------------------------------------------

_COMMITTED = re.compile(r"(\d+)(?:\.(\d+))?")


def _names(folder: Path) -> dict[int, list[int]]:
    """The committed steps, each with the numbers of its copies: a step that is saved again is `STEP.1`."""
    found: dict[int, list[int]] = {}
    for name in os.listdir(folder) if folder.is_dir() else ():
        match = _COMMITTED.fullmatch(name)
        if match and (folder / name / manifest.NAME).is_file():
            found.setdefault(int(match[1]), []).append(int(match[2] or 0))
    return {step: sorted(found[step]) for step in sorted(found)}


def _folder_of(folder: Path, step: int, copy: int) -> Path:
    return folder / (f"{step}.{copy}" if copy else str(step))


def steps(folder: Path) -> dict[int, Path]:
    """Returns the folders of the committed steps, by step."""
    return {step: _folder_of(folder, step, copies[-1]) for step, copies in _names(folder).items()}


def _delete_old(folder: Path, step: int, keep: int | None) -> None:
    """Deletes earlier copies of a step, and the steps that were saved longest ago."""
    copies = {number: [_folder_of(folder, number, copy) for copy in found] for number, found in _names(folder).items()}
    old = [path for found in copies.values() for path in found[:-1]]
    if keep is not None:
        others = [found[-1] for number, found in copies.items() if number != step]
        others.sort(key=lambda path: (path / manifest.NAME).stat().st_mtime_ns)
        old += others[: max(len(others) - keep + 1, 0)]
    for path in old:
        # Renamed first: what is deleted half is no step any more.
        deleting = folder / f"{DELETING}{path.name}"
        os.rename(path, deleting)
        _sync(folder)
        shutil.rmtree(deleting)


def read_manifest(path: Path) -> dict[str, Any]:
    """Returns the manifest of a step's folder; raises DamagedError."""
    file = path / manifest.NAME
    body = manifest.parsed(file.read_bytes(), str(file))
    for name in body["files"]:
        if Path(name).name != name:
            raise manifest.DamagedError(f"{file}: the file {name!r} is not in the folder of the step")
    return body


# --- the lock ---------------------------------------------------------------------------------------------------------

_locks: dict[tuple[str, int], int] = {}  # by file and process (a fork inherits none): the descriptor


def lock(folder: Path) -> None:
    """Takes a folder for this process until it ends; raises SaveError that names the process that has it."""
    path = folder / LOCK
    name = str(path.resolve()), os.getpid()
    if name in _locks:
        if path.exists() and os.path.samestat(os.fstat(_locks[name]), path.stat()):
            return
        os.close(_locks.pop(name))  # of a folder that was deleted
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        said = os.read(descriptor, 4096).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise SaveError(
                f"{path} cannot be locked: {error.strerror}; expected a disk with locks of files"
            ) from error
        raise SaveError(
            f"{folder} belongs to another job, which runs: {said or 'its owner is not known'}. Give each job a folder "
            "of its own, or end that one"
        ) from error
    owner = {
        "process": os.getpid(), "host": socket.gethostname(), "command": " ".join(sys.argv)[:300],
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)
    _locks[name] = descriptor
