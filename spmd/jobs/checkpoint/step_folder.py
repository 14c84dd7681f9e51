"""The steps of a job in a folder of a disk: each is written under another name, and renamed once all of it is there.

Only the standard library: see `step_saving.py`.
"""

import errno
import fcntl
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import manifest
from .all_or_none import SaveError
from .step_saving import Written, numbers

SAVING, DELETING, LOCK = ".saving-", ".deleting-", ".lock"


class StepFolder:
    """A folder with one folder a step. A `Storage` of `step_saving.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def begin(self, step: int, under_way: set[str]) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock(self.folder)
        for left in self.folder.iterdir():
            if left.name.startswith((SAVING, DELETING)) and left.name not in under_way:
                shutil.rmtree(left)
        place = f"{SAVING}{step}"
        (self.folder / place).mkdir()
        return place

    def create(self, place: str, name: str) -> "SyncedFile":
        if not (self.folder / place).is_dir():
            raise SaveError(
                f"{self.folder / place} is not there: expected a folder that all processes share, as on a shared disk"
            )
        return SyncedFile(self.folder / place / name)

    def end_part(self, place: str) -> None:
        sync_names(self.folder / place)

    def read(self, place: str, name: str) -> bytes | None:
        file = self.folder / place / name
        return file.read_bytes() if file.is_file() else None

    def commit(self, place: str, step: int, text: str, parts: list[str]) -> str:
        saving = self.folder / place
        with SyncedFile(saving / manifest.NAME) as written:
            written.append(memoryview(text.encode()))
        for name in parts:
            (saving / name).unlink()
        sync_names(saving)
        before = self._copies().get(step, [])
        name = f"{step}.{before[-1] + 1}" if before else str(step)
        os.rename(saving, self.folder / name)
        sync_names(self.folder)
        return name

    def path(self, place: str) -> Path:
        return self.folder / place

    def discard(self, place: str) -> None:
        shutil.rmtree(self.folder / place, ignore_errors=True)

    def _copies(self) -> dict[int, list[int]]:
        """The committed steps, each with the numbers of its copies."""
        found: dict[int, list[int]] = {}
        for name in os.listdir(self.folder) if self.folder.is_dir() else ():
            step_and_copy = numbers(name)
            if step_and_copy and (self.folder / name / manifest.NAME).is_file():
                found.setdefault(step_and_copy[0], []).append(step_and_copy[1])
        return {step: sorted(found[step]) for step in sorted(found)}

    def _named(self, step: int, copy: int) -> Path:
        return self.folder / (f"{step}.{copy}" if copy else str(step))

    def steps(self) -> dict[int, Path]:
        return {step: self._named(step, copies[-1]) for step, copies in self._copies().items()}

    def delete_old(self, step: int, keep: int | None) -> None:
        copies = {number: [self._named(number, copy) for copy in found] for number, found in self._copies().items()}
        old = [path for found in copies.values() for path in found[:-1]]
        if keep is not None:
            others = [found[-1] for number, found in copies.items() if number != step]
            others.sort(key=lambda path: (path / manifest.NAME).stat().st_mtime_ns)
            old += others[: max(len(others) - keep + 1, 0)]
        for path in old:
            # Renamed first: what is deleted half is no step any more.
            deleting = self.folder / f"{DELETING}{path.name}"
            os.rename(path, deleting)
            sync_names(self.folder)
            shutil.rmtree(deleting)


class SyncedFile(Written):
    """A new file that is on the disk when the context ends."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __enter__(self) -> "SyncedFile":
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                named_error(lambda: os.fsync(self._descriptor), self._path, self.size)
        finally:
            os.close(self._descriptor)

    def write(self, data: memoryview) -> None:
        while data.nbytes:
            count = named_error(lambda data=data: os.write(self._descriptor, data), self._path, self.size)  # type: ignore[misc]
            self.size += count
            data = data[count:]


def named_error(action: Callable[[], Any], path: Path, at: int) -> Any:
    """Does something with a descriptor, whose errors say no name; raises SaveError that says the file and the byte."""
    try:
        return action()
    except OSError as error:
        free = shutil.disk_usage(path.parent).free
        room = f", {free:,} bytes are free" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise SaveError(f"{error.strerror} at byte {at:,} of {path}{room}") from error


def sync_names(folder: Path) -> None:
    """Has the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def unlock(folder: Path) -> None:
    """Gives a folder free before this process ends."""
    descriptor = _locks.pop((str((folder / LOCK).resolve()), os.getpid()), None)
    if descriptor is not None:
        os.close(descriptor)
