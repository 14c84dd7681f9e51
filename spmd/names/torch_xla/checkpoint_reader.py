"""A reader of `torch.distributed.checkpoint`'s folders that runs no code of theirs and stays in the
folder."""

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, metadata
from torch.futures import Future

from ...jobs.checkpoint.files import check_archive
from ...jobs.launching.sealed_objects import Reader

_LARGEST = 1 << 30  # bytes of metadata


class FolderReader(FileSystemReader):
    """A `storage_reader=` for `torch.distributed.checkpoint.load`, of folders from elsewhere.

    torch's own unpickles the folder's metadata, which may run any code. This one makes torch's
    classes of metadata alone, reads no file outside of the folder, and names the file that is
    damaged.

    Raises ValueError (inside of torch's CheckpointException). Source:
    `torch.distributed.checkpoint.FileSystemReader`.

    >>> import tempfile, warnings, torch
    >>> import torch.distributed.checkpoint as dcp
    >>> from spmd.torch_xla.distributed_checkpoint import FolderReader, SPMDLoadPlanner
    >>> state = {"x": torch.zeros(2)}
    >>> with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
    ...     saved = dcp.save({"x": torch.ones(2)}, checkpoint_id=folder)
    ...     dcp.load(state, storage_reader=FolderReader(folder), planner=SPMDLoadPlanner())
    >>> state["x"]
    tensor([1., 1.])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)

    def read_metadata(self) -> Any:
        """Called by torch: the contents of `.metadata`."""
        file = Path(self.path) / ".metadata"
        if not file.is_file():
            raise FileNotFoundError(
                f"FolderReader: expected a folder of torch.distributed.checkpoint, {file} is "
                "missing"
            )
        try:
            if file.stat().st_size > _LARGEST:
                raise ValueError(f"expected at most {_LARGEST:,} bytes")
            contents = Reader(io.BytesIO(file.read_bytes())).load()
            self._check(contents)
        except Exception as error:  # a changed pickle fails anywhere
            raise ValueError(
                f"FolderReader: {file} is damaged: {type(error).__name__}: {error}"
            ) from error
        contents.storage_meta = metadata.StorageMeta(checkpoint_id=self.path, load_id=self.load_id)
        return contents

    def _check(self, contents: Any) -> None:
        """Raises ValueError for metadata whose parts do not fit together, or that name files
        outside of the folder."""
        if not isinstance(contents, metadata.Metadata) or not isinstance(
            contents.storage_data, dict
        ):
            raise ValueError(f"expected torch's Metadata, got {type(contents).__name__}")
        for index, info in contents.storage_data.items():
            name = info.relative_path
            if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
                raise ValueError(f"{index.fqn!r} would be in {name!r}, outside of the folder")
            size = (
                (Path(self.path) / name).stat().st_size
                if (Path(self.path) / name).is_file()
                else None
            )
            end = info.offset + info.length
            if size is None or not 0 <= info.offset <= end <= size:
                raise ValueError(
                    f"{index.fqn!r} is to end at byte {end:,} of {name}, which has {size} bytes"
                )
        for name, entry in contents.state_dict_metadata.items():
            if isinstance(entry, metadata.TensorStorageMetadata):
                self._check_chunks(name, entry, contents.storage_data)

    def _check_chunks(self, name: str, tensor: Any, storage: Any) -> None:
        count = 0
        for chunk in tensor.chunks:
            bounds = [*zip(chunk.offsets, chunk.sizes, tensor.size, strict=True)]
            if not all(
                start >= 0 and size >= 0 and start + size <= dim for start, size, dim in bounds
            ):
                raise ValueError(
                    f"a shard of {name!r} at {[*chunk.offsets]} of {[*chunk.sizes]} is not in "
                    f"{[*tensor.size]}"
                )
            if metadata.MetadataIndex(name, chunk.offsets) not in storage:
                raise ValueError(f"a shard of {name!r} at {[*chunk.offsets]} is in no file")
            count += torch.Size(chunk.sizes).numel()
        if count != torch.Size(tensor.size).numel():
            raise ValueError(
                f"the shards of {name!r} have {count:,} elements, not those of shape "
                f"{[*tensor.size]}"
            )

    def read_data(self, plan: Any, planner: Any) -> "Future[None]":
        """Called by torch: reads what a plan lists."""
        for item in plan.items:
            info = self.storage_data[item.storage_index]
            file = Path(self.path) / info.relative_path
            try:
                with file.open("rb") as opened:
                    opened.seek(info.offset)
                    check_archive(io.BytesIO(opened.read(info.length)), with_data=True)
                super().read_data(replace(plan, items=[item]), planner)
            except Exception as error:  # torch's reader has no class of errors of its own
                why = next(iter(str(error).splitlines()), "")[:200]
                name = item.storage_index.fqn
                raise ValueError(
                    f"FolderReader: {file} is damaged at {name!r}: {type(error).__name__}: {why}"
                ) from error
        done: Future[None] = Future()
        done.set_result(None)
        return done
