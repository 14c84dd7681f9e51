"""The steps of a job in a folder of a disk: each is written under another name, and renamed once
all of it is there.

Only the standard library: see `step_saving.py`.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import manifest
from .all_or_none import SaveError
from .step_saving import NewFile, Steps, numbers, this_job

SAVING, DELETING, LOCK = ".saving-", ".deleting-", ".lock"


class SyncedFile(NewFile):
    """A file that is on the disk when the context ends: a new one, or with is_new=False one that
    several write."""

    def __init__(self, path: Path, *, is_new: bool = True) -> None:
        super().__init__(path)
        self._flags = os.O_NOFOLLOW | (os.O_CREAT | os.O_EXCL if is_new else 0)
        self._is_new = is_new

    def __enter__(self) -> "SyncedFile":
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | self._flags, 0o644)
        except FileNotFoundError as error:
            raise SaveError(
                f"{self._path} is not there: expected a folder that all processes share, as on a "
                "shared disk"
            ) from error
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                with self._named(self.size):
                    os.fsync(self._descriptor)
                if self._is_new:
                    sync_names(self._path.parent)
        finally:
            os.close(self._descriptor)

    def write(self, data: memoryview) -> None:
        self.write_at(data, self.size)
        self.size += data.nbytes

    def write_at(self, data: memoryview, begin: int) -> None:
        """Writes bytes from this one on."""
        done = 0
        while done < data.nbytes:
            with self._named(begin + done):
                done += os.pwrite(self._descriptor, data[done:], begin + done)

    def end_at(self, size: int) -> None:
        """Makes the file this long."""
        with self._named(size):
            os.ftruncate(self._descriptor, size)

    @contextlib.contextmanager
    def _named(self, offset: int) -> Iterator[None]:
        """Raises SaveError that says the file and the byte for an error of the descriptor, which
        says neither."""
        try:
            yield
        except OSError as error:
            free = shutil.disk_usage(self._path.parent).free
            room = (
                f", {free:,} bytes are free" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            )
            raise SaveError(f"{error.strerror} at byte {offset:,} of {self._path}{room}") from error


def sync_names(folder: Path) -> None:
    """Has the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def removed(path: Path) -> None:
    """Removes a folder with what is in it, a file, or a link and not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class StepFolder(Steps):
    """A folder with one folder a step."""

    new_file = SyncedFile

    def begin(self, step: int, under_way: set[str]) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock(self.folder)
        for unfinished in self.folder.iterdir():
            if unfinished.name.startswith((SAVING, DELETING)) and unfinished.name not in under_way:
                removed(unfinished)
        name = f"{SAVING}{step}"
        (self.folder / name).mkdir()
        return name

    def commit(self, folder_name: str, step: int, text: str, parts: list[str]) -> str:
        saving = self.folder / folder_name
        with SyncedFile(saving / manifest.NAME) as written:
            written.append(memoryview(text.encode()))
            # The order of saves is that of these times, which only increase, also under a clock
            # that goes back.
            saved_at = max(
                [time.time_ns(), *(self.saved_at(name) + 1_000 for name in self.committed_names())]
            )
            os.utime(saving / manifest.NAME, ns=(saved_at, saved_at))
        for name in parts:
            (saving / name).unlink()
        sync_names(saving)
        _, copy = max(filter(None, map(numbers, self.copies().get(step, []))), default=(step, -1))
        name = f"{step}.{copy + 1}" if copy >= 0 else str(step)
        os.rename(saving, self.folder / name)
        sync_names(self.folder)
        return name

    def discard(self, folder_name: str) -> None:
        shutil.rmtree(self.folder / folder_name, ignore_errors=True)

    def committed_names(self) -> list[str]:
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return [name for name in names if (self.folder / name / manifest.NAME).is_file()]

    def saved_at(self, folder_name: str) -> int:
        return (self.folder / folder_name / manifest.NAME).stat().st_mtime_ns

    def remove(self, folder_name: str) -> None:
        # Renamed first: what is deleted half is no step any more.
        deleting = self.folder / f"{DELETING}{folder_name}"
        os.rename(self.folder / folder_name, deleting)
        sync_names(self.folder)
        removed(deleting)


# --- the lock -------------------------------------------------------------------------------------

_locks: dict[str, int] = {}  # by file: the descriptor


def _forget() -> None:
    """Closes the descriptors in a fork, which would keep the locks of a parent that was killed."""
    while _locks:
        os.close(_locks.popitem()[1])


os.register_at_fork(after_in_child=_forget)


def lock(folder: Path) -> None:
    """Takes a folder for this process until it ends; raises SaveError that names the process that
    has it."""
    path = folder / LOCK
    name = os.path.realpath(folder)
    if name in _locks:
        if path.exists() and os.path.samestat(os.fstat(_locks[name]), path.stat()):
            return
        os.close(_locks.pop(name))  # of a folder that was deleted
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        # By descriptor: a lock by process (lockf) ends when any other descriptor of the file is
        # closed, as by a copy.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = os.read(descriptor, 4096).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise SaveError(
                f"{path} cannot be locked: {error.strerror}; expected a disk with locks of files"
            ) from error
        raise SaveError(
            f"{folder} belongs to another job, which runs: {owner or 'its owner is not known'}. "
            "Give each job a folder of its own, or end that one"
        ) from error
    _locks[name] = descriptor
    if os.fstat(descriptor).st_nlink == 1:  # else it may be another file, or a backup's
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(this_job()).encode() + b"\n", 0)


def unlock(folder: Path) -> None:
    """Gives a folder free before this process ends."""
    descriptor = _locks.pop(os.path.realpath(folder), None)
    if descriptor is not None:
        os.close(descriptor)
