"""A model's safetensors files in a folder of a disk: each process writes its shards at their offsets, the first one
renames the files when all of them are on the disk."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .all_or_none import SaveError
from .safetensors_layout import INDEX, MODEL_FILE, File, Placed
from .step_folder import LOCK, SyncedFile, lock, named_error, sync_names, unlock
from .step_saving import Shard

_BEFORE = "before-"


class ModelFolder:
    """Files that are written in the folder `.saving-NAME` and renamed into `folder`. index: of several, else None.

    A `ModelStorage` of `model_saving.py`.
    """

    def __init__(self, folder: Path, files: list[File], index: bytes | None) -> None:
        self.folder, self._files, self._index = folder, files, index
        self._saving = folder / f".saving-{'model' if MODEL_FILE.fullmatch(files[0].name) else files[0].name}"

    def begin(self) -> None:
        self._saving.mkdir(parents=True, exist_ok=True)
        lock(self._saving)
        try:  # before this point the place may be another job's
            for left in self._saving.iterdir():
                if left.name != LOCK:
                    left.unlink()
            for file in self._files:
                with _Opened(self._saving / file.name, os.O_CREAT | os.O_EXCL) as opened:
                    opened.write(memoryview(file.header), 0)
                    opened.end_at(file.size)
        except BaseException:
            self.discard()
            raise

    def write_part(self, index: int, shards: Iterable[Shard]) -> None:
        opened = {}
        places = {tensor.name: (file.name, tensor) for file in self._files for tensor in file.tensors}
        try:
            for shard in shards:
                name, tensor = places[shard.name]
                if name not in opened:
                    opened[name] = _Opened(self._saving / name, 0)
                for place, part in runs(tensor, shard):
                    opened[name].write(part, place)
                shard.data.release()  # before the next one is read
            for one in opened.values():
                one.sync()
        finally:
            for one in opened.values():
                one.close()

    def make_room(self) -> None:
        """Nothing: files are renamed over earlier ones."""

    def join(self, index: int, count: int) -> None:
        """Nothing: all have written into the same files."""

    def commit(self) -> None:
        """At each moment the folder has the old model or the new one: a single file by its name, several by what their
        index names."""
        if self._index is not None:
            self._keep_before()
            with SyncedFile(self._saving / INDEX) as written:
                written.append(memoryview(self._index))
        sync_names(self._saving)
        for file in self._files:
            os.rename(self._saving / file.name, self.folder / file.name)
        sync_names(self.folder)
        if self._index is not None:
            os.rename(self._saving / INDEX, self.folder / INDEX)
            sync_names(self.folder)

    def _keep_before(self) -> None:
        """Gives the files of an earlier save whose names are to be replaced second names, which the index then says."""
        index = self.folder / INDEX
        try:
            before: dict[str, Any] = json.loads(index.read_bytes())
            places = dict(before["weight_map"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # there is no model that could be read
            return
        taken = {file.name for file in self._files if (self.folder / file.name).is_file()}
        for name in sorted(taken & {*places.values()}):
            (self.folder / f"{_BEFORE}{name}").unlink(missing_ok=True)
            try:
                os.link(self.folder / name, self.folder / f"{_BEFORE}{name}")
            except OSError as error:
                raise SaveError(
                    f"{self.folder / name} is there already, and gets no second name while it is replaced "
                    f"({error.strerror}): delete the old model first, or save in another folder"
                ) from error
        before["weight_map"] = {
            name: f"{_BEFORE}{file}" if file in taken and not file.startswith(_BEFORE) else file
            for name, file in places.items()
        }
        with SyncedFile(self._saving / f"{_BEFORE}{INDEX}") as written:
            written.append(memoryview(json.dumps(before).encode()))
        sync_names(self.folder)
        os.rename(self._saving / f"{_BEFORE}{INDEX}", index)
        sync_names(self.folder)

    def clean(self) -> None:
        names = {file.name for file in self._files}
        if all(map(MODEL_FILE.fullmatch, names)):
            if self._index is None:
                (self.folder / INDEX).unlink(missing_ok=True)
                sync_names(self.folder)
            for path in self.folder.iterdir():
                if path.name not in names and MODEL_FILE.fullmatch(path.name.removeprefix(_BEFORE)):
                    path.unlink()
        shutil.rmtree(self._saving)
        unlock(self._saving)

    def discard(self) -> None:
        shutil.rmtree(self._saving, ignore_errors=True)  # the next save removes what is left
        unlock(self._saving)


def runs(tensor: Placed, shard: Shard) -> Iterator[tuple[int, memoryview]]:
    """Yields the parts of a shard that are contiguous in the file, each with its offset."""
    split = max((dim for dim, size in enumerate(shard.shape) if size != tensor.shape[dim]), default=0)
    strides = [tensor.itemsize] * len(tensor.shape)  # in bytes
    for dim in range(len(tensor.shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * tensor.shape[dim + 1]
    begin = tensor.begin + sum(at * stride for at, stride in zip(shard.at, strides, strict=True))
    size = strides[split] * shard.shape[split] if shard.shape else tensor.itemsize
    outer = shard.shape[:split]
    for number in range(shard.data.nbytes // size if size else 0):
        place, rest = begin, number
        for dim in range(len(outer) - 1, -1, -1):
            rest, index = divmod(rest, outer[dim])
            place += index * strides[dim]
        yield place, shard.data[number * size : (number + 1) * size]


class _Opened:
    """A file that several processes write, each at other offsets."""

    def __init__(self, path: Path, flags: int) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o644)
        except FileNotFoundError as error:
            raise SaveError(
                f"{path} is not there: expected a folder that all processes share, as on a shared disk"
            ) from error

    def __enter__(self) -> "_Opened":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                self.sync()
        finally:
            self.close()

    def write(self, data: memoryview, place: int) -> None:
        while data.nbytes:
            count = named_error(lambda d=data, at=place: os.pwrite(self._descriptor, d, at), self._path, place)  # type: ignore[misc]
            place += count
            data = data[count:]

    def end_at(self, size: int) -> None:
        named_error(lambda: os.ftruncate(self._descriptor, size), self._path, size)

    def sync(self) -> None:
        named_error(lambda: os.fsync(self._descriptor), self._path, 0)

    def close(self) -> None:
        os.close(self._descriptor)
