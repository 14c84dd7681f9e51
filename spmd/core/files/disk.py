"""Files of compiled programs in the user's cache folder: permissions, format, total size, and the
setting in a header.

The content of such a file is executed. So only files and folders are used that this user owns and
no other user can access, and content is parsed only after its header and its checksum match. The
setting is all that a program depends on besides its graph: versions, machine, devices, flags, our
own source.
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import TypeVar

import jax
import jaxlib
import numpy as np
import torch
from jax.experimental import serialize_executable

from ..base import counters, forking, messages
from ..base.config import compiler_flags, config
from ..base.jax_private import distributed_state, trace_context, xla_client
from ..sharding.partitioner import compiler_context

T = TypeVar("T")
# The first line of a file; a new layout of what follows is a new number.
MAGIC = b"spmd program 3\n"

_SUFFIX = ".program"
_UNFINISHED = "."
_PATIENCE = 3600  # seconds after which the writer of an unfinished file is taken to be dead
_lock = forking.survives_fork(threading.Lock())
_refused: set[str] = set()  # the folders for which the reason was printed

# Return the content of the file of a digest from outside of the cache, or None.
program_sources: list[Callable[[str], bytes | None]] = []


def read(digest: str, header: dict[str, str]) -> bytes | None:
    """Returns the body stored under a digest, from `program_sources` or else the cache; None if
    there is none. A file of the cache with another header, or with changed bytes, is removed."""
    # Sources first; their files are never removed.
    shipped = next(filter(None, (look_up(digest) for look_up in program_sources)), None)
    if shipped is not None:
        body = _checked(shipped, {"digest": digest, **header})
        if body is not None:
            return body
        messages.say(f"a saved program is damaged or of another setting: {digest[:12]}", "given")
    with _folder() as folder:
        if folder is None:
            return None
        try:
            content = _private_content(digest + _SUFFIX, folder)
        except FileNotFoundError:
            return None
        except OSError:  # a link or a folder in its place, or a disk that fails
            content = b""
    body = _checked(content, {"digest": digest, **header})
    if body is None:
        discard(digest)
    return body


def loaded(digest: str, header: dict[str, str], decode: Callable[[bytes], T]) -> T | None:
    """Returns the decoded body of a digest; None if there is none, or if it does not load."""
    body = read(digest, header)
    if body is None:
        return None
    try:
        program = decode(body)
    except Exception as error:  # any failure of jax or XLA: the program is compiled instead
        messages.say(
            f"a cached program does not load, and is compiled: {type(error).__name__}: {error}",
            "kept",
        )
        discard(digest)
        return None
    counters.add("programs_loaded")
    return program


def keep(digest: str, header: dict[str, str], encode: Callable[[], bytes]) -> None:
    """Stores a program that was just compiled; where that is not possible, `refuse` says why."""
    try:
        body = encode()
    except Exception as error:  # not every backend can serialize its executables
        refuse(f"a program cannot be written: {type(error).__name__}: {error}")
    else:
        counters.add("programs_stored", int(write(digest, header, body)))


def _private_content(name: str, folder: int) -> bytes:
    """Returns the content of a private regular file, else b""; marks the file as used now."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)

    with open(name, "rb", opener=opener) as file:
        status = os.fstat(file.fileno())
        if (
            not stat.S_ISREG(status.st_mode)
            or not is_private(status)
            or status.st_size > config.program_cache_bytes
        ):
            return b""
        with contextlib.suppress(OSError):  # a read-only disk
            os.utime(file.fileno())
        return file.read()


def _checked(content: bytes, header: dict[str, str]) -> bytes | None:
    """Returns the body of a file's content; None if the header is another or the checksum wrong."""
    line, _, body = content.removeprefix(MAGIC).partition(b"\n")
    return body if content.startswith(MAGIC) and line == _header_line(header, body) else None


def _header_line(header: dict[str, str], body: bytes) -> bytes:
    """Returns the header with the body's checksum, as the second line of a file."""
    return json.dumps(
        {"sha256": hashlib.sha256(body).hexdigest(), **header}, sort_keys=True
    ).encode()


