"""Files of compiled programs in the user's cache folder: who may read and write them, how much they may take.

What such a file holds is run. So the folder and its files are used only where they belong to this process's user and
nobody else may enter, and nothing of a file is looked into before its header fits and its checksum holds.
"""

import contextlib
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from .. import forking, metrics
from ..config import config
from . import notice

# The first line of a file; a new layout of what follows is a new number.
MAGIC = b"spmd program 2\n"

_SUFFIX = ".program"
_UNFINISHED = "."
_PATIENCE = 3600  # seconds after which whoever began a file is taken to be dead
_lock = forking.survives_fork(threading.Lock())
_refused: set[str] = set()  # the folders of which was said why they are not used


def read(digest: str, header: dict[str, str]) -> bytes | None:
    """The body kept under a digest, or None: where there is none, and where its header is another or its bytes are
    not those that were written; such a file is removed."""
    with _folder() as folder:
        if folder is None:
            return None
        try:
            content = _content(digest + _SUFFIX, folder)
        except FileNotFoundError:
            return None
        except OSError:  # a link or a folder in its place, a disk that fails
            content = b""
    body = _checked(content, {"digest": digest, **header})
    if body is None:
        discard(digest)
    return body


def _content(name: str, folder: int) -> bytes:
    """What a file holds that is the user's alone, else nothing; it was used just now."""
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            return b""
        with contextlib.suppress(OSError):  # a disk for reading alone
            os.utime(file)
        with open(file, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(file)


def _checked(content: bytes, header: dict[str, str]) -> bytes | None:
    """The body of a file whose header is this one and whose checksum holds."""
    start, line, body = content[: len(MAGIC)], *(*content[len(MAGIC) :].split(b"\n", 1), b"")[:2]
    return body if start == MAGIC and line == _line(header, body) else None


def _line(header: dict[str, str], body: bytes) -> bytes:
    return json.dumps({"sha256": hashlib.sha256(body).hexdigest(), **header}, sort_keys=True).encode()


def write(digest: str, header: dict[str, str], body: bytes) -> bool:
    """Keeps a body under a digest, where there is room for it; what was used least of late gives way to it.

    Several processes may write at once: a file appears whole or not at all. False where it was not written.
    """
    content = b"".join((MAGIC, _line({"digest": digest, **header}, body), b"\n", body))
    with _folder() as folder:
        if folder is None or len(content) > config.program_cache_bytes:
            return False
        name = f"{_UNFINISHED}{os.urandom(16).hex()}"
        try:
            _make_room(folder, len(content))
            file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
            with open(file, "wb") as opened:
                opened.write(content)
            os.rename(name, digest + _SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            refuse(f"a program could not be kept: {error}")
            return False
    return True


def discard(digest: str) -> None:
    """Removes what is kept under a digest."""
    metrics.add("programs_unreadable")
    with _folder() as folder:
        if folder is not None:
            with contextlib.suppress(OSError):  # another process was quicker, or it is a folder
                os.unlink(digest + _SUFFIX, dir_fd=folder)


def _make_room(folder: int, size: int) -> None:
    """Removes files, the least recently used first, until one of this size fits."""
    found = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process was quicker
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            is_being_written = name.startswith(_UNFINISHED) and time.time() - status.st_mtime < _PATIENCE
            if stat.S_ISREG(status.st_mode) and not is_being_written:
                found.append((status.st_mtime_ns, status.st_size, name))
    left = sum(taken for _, taken, _ in found) + size - config.program_cache_bytes
    for _, taken, name in sorted(found):
        if left <= 0:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            metrics.add("programs_removed")
        left -= taken


@contextlib.contextmanager
def _folder() -> Iterator[int | None]:
    """The open cache folder, made where it is missing; None where there is none to be used, which is said once."""
    if not is_on():
        yield None
        return
    try:
        path = Path(config.program_cache_dir).expanduser()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:  # the latter of a user who has no home
        refuse(str(error))
        yield None
        return
    try:
        if _is_private(os.fstat(folder)):
            yield folder
        else:
            refuse(f"{path} belongs to another user, or others may enter it (chmod 700 {path})")
            yield None
    finally:
        os.close(folder)


def is_on() -> bool:
    """Whether programs are kept. Where the system knows no owners of files, none are."""
    return bool(config.program_cache and config.program_cache_dir) and hasattr(os, "geteuid")


def _is_private(status: os.stat_result) -> bool:
    """Whether this user owns it and nobody else may touch it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def refuse(why: str) -> None:
    """Says why programs are not kept, once for each folder."""
    with _lock:
        known = config.program_cache_dir in _refused
        _refused.add(config.program_cache_dir)
    if not known:
        notice.say(f"the cache of compiled programs is not used: {why}. (SPMD_PROGRAM_CACHE=0 says nothing.)")
