"""The contents of a checkpoint's files: names, offsets and other metadata; a tensor's bytes are
read on request."""

import json
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

import torch

from ...core import dense_meta
from . import manifest
from .places import Place, UrlPath, bytes_at, place_of
from .step_saving import numbers

# In the safetensors library's order in a file, from the widest to the narrowest, so that each is
# aligned.
SAFETENSORS = {
    "U64": torch.uint64, "I64": torch.int64, "F64": torch.float64, "C64": torch.complex64,
    "F32": torch.float32, "U32": torch.uint32, "I32": torch.int32, "BF16": torch.bfloat16,
    "F16": torch.float16, "U16": torch.uint16, "I16": torch.int16, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_LARGEST = 100_000_000  # bytes of a header, as in the safetensors library, or of an index
# Of a folder, in transformers' order.
_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file.

    offset: of the first element in the file, in bytes. strides: in elements, as in torch.
    """

    path: Place
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def read(self, indices: tuple[slice, ...] | None = None) -> torch.Tensor:
        """Reads these elements (None: all) into a new CPU tensor; only the pages that hold them are
        read.

        Of a URL it fetches whole rows of the first dim, and keeps them until it fetches others of
        the file, so that shards of another dim fetch them once.
        """
        indices = tuple(slice(0, dim) for dim in self.shape) if indices is None else indices
        shape = [index.stop - index.start for index in indices]
        if 0 in shape:
            return torch.empty(shape, dtype=self.dtype, device="cpu")
        outer = indices
        if (
            isinstance(self.path, UrlPath)
            and self.strides == dense_meta(self.shape, self.dtype).strides
        ):
            outer = (*indices[:1], *(slice(0, dim) for dim in self.shape[1:]))
        first = sum(index.start * stride for index, stride in zip(outer, self.strides, strict=True))
        last = sum(
            (index.stop - 1) * stride for index, stride in zip(outer, self.strides, strict=True)
        )
        begin = (
            sum(index.start * stride for index, stride in zip(indices, self.strides, strict=True))
            - first
        )
        size = self.dtype.itemsize
        # Mapped for this read only: its pages are released with the map.
        data = bytes_at(self.path, self.offset + first * size, (last - first + 1) * size, keep=True)
        elements = torch.from_numpy(data).view(self.dtype).as_strided(shape, self.strides, begin)
        return elements.clone(memory_format=torch.contiguous_format)


Contents = dict[str, Any]  # a `Stored` for each tensor; other values unchanged


def open_checkpoint(path: str | os.PathLike[str] | UrlPath, key: str | None = None) -> Contents:
    """The contents of a file or folder, by name.

    A folder has `model.safetensors.index.json` or `pytorch_model.bin.index.json`, or a file
    `model.safetensors` or `pytorch_model.bin`, or safetensors files of any name. key: of the state
    dict in a torch checkpoint.
    """
    path = place_of(path)
    if path.is_dir():
        return _folder(path, key)
    if not path.is_file():
        raise FileNotFoundError(
            f"load_checkpoint: expected a file or folder, but there is none at {path}"
        )
    return _indexed(path, key) if path.name.endswith(".index.json") else _file(path, key)


def _file(path: Place, key: str | None) -> Contents:
    with path.open("rb") as file:
        is_safetensors = file.read(9)[8:] == b"{"
    return _safetensors(path) if is_safetensors else _torch_file(path, key)


def _folder(path: Place, key: str | None) -> Contents:
    for name in _NAMES:
        if (path / name).is_file():
            return open_checkpoint(path / name, key)
    # no pipes
    tables = (file for file in path.iterdir() if file.suffix == ".safetensors" and file.is_file())
    files = sorted(tables, key=lambda file: file.name)
    if not files:
        listed = ", ".join(sorted(file.name for file in path.iterdir())[:8]) or "nothing"
        hint = (
            "; torch.distributed.checkpoint.load reads it"
            if (path / ".metadata").is_file()
            else _by_manager(path)
        )
        raise FileNotFoundError(
            f"load_checkpoint: expected {', '.join(_NAMES)} or *.safetensors in {path}, found "
            f"{listed}{hint}"
        )
    contents: Contents = {}
    for file in files:
        twice = sorted(contents.keys() & (more := _safetensors(file)).keys())
        if twice:
            raise ValueError(
                f"load_checkpoint: {path} has {twice[0]!r} in several files and no index that "
                "names one of them; pass the file"
            )
        contents |= more
    return contents


def _by_manager(path: Place) -> str:
    """The call that loads what `CheckpointManager` has saved in a folder, or in the one above; else
    empty."""
    path = path.absolute() if isinstance(path, Path) else path
    step, has_steps = _step_of(path), path.is_dir() and any(map(_step_of, path.iterdir()))
    if step is None and not has_steps:
        return ""
    kind, folder = (
        ("a step", path.parent) if step is not None else ("the folder of the steps", path)
    )
    which = "" if step is None else f", step={step[0]}"
    return (
        f'; it is {kind} of a CheckpointManager: CheckpointManager("{folder}").restore({{"model": '
        f"model}}{which})"
    )


def _step_of(path: Place) -> tuple[int, int] | None:
    return numbers(path.name) if (path / manifest.NAME).is_file() else None


def _indexed(path: Place, key: str | None) -> Contents:
    """The tensors that an index names, each from the file it names."""
    places: dict[str, str] = read_index(path)["weight_map"]
    files = {name: _file(_inside(path, name), key) for name in sorted({*places.values()})}
    lost = [name for name, file in places.items() if name not in files[file]]
    if lost:
        raise ValueError(
            f"load_checkpoint: {path} has {lost[0]!r} in {places[lost[0]]}, which does not "
            "contain it"
        )
    return {name: files[file][name] for name, file in places.items()}


def read_index(path: Place) -> dict[str, Any]:
    """The table of an index, with its map of names to names of files; raises ValueError."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        table: dict[str, Any] = json.loads(path.read_bytes())
        if not all(isinstance(file_name, str) for file_name in {**table["weight_map"]}.values()):
            raise TypeError("a file's name is not text")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _cut_short(path, f"it has no table of names and files ({error!r})") from error
    return table


def _inside(index: Place, name: str) -> Place:
    """The file that an index names, which is in the folder of the index."""
    file = PurePosixPath(name)
    if file.is_absolute() or ".." in file.parts or "\0" in name or name.endswith(".index.json"):
        raise ValueError(
            f"load_checkpoint: {index} names the file {name!r}: expected a file of tensors in the "
            "index's folder; files outside of it are not read"
        )
    if not (index.parent / name).is_file():
        raise FileNotFoundError(
            f"load_checkpoint: {index} names {name!r}, and there is no such file; fetch it, too"
        )
    return index.parent / name


def _safetensors(path: Place) -> Contents:
    """The header of a safetensors file: eight bytes of its length, and a table in JSON."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LARGEST):
            raise _cut_short(path, f"its header would have {length:,} bytes")
        try:
            table = json.loads(file.read(length), object_pairs_hook=_without_twice)
        except (ValueError, RecursionError) as error:
            raise _cut_short(
                path, f"its header is not JSON of {length:,} bytes ({error})"
            ) from error
    table.pop("__metadata__", None)
    tensors = {name: _entry(path, name, entry, 8 + length) for name, entry in table.items()}
    _check_contiguous(path, tensors, 8 + length)
    return tensors


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of JSON, of which no key is there twice: other readers might take the other value."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name is there twice")
    return result


def _entry(path: Place, name: str, entry: Any, begin: int) -> Stored:
    facts: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = map(facts.get, ("dtype", "shape", "data_offsets"))
    if not (
        isinstance(dtype, str) and _are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2
    ):
        raise _cut_short(path, f"{name!r} has no dtype, shape and offsets, but {str(entry)[:80]}")
    if dtype not in SAFETENSORS:
        raise NotImplementedError(
            f"load_checkpoint: {name!r} in {path} has the dtype {dtype}, which torch lacks; known "
            f"are {', '.join(SAFETENSORS)}"
        )
    size = math.prod(shape) * SAFETENSORS[dtype].itemsize
    if offsets[1] - offsets[0] != size:
        raise _cut_short(
            path,
            f"{name!r} of shape {shape} and dtype {dtype} takes {size:,} bytes, and is at "
            f"{offsets}",
        )
    meta = dense_meta(tuple(shape), SAFETENSORS[dtype])
    return Stored(path, begin + offsets[0], meta.dtype, meta.shape, meta.strides)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        type(value) is int and 0 <= value < 1 << 62 for value in values
    )


def _check_contiguous(path: Place, tensors: Mapping[str, Stored], begin: int) -> None:
    """Raises where tensors share bytes or leave some out, as the format does not allow."""
    for name, stored in sorted(
        tensors.items(), key=lambda item: (item[1].offset, math.prod(item[1].shape))
    ):
        if stored.offset != begin:
            raise _cut_short(
                path,
                f"{name!r} begins at byte {stored.offset:,}, and the one before ends at {begin:,}",
            )
        begin += math.prod(stored.shape) * stored.dtype.itemsize
    if begin != path.stat().st_size:
        raise _cut_short(path, f"its header describes {begin:,} bytes")


def _torch_file(path: Place, key: str | None) -> Contents:
    """The contents of a file of `torch.save`: with map location meta, torch reads the offsets and
    not the bytes."""
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            raise ValueError(
                f"load_checkpoint: {path} is neither a safetensors file nor a zip file of "
                "torch.save (torch 1.6 or later), of which parts can be read; load it with "
                f"torch.load and save it again{_by_manager(path.parent)}"
            )
    try:
        with path.open("rb") as file:
            ends = check_archive(file)
            file.seek(0)
            loaded = torch.load(file, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"load_checkpoint: {path} is damaged, or has objects other than tensors, of which "
            f"code would run: {_first_line(error)}. If you trust it, torch.load(path, "
            "weights_only=False) reads it, and torch.save writes its tensors again"
        ) from error
    except Exception as error:  # torch's reader has no class of errors of its own
        raise _cut_short(
            path, f"torch cannot read it ({type(error).__name__}: {_first_line(error)})"
        ) from error
    if key is not None:
        if not isinstance(loaded, Mapping) or key not in loaded:
            raise ValueError(f"load_checkpoint: {path} has no {key!r}; it has {_shown(loaded)}")
        loaded = loaded[key]
    inner = (
        [name for name, value in loaded.items() if _has_tensors(value)]
        if isinstance(loaded, Mapping)
        else []
    )
    if inner or not isinstance(loaded, Mapping):
        say = f"; choose one of them, as by key={inner[0]!r}" if inner else ""
        raise ValueError(
            f"load_checkpoint: expected a state dict in {path}, got {_shown(loaded)}{say}"
        )
    if not all(isinstance(name, str) for name in loaded):
        raise ValueError(
            f"load_checkpoint: expected names in the state dict of {path}, got {_shown(loaded)}"
        )
    return {
        name: _stored(path, name, value, ends) if isinstance(value, torch.Tensor) else value
        for name, value in loaded.items()
    }


def _cut_short(path: Place, why: str) -> ValueError:
    size = path.stat().st_size
    return ValueError(
        f"load_checkpoint: {path}, of {size:,} bytes, is cut short or damaged: {why}; fetch it "
        "again"
    )


def check_archive(file: Any, *, with_data: bool = False) -> list[int]:
    """Compares the checksums of a file of torch.save, which torch itself does not; raises
    zipfile.BadZipFile.

    with_data: those of the tensors' bytes, too. Returns where its records begin, and where the last
    one ends.
    """
    with zipfile.ZipFile(file) as archive:
        for record in archive.infolist():
            if (
                record.compress_type != zipfile.ZIP_STORED
                or record.file_size != record.compress_size
            ):
                raise zipfile.BadZipFile(f"{record.filename} is compressed, as torch writes none")
            if record.external_attr:  # torch reads nothing of a folder, into memory without values
                raise zipfile.BadZipFile(f"{record.filename} has attributes, as torch writes none")
            with archive.open(record) as opened:  # compares the two places that name a record
                while (with_data or "/data/" not in record.filename) and opened.read(1 << 20):
                    pass
        return [*sorted(record.header_offset for record in archive.infolist()), archive.start_dir]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no reason given")[:200]


def _stored(path: Place, name: str, value: torch.Tensor, ends: list[int]) -> Stored:
    """The place of a tensor. ends: where the records of the zip file begin, and the last one
    ends."""
    if value.layout is not torch.strided:
        raise _cut_short(path, f"{name!r} is {value.layout}, expected a dense tensor")
    offset, size = value.untyped_storage()._checkpoint_offset, value.untyped_storage().nbytes()
    begin = int(value.storage_offset()) * value.element_size()
    last = sum((dim - 1) * stride for dim, stride in zip(value.shape, value.stride(), strict=True))
    is_inside = begin >= 0 and begin + (last + 1) * value.element_size() <= size
    after = next((end for end in ends if offset is not None and end > offset), 0)
    if value.numel() and (offset is None or not is_inside or offset + size > after):
        raise _cut_short(path, f"the bytes of {name!r} are outside of its part of the file")
    return Stored(path, (offset or 0) + begin, value.dtype, tuple(value.shape), value.stride())


def _has_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and any(
        isinstance(entry, torch.Tensor) for entry in value.values()
    )


def _shown(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"a {type(value).__name__}"
    return "a dict of " + ", ".join(repr(name) for name in [*value][:8])