def write(digest: str, header: dict[str, str], body: bytes) -> bool:
    """Stores a body under a digest if it fits into `config.program_cache_bytes`; removes the least
    recently used files.

    Several processes may write at once: a file appears complete or not at all. Returns False if it
    was not written.
    """
    content = content_of(digest, header, body)
    with _folder() as folder:
        if folder is None:
            return False
        if len(content) > config.program_cache_bytes:
            words = (
                f"a program of {len(content):,} bytes is not kept: config.program_cache_bytes is"
            )
            messages.say(f"{words} {config.program_cache_bytes:,}", "a large program")
            return False
        name = f"{_UNFINISHED}{os.urandom(16).hex()}"
        try:
            # Written under another name and renamed, so that a reader finds all of it or nothing.
            _make_room(folder, len(content))
            file = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder
            )
            with open(file, "wb") as opened:
                opened.write(content)
            os.rename(name, digest + _SUFFIX, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=folder)
            refuse(f"a program could not be kept: {error}")
            return False
    return True


def content_of(digest: str, header: dict[str, str], body: bytes) -> bytes:
    """Returns the bytes of a file: its header with a checksum, and the body."""
    return b"".join((MAGIC, _header_line({"digest": digest, **header}, body), b"\n", body))


def discard(digest: str) -> None:
    """Removes the file of a digest."""
    counters.add("programs_unreadable")
    with _folder() as folder:
        if folder is not None:
            with contextlib.suppress(OSError):  # another process was faster, or it is a folder
                os.unlink(digest + _SUFFIX, dir_fd=folder)


def _make_room(folder: int, size: int) -> None:
    """Removes files, the least recently used first, until one of this size fits."""
    files = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            # Another process may be writing an unfinished file, unless it is old.
            is_being_written = (
                name.startswith(_UNFINISHED) and time.time() - status.st_mtime < _PATIENCE
            )
            is_of_cache = name.startswith(_UNFINISHED) or name.endswith(_SUFFIX)
            if stat.S_ISREG(status.st_mode) and is_of_cache and not is_being_written:
                files.append((status.st_mtime_ns, status.st_size, name))
    excess = sum(file_size for _, file_size, _ in files) + size - config.program_cache_bytes
    for _, file_size, name in sorted(files):
        if excess <= 0:
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
            counters.add("programs_removed")
        excess -= file_size


@contextlib.contextmanager
def _folder() -> Iterator[int | None]:
    """Yields the open cache folder, created if it is missing; None, with one message, if it cannot
    be used."""
    if not is_on():
        yield None
        return
    try:
        path = Path(config.program_cache_dir).expanduser()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (OSError, RuntimeError) as error:  # RuntimeError: a user without a home folder
        refuse(str(error))
        yield None
        return
    try:
        if is_private(os.fstat(folder)):
            yield folder
        else:
            refuse(f"only its owner may enter it (chmod 700): {path}")
            yield None
    finally:
        os.close(folder)


def is_read() -> bool:
    """True if programs are looked up in files: of the cache, or of `program_sources`."""
    return is_on() or bool(program_sources)


def is_on() -> bool:
    """True if programs are stored; starts no device. False on a system without owners of files, and
    in one of several processes."""
    is_wanted = bool(config.program_cache and config.program_cache_dir) and hasattr(os, "geteuid")
    return is_wanted and distributed_state.num_processes == 1


