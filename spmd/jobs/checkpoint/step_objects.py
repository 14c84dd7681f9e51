"""The steps of a job in an object store, by URL: a step is there when its manifest is, which is written last.

An object is there as a whole or not at all; there is no rename. A folder without a manifest is no step.
"""

import contextlib
import time
from typing import Any

from fsspec.spec import AbstractBufferedFile

from . import lease, manifest
from .all_or_none import SaveError
from .places import UrlPath
from .step_saving import NewFile, Steps, numbers


class StepObjects(Steps):
    """A URL with one prefix a step, `STEP.MILLISECONDS`: two saves never write the same object."""

    folder: UrlPath

    def begin(self, step: int, under_way: set[str]) -> str:
        lease.take(self.folder)
        kept = under_way.union(self.committed_names())
        for unfinished in self.folder.iterdir():
            if numbers(unfinished.name) and unfinished.name not in kept:
                self.remove(unfinished.name)
        name = f"{step}.{time.time_ns() // 1_000_000}"
        (self.folder / name).mkdir()
        return name

    def create(self, place: str, name: str) -> "ObjectWritten":
        return ObjectWritten(self.folder / place / name)

    def end_part(self, place: str) -> None:
        """Nothing: an object that is closed is safe."""

    def commit(self, place: str, step: int, text: str, parts: list[str]) -> str:
        for name in parts:
            (self.folder / place / name).unlink()
        lease.check(self.folder)
        (self.folder / place / manifest.NAME).write_bytes(text.encode())
        return place

    def discard(self, place: str) -> None:
        with contextlib.suppress(OSError):  # the error that ended the save is raised; the next one removes what is left
            self.remove(place)

    def remove(self, place: str) -> None:
        """Deletes a place, its manifest first: what is deleted half is no step any more."""
        folder = self.folder / place
        if (folder / manifest.NAME).is_file():
            (folder / manifest.NAME).unlink()
        folder.rmtree()

    def committed_names(self) -> list[str]:
        self.folder.fs.invalidate_cache()
        return [file.split("/")[-2] for file in self.folder.fs.glob(f"{self.folder.path}/*/{manifest.NAME}")]

    def saved_at(self, place: str) -> int:
        return (numbers(place) or (0, 0))[1]


class ObjectWritten(NewFile):
    """A new object, which is there when the context ends without an error."""

    def __init__(self, path: UrlPath) -> None:
        super().__init__()
        self._path = path

    def __enter__(self) -> "ObjectWritten":
        self._file = self._path.open("wb")
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self._file.close()
            return
        if hasattr(self._file, "discard"):
            self._file.discard()
        if isinstance(self._file, AbstractBufferedFile):
            self._file.closed = True  # else its end would upload what there is

    def write(self, data: memoryview) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise SaveError(f"{error} at byte {self.size:,} of {self._path}") from error
        self.size += data.nbytes
