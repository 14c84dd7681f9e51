"""A model's safetensors files in a folder of a disk: each process writes its shards at their
offsets, the first one renames the files when all of them are on the disk."""

import contextlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator

from .all_or_none import SaveError
from .files import read_index
from .safetensors_layout import INDEX, MODEL_FILE, FileTensor, ModelStorage
from .step_folder import LOCK, SyncedFile, lock, removed, sync_names, unlock
from .step_saving import ShardBytes

_BEFORE = "before-"


class ModelFolder(ModelStorage):
    """Files that are written in the folder `.saving-NAME` and renamed into `folder`."""

    def begin(self) -> None:
        if self._saving.is_symlink() or not self._saving.is_dir():
            removed(self._saving)
        self._saving.mkdir(parents=True, exist_ok=True)
        lock(self._saving)
        try:  # before this point the place may be another job's
            for file_left in self._saving.iterdir():
                if file_left.name != LOCK:
                    removed(file_left)
            for file in self._files:
                with SyncedFile(self._saving / file.name) as opened:
                    opened.write(memoryview(file.header))
                    opened.end_at(file.size)
        except BaseException:
            self.discard()
            raise

    def write_part(self, index: int, shards: Iterable[ShardBytes]) -> None:
        opened: dict[str, SyncedFile] = {}
        places = {
            tensor.name: (file.name, tensor) for file in self._files for tensor in file.tensors
        }
        with contextlib.ExitStack() as stack:
            for shard in shards:
                name, tensor = places[shard.name]
                if name not in opened:
                    opened[name] = SyncedFile(self._saving / name, is_new=False)
                    stack.enter_context(opened[name])
                for begin, part in runs(tensor, shard):
                    opened[name].write_at(part, begin)
                shard.data.release()  # before the next one is read

    def commit(self) -> None:
        """At each moment the folder has the old model or the new one: a single file by its name,
        several by what their index names."""
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
        """Gives the files of an earlier save whose names are to be replaced second names, which the
        index then says."""
        index = self.folder / INDEX
        try:
            old_index = read_index(index) if index.is_file() else {}
        except ValueError:
            old_index = {}
        places: dict[str, str] = old_index.get("weight_map", {})
        if not places:  # there is no model that could be read
            return
        replaced_files = {file.name for file in self._files if (self.folder / file.name).is_file()}
        for name in sorted(replaced_files & {*places.values()}):
            (self.folder / f"{_BEFORE}{name}").unlink(missing_ok=True)
            try:
                os.link(self.folder / name, self.folder / f"{_BEFORE}{name}")
            except OSError as error:
                raise SaveError(
                    f"{self.folder / name} exists, and no hard link can keep it while it is "
                    f"replaced ({error.strerror}): delete the old model first, or save in "
                    "another folder"
                ) from error
        old_index["weight_map"] = {
            name: f"{_BEFORE}{file}"
            if file in replaced_files and not file.startswith(_BEFORE)
            else file
            for name, file in places.items()
        }
        with SyncedFile(self._saving / f"{_BEFORE}{INDEX}") as written:
            written.append(memoryview(json.dumps(old_index).encode()))
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


def runs(tensor: FileTensor, shard: ShardBytes) -> Iterator[tuple[int, memoryview]]:
    """Yields the parts of a shard that are contiguous in the file, each with its offset."""
    split = max(
        (dim for dim, size in enumerate(shard.shape) if size != tensor.shape[dim]), default=0
    )
    # in bytes
    strides = [
        math.prod(tensor.shape[dim + 1 :]) * tensor.itemsize for dim in range(len(tensor.shape))
    ]
    begin = tensor.begin + sum(
        position * stride for position, stride in zip(shard.starts, strides, strict=True)
    )
    size = strides[split] * shard.shape[split] if shard.shape else tensor.itemsize
    outer = itertools.product(*map(range, shard.shape[:split] if size else (0,)))
    for number, index in enumerate(outer):
        offset = begin + sum(
            position * stride for position, stride in zip(index, strides, strict=False)
        )
        yield offset, shard.data[number * size : (number + 1) * size]
