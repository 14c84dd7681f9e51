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
from .step_saving import Written, numbers


class StepObjects:
    """A URL with one prefix a step, `STEP.MILLISECONDS`: two saves never write the same object. A `Storage` of
    `step_saving.py`."""

    def __init__(self, folder: UrlPath) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def begin(self, step: int, under_way: set[str]) -> str:
        lease.take(self.folder)
        committed = {place for places in self._committed().values() for place in places}
        for left in self.folder.iterdir():
            if numbers(left.name) and left.name not in committed | under_way:
                self._remove(left.name)
        place = f"{step}.{time.time_ns() // 1_000_000}"
        (self.folder / place).mkdir()
        return place

    def create(self, place: str, name: str) -> "ObjectWritten":
        return ObjectWritten(self.folder / place / name)

    def end_part(self, place: str) -> None:
        """Nothing: an object that is closed is safe."""

    def read(self, place: str, name: str) -> bytes | None:
        try:
            return (self.folder / place / name).read_bytes()
        except FileNotFoundError:
            return None

    def commit(self, place: str, step: int, text: str, parts: list[str]) -> str:
        for name in parts:
            self.folder.fs.rm_file((self.folder / place / name).path)
        lease.check(self.folder)
        self.folder.fs.pipe_file((self.folder / place / manifest.NAME).path, text.encode())
        return place

    def path(self, place: str) -> UrlPath:
        return self.folder / place

    def discard(self, place: str) -> None:
        with contextlib.suppress(OSError):  # the error that ended the save is raised; the next one removes what is left
            self._remove(place)

    def _remove(self, place: str) -> None:
        """Deletes a place, its manifest first: what is deleted half is no step any more."""
        folder = self.folder / place
        if (folder / manifest.NAME).is_file():
            folder.fs.rm_file((folder / manifest.NAME).path)
        self.folder.fs.invalidate_cache()
        if folder.fs.exists(folder.path):
            folder.fs.rm(folder.path, recursive=True)

    def _committed(self) -> dict[int, list[str]]:
        """The names of the committed steps, each with its copies from the oldest to the newest."""
        fs = self.folder.fs
        fs.invalidate_cache()
        found: dict[int, list[tuple[int, str]]] = {}
        for file in fs.glob(f"{self.folder.path}/*/{manifest.NAME}"):
            name = file.split("/")[-2]
            step_and_copy = numbers(name)
            if step_and_copy:
                found.setdefault(step_and_copy[0], []).append((step_and_copy[1], name))
        return {step: [name for _, name in sorted(found[step])] for step in sorted(found)}

    def steps(self) -> dict[int, UrlPath]:
        return {step: self.folder / names[-1] for step, names in self._committed().items()}

    def delete_old(self, step: int, keep: int | None) -> None:
        copies = self._committed()
        old = [name for names in copies.values() for name in names[:-1]]
        if keep is not None:
            others = [names[-1] for number, names in copies.items() if number != step]
            others.sort(key=lambda name: numbers(name)[1])  # type: ignore[index]  # a committed step has numbers
            old += others[: max(len(others) - keep + 1, 0)]
        for name in old:
            self._remove(name)


class ObjectWritten(Written):
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
