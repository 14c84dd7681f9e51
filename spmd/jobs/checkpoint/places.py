"""Files and folders that are read: a `Path` of a disk, or by URL, through fsspec, with the same
methods."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

_BLOCK = 1 << 24  # bytes of one request
# whose only folders are buckets
_BUCKETS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"}
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)")


class _Status(NamedTuple):
    st_size: int


@dataclass(frozen=True)
class UrlPath:
    """A file or folder by URL, with those methods of `pathlib.Path` that checkpoints need.

    fs: the file system. path: in it, without the protocol.
    """

    fs: fsspec.AbstractFileSystem
    path: str
    # one range, of a folder and all that is in it
    _ranges: dict[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.fs.unstrip_protocol(self.path)

    def __truediv__(self, name: str) -> "UrlPath":
        return UrlPath(self.fs, f"{self.path}/{name}", self._ranges)

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> "UrlPath":
        return UrlPath(self.fs, self.path.rpartition("/")[0], self._ranges)

    def is_file(self) -> bool:
        return self.fs.isfile(self.path)

    def is_dir(self) -> bool:
        return self.fs.isdir(self.path)

    def stat(self) -> _Status:
        """The size; raises FileNotFoundError."""
        return _Status(self.fs.info(self.path)["size"])

    def iterdir(self) -> Iterator["UrlPath"]:
        """Yields what the store lists now, not what it listed before; nothing where there is no
        folder."""
        self.fs.invalidate_cache()
        try:
            names = self.fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return
        for name in sorted(names):
            if name.rstrip("/") != self.path:  # some stores list the folder itself
                yield UrlPath(self.fs, name.rstrip("/"), self._ranges)

    def mkdir(self) -> None:
        """Makes the folder and its parents where the store has folders; never a bucket."""
        protocols = self.fs.protocol if isinstance(self.fs.protocol, tuple) else (self.fs.protocol,)
        if not _BUCKETS.intersection(protocols):
            self.fs.makedirs(self.path, exist_ok=True)

    def open(self, mode: str = "rb") -> Any:
        return self.fs.open(self.path, mode)

    def read_bytes(self) -> bytes:
        return self.fs.cat_file(self.path)

    def write_bytes(self, data: bytes) -> None:
        self.fs.pipe_file(self.path, data)

    def unlink(self) -> None:
        self.fs.rm_file(self.path)

    def rmtree(self) -> None:
        """Deletes a folder and what the store has in it now, if it is there."""
        self.fs.invalidate_cache()
        if self.fs.exists(self.path):
            self.fs.rm(self.path, recursive=True)

    def read_range(self, begin: int, size: int, *, keep: bool = False) -> np.ndarray:
        """These bytes, by requests of 16 MiB at most. keep: until the next range, so that they are
        fetched once."""
        first, data = self._ranges.get(self.path, (0, np.empty(0, np.uint8)))
        if first <= begin and begin + size <= first + data.size:
            return data[begin - first : begin - first + size]
        del data
        self._ranges.clear()  # before the next one takes memory
        result = np.empty(size, np.uint8)
        for start in range(0, size, _BLOCK):
            end = min(start + _BLOCK, size)
            block = self.fs.cat_file(self.path, start=begin + start, end=begin + end)
            if len(block) != end - start:
                raise EOFError(
                    f"{self} ends at byte {begin + start + len(block):,}, expected "
                    f"{begin + size:,} or more"
                )
            result[start:end] = np.frombuffer(block, np.uint8)
        if keep:
            self._ranges[self.path] = begin, result
        return result


Place = Path | UrlPath


def place_of(path: "str | os.PathLike[str] | UrlPath") -> Place:
    """Returns a path, or what a URL says; `file://` is a path.

    Raises ImportError where fsspec needs another package for it, ValueError for a protocol that it
    does not know.
    """
    if isinstance(path, UrlPath):
        return path
    text = os.fspath(path)
    if _SCHEME.match(text):
        raise ValueError(f"expected a URL as a str, got {path!r}: a pathlib.Path joins its slashes")
    if "://" not in text:
        return Path(path)
    protocol = text.partition("://")[0]
    try:
        fs, inner = url_to_fs(text)
    except ImportError as error:
        raise ImportError(
            f"{text}: fsspec needs another package for {protocol}://: {error}; install it with pip"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{text}: {error}; fsspec.available_protocols() lists what it knows"
        ) from error
    return Path(inner) if isinstance(fs, LocalFileSystem) else UrlPath(fs, inner.rstrip("/"))


def bytes_at(path: Place, begin: int, size: int, *, keep: bool = False) -> np.ndarray:
    """Returns these bytes of a file: of a path mapped, so that its pages are released with the
    array, of a URL fetched, and kept as by `read_range`."""
    if isinstance(path, UrlPath):
        return path.read_range(begin, size, keep=keep)
    return np.memmap(path, mode="c", offset=begin, shape=(size,))  # writable, as torch requires