def is_private(status: os.stat_result) -> bool:
    """True if this user owns the file and no other user has access to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077


def trusted_content(path: Path) -> bytes:
    """Returns the content of a file named by the user, for execution. Raises ValueError if a user
    other than this one and root owns it or may write it, or if it exceeds `_MOST_BYTES`."""
    if path.is_symlink():
        raise ValueError(
            f"{path}: expected a file, as its content is executed, got a link; copy it if you "
            "trust it"
        )
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        status = os.fstat(file)
        is_own = not hasattr(os, "geteuid") or (
            status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
        )
        if not stat.S_ISREG(status.st_mode) or not is_own or status.st_size > _MOST_BYTES:
            raise ValueError(
                f"{path}: expected a file of at most {_MOST_BYTES:,} bytes that you own and no "
                f"other user may write, as its content is executed; got {status.st_size:,} bytes "
                f"of user {status.st_uid}, mode {stat.filemode(status.st_mode)}; copy it (chmod "
                "600) if you trust it"
            )
        with open(file, "rb", closefd=False) as opened:
            return opened.read()
    finally:
        os.close(file)


_MOST_BYTES = 1 << 31


def refuse(why: str) -> None:
    """Prints why programs are not stored, once for each folder."""
    with _lock:
        is_refused = config.program_cache_dir in _refused
        _refused.add(config.program_cache_dir)
    if not is_refused:
        full = (
            f"the cache of compiled programs is not used: {why}. (SPMD_PROGRAM_CACHE=0 disables "
            "this message.)"
        )
        text = f"no cache of programs in {config.program_cache_dir}: {why}"
        messages.say(text, f"no cache {config.program_cache_dir}", full, is_error=True)


_PLAIN = (bool, int, str, Enum, NoneType)
_PACKAGE = Path(__file__).resolve().parents[2]


def setting(device_ids: tuple[int, ...]) -> dict[str, str]:
    """Returns, by name, all that a program over these devices depends on besides its graph."""
    with compiler_context():
        jax_settings = [repr(value) for value in trace_context() if isinstance(value, _PLAIN)]
    return {
        **_process_setting(),
        "devices": ",".join(map(str, device_ids)),
        "process": process(),
        "check_shardings": str(config.check_shardings),
        "flags": _digest(
            (
                compiler_flags(),
                jax_settings,
                sorted((name, str(v)) for name, v in jax.config.values.items()),
            )
        ),
    }


def process() -> str:
    """Returns the index of this process and the number of processes, as each has executables of its
    own; "" for a single process."""
    return (
        f"process_{jax.process_index()}_of_{jax.process_count()}" if jax.process_count() > 1 else ""
    )


def readable_setting() -> dict[str, str]:
    """Returns, by name, what all programs of this process depend on, as text to compare with
    another process's."""
    flags = zip(("XLA_FLAGS", "LIBTPU_INIT_ARGS"), map(str, compiler_flags()), strict=True)
    with compiler_context():
        options = {
            f"jax_{name.removeprefix('jax_')}": str(value)
            for name, value in jax.config.values.items()
        }
    devices = {"devices": f"{jax.device_count()} x {jax.devices()[0].device_kind}"}
    ours = {"check_shardings": str(config.check_shardings), "processes": str(jax.process_count())}
    return {**devices, **_process_setting(), **ours, **dict(flags), **options}


@functools.cache
def _process_setting() -> dict[str, str]:
    """Returns the entries that stay the same in a process whose devices have started."""
    client = jax.devices()[0].client
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "numpy": np.__version__,
        "platform": f"{client.platform} {client.platform_version}",
        "topology": str(xla_client.get_topology_for_devices(jax.devices()).fingerprint()),
        "cpu": _digest(_cpu_features()),
        "source": _source_digest(),
    }


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def _cpu_features() -> str:
    """Returns the processor's architecture, and its model and features if the system lists them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    features = sorted({line for line in lines if line.partition("\t")[0].strip(": ") in names})
    return "\n".join([platform.machine(), platform.processor(), *features])


def _source_digest() -> str:
    """Returns the sha256 of this library's files: ops are lowered by files outside of the core,
    too."""
    files = sorted(_PACKAGE.rglob("*.py"))
    text = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        text.update(f"{file.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return text.hexdigest()


def executable_of(
    body: bytes, num_arguments: int, results: object, devices: Sequence[jax.Device]
) -> jax.stages.Compiled:
    """Returns the executable that a body holds, over these devices. results: the tree of the
    program's results, with any leaves."""
    arguments = jax.tree.structure(((0,) * num_arguments, {}))
    return serialize_executable.deserialize_and_load(
        body, arguments, jax.tree.structure(results), execution_devices=list(devices)
    )
