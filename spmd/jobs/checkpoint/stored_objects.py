"""Checkpoints in an object store, by URL: the steps of a job, and the safetensors files of a model.

An object is there as a whole or not at all; there is no rename. A step is there when its manifest
is, which is written last. Of a model each process writes its shards as an object of its own, of
which the files are joined block by block.
"""

import contextlib
import json
import math
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from fsspec.spec import AbstractBufferedFile

from . import lease, manifest
from .all_or_none import SaveError
from .places import UrlPath
from .safetensors_layout import INDEX, MODEL_FILE, FileTensor, ModelStorage
from .step_reader import overlaps
from .step_saving import Description, NewFile, ShardBytes, Steps, numbers, write_part


class ObjectWritten(NewFile):
    """A new object, which is there when the context ends without an error."""

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


class StepObjects(Steps):
    """A URL with one prefix a step, `STEP.NUMBER`: two saves never write the same object. The
    numbers are milliseconds, and increase from save to save also under a clock that goes back."""

    folder: UrlPath
    new_file = ObjectWritten

    def begin(self, step: int, under_way: set[str]) -> str:
        lease.take(self.folder)
        used_names = under_way.union(self.committed_names())
        present = [path.name for path in self.folder.iterdir() if numbers(path.name)]
        for unfinished in {*present} - used_names:
            self.remove(unfinished)
        stamps = [
            time.time_ns() // 10**6,
            *(self.saved_at(folder_name) + 1 for folder_name in present),
        ]
        name = f"{step}.{max(stamps)}"
        (self.folder / name).mkdir()
        return name

    def commit(self, folder_name: str, step: int, text: str, parts: list[str]) -> str:
        for name in parts:
            (self.folder / folder_name / name).unlink()
        lease.check(self.folder)
        (self.folder / folder_name / manifest.NAME).write_bytes(text.encode())
        return folder_name

    def discard(self, folder_name: str) -> None:
        # the error that ended the save is raised; the next one removes what is left
        with contextlib.suppress(OSError):
            self.remove(folder_name)

    def remove(self, folder_name: str) -> None:
        """Deletes a folder, its manifest first: what is deleted half is no step any more."""
        folder = self.folder / folder_name
        if (folder / manifest.NAME).is_file():
            (folder / manifest.NAME).unlink()
        folder.rmtree()

    def committed_names(self) -> list[str]:
        self.folder.fs.invalidate_cache()
        return [
            file.split("/")[-2]
            for file in self.folder.fs.glob(f"{self.folder.path}/*/{manifest.NAME}")
        ]

    def saved_at(self, folder_name: str) -> int:
        return (numbers(folder_name) or (0, 0))[1]


_BLOCK = 1 << 24  # bytes, about, of the rows that are joined at once


class ModelObjects(ModelStorage):
    """Files by URL; an object is there as a whole or not at all."""

    def begin(self) -> None:
        self._saving.rmtree()
        self._saving.mkdir()

    def write_part(self, index: int, shards: Iterable[ShardBytes]) -> None:
        tensors: dict[str, dict[str, Any]] = {
            tensor.name: {} for file in self._files for tensor in file.tensors
        }
        write_part(ObjectWritten, self._saving, index, shards, Description(tensors, {}, {}))

    def make_room(self) -> None:
        """Removes earlier files, of which several cannot be replaced at one moment: never some of
        each."""
        if self._index is not None:
            self._remove_old(set())

    def join(self, index: int, count: int) -> None:
        """Writes this process's share of the files, from the shards of all."""
        shards: dict[str, list[dict[str, Any]]] = {}
        for process in range(count):
            part = json.loads((self._saving / f"process-{process}.json").read_bytes())
            for name, tensor in part["tensors"].items():
                shards.setdefault(name, []).extend(tensor["shards"])
        for file in self._files[index::count]:
            with ObjectWritten(self.folder / file.name) as written:
                written.write(memoryview(file.header))
                for tensor in file.tensors:
                    self._join(tensor, shards.get(tensor.name, []), written)

    def _join(
        self, tensor: FileTensor, shards: list[dict[str, Any]], written: ObjectWritten
    ) -> None:
        """Writes a tensor's bytes, some rows of the first dim at a time."""
        shape = tensor.shape or (1,)  # a number is a row
        shards = [
            {**shard, "at": shard["at"] or [0], "shape": shard["shape"] or [1]} for shard in shards
        ]
        row = math.prod(shape[1:]) * tensor.itemsize
        many = max(1, _BLOCK // max(row, 1))
        columns = tuple(slice(0, dim) for dim in shape[1:])
        for begin in range(0, shape[0] if row else 0, many):
            rows = slice(begin, min(begin + many, shape[0]))
            result = np.empty((rows.stop - begin, *shape[1:], tensor.itemsize), np.uint8)
            for shard, source, target in overlaps(shards, (rows, *columns)):
                wide = math.prod(shard["shape"][1:]) * tensor.itemsize
                first, last = source[0].start * wide, source[0].stop * wide
                data = (self._saving / shard["file"]).read_range(
                    shard["offset"] + first, last - first
                )
                result[target] = data.reshape(-1, *shard["shape"][1:], tensor.itemsize)
            written.write(result.reshape(-1).data)

    def commit(self) -> None:
        if self._index is not None:
            (self.folder / INDEX).write_bytes(self._index)

    def clean(self) -> None:
        self._remove_old({file.name for file in self._files})
        self._saving.rmtree()

    def _remove_old(self, keep: set[str]) -> None:
        """Removes the files of an earlier save, its index first."""
        if not all(MODEL_FILE.fullmatch(file.name) for file in self._files):
            return
        if (self._index is None or not keep) and (self.folder / INDEX).is_file():
            (self.folder / INDEX).unlink()
        for path in self.folder.iterdir():
            if path.name not in keep and MODEL_FILE.fullmatch(path.name):
                path.unlink()

    def discard(self) -> None:
        # the error that ended the save is raised; the next one removes what is left
        with contextlib.suppress(OSError):
            self._saving.rmtree()
