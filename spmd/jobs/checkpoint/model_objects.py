"""A model's safetensors files in an object store, by URL: each process writes its shards as an object of its own, of
which the files are then joined block by block."""

import contextlib
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from .safetensors_layout import INDEX, MODEL_FILE, FileTensor, ModelStorage
from .step_objects import ObjectWritten
from .step_saving import Description, NewFile, ShardBytes, write_part

_BLOCK = 1 << 24  # bytes, about, of the rows that are joined at once


class ModelObjects(ModelStorage):
    """Files by URL; an object is there as a whole or not at all."""

    def begin(self) -> None:
        self._saving.rmtree()
        self._saving.mkdir()

    def create(self, place: str, name: str) -> NewFile:
        return ObjectWritten(self._saving / name)

    def end_part(self, place: str) -> None:
        """Nothing: an object that is closed is safe."""

    def write_part(self, index: int, shards: Iterable[ShardBytes]) -> None:
        tensors: dict[str, dict[str, Any]] = {tensor.name: {} for file in self._files for tensor in file.tensors}
        write_part(self, "", index, shards, Description(tensors, {}, {}))

    def make_room(self) -> None:
        """Removes earlier files, of which several cannot be replaced at one moment: never some of each."""
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

    def _join(self, tensor: FileTensor, shards: list[dict[str, Any]], written: ObjectWritten) -> None:
        """Writes a tensor's bytes, some rows of the first dim at a time."""
        shape = tensor.shape or (1,)
        row = math.prod(shape[1:]) * tensor.itemsize
        many = max(1, _BLOCK // max(row, 1))
        for begin in range(0, shape[0] if tensor.nbytes else 0, many):
            end = min(begin + many, shape[0])
            result = np.empty((end - begin, *shape[1:], tensor.itemsize), np.uint8)
            for shard in shards:
                at, size = shard["at"] or [0], shard["shape"] or [1]
                first, last = max(begin, at[0]), min(end, at[0] + size[0])
                if first < last:
                    wide = math.prod(size[1:]) * tensor.itemsize
                    offset = shard["offset"] + (first - at[0]) * wide
                    data = (self._saving / shard["file"]).read_range(offset, (last - first) * wide)
                    columns = [slice(a, a + n) for a, n in zip(at[1:], size[1:], strict=True)]
                    result[(slice(first - begin, last - begin), *columns)] = data.reshape(last - first, *size[1:], -1)
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
        with contextlib.suppress(OSError):  # the error that ended the save is raised; the next one removes what is left
            self._saving.rmtree()
