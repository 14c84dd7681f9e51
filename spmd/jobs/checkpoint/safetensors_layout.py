"""The layout of a model's safetensors files: headers, offsets and the index, from names, shapes and
dtypes alone."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .files import SAFETENSORS
from .plain_values import dtype_of

INDEX = "model.safetensors.index.json"
# A file of a model as Hugging Face names it.
MODEL_FILE = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in SAFETENSORS.items()}


class FileTensor(NamedTuple):
    """A tensor of a file. begin: of its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    itemsize: int
    begin: int


class File(NamedTuple):
    """A safetensors file. tensors: in the order of their bytes, which follow the header. size: in
    bytes."""

    name: str
    header: bytes
    tensors: tuple[FileTensor, ...]
    size: int


class ModelStorage:
    """The files of a model: in a folder of a disk (`model_folder.py`), or by URL
    (`stored_objects.py`).

    The first process begins, makes room, commits and cleans (removes what was replaced), or
    discards; each writes its part, and joins what all have written. index: of several files, else
    None.
    """

    def __init__(self, folder: Any, files: list[File], index: bytes | None) -> None:
        self.folder, self._files, self._index = folder, files, index
        self._saving = (
            folder / f".saving-{'model' if MODEL_FILE.fullmatch(files[0].name) else files[0].name}"
        )

    def make_room(self) -> None:
        """Makes room for the files; none is needed where they are renamed over earlier ones."""

    def join(self, index: int, count: int) -> None:
        """Joins the parts; there are none where all have written into the same files."""


def size_of(text: int | str) -> int:
    """The bytes that a size such as "5GB" says; raises ValueError."""
    if type(text) is int and text > 0:
        return text
    match = (
        re.fullmatch(r"\s*([\d.]+)\s*([KMGT]B)\s*", text.upper()) if isinstance(text, str) else None
    )
    if match is None or match[1].count(".") > 1 or float(match[1]) <= 0:
        raise ValueError(
            'save_checkpoint: expected max_shard_size as a number of bytes or such as "5GB", got '
            f"{text!r}"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def checked_dtype(name: str, dtype: torch.dtype) -> None:
    """Raises TypeError for a dtype that the format, or its reader here, lacks."""
    if dtype not in _NAMES:
        raise TypeError(
            f"save_checkpoint: {name!r} has the dtype {dtype}, which safetensors files cannot "
            "hold; they hold "
            f"{', '.join(str(storable).removeprefix('torch.') for storable in _NAMES)}"
        )


def split(tensors: Mapping[str, dict[str, Any]], most: int) -> list[dict[str, dict[str, Any]]]:
    """The tensors of each file: in their order, a new file where one would have more than `most`
    bytes; a larger tensor has a file of its own."""
    groups: list[dict[str, dict[str, Any]]] = []
    current: dict[str, dict[str, Any]] = {}
    num_bytes = 0
    for name, facts in tensors.items():
        size = _nbytes(facts)
        if size > most:
            groups.append({name: facts})
            continue
        if num_bytes + size > most:
            groups.append(current)
            current, num_bytes = {}, 0
        current[name] = facts
        num_bytes += size
    return [*groups, current] if current or not groups else groups


def files_of(
    tensors: Mapping[str, dict[str, Any]], most: int, metadata: Mapping[str, str]
) -> list[File]:
    """The files of a folder: `model.safetensors`, or several with their numbers."""
    groups = split(tensors, most)
    if len(groups) == 1:
        return [file_of("model.safetensors", tensors, metadata)]
    count, texts = len(groups), {"format": metadata["format"]}
    return [
        file_of(f"model-{number:05d}-of-{count:05d}.safetensors", group, texts)
        for number, group in enumerate(groups, 1)
    ]


def file_of(name: str, tensors: Mapping[str, dict[str, Any]], metadata: Mapping[str, str]) -> File:
    """One file, byte for byte as the safetensors library writes it."""
    order = list(SAFETENSORS.values())
    dtypes = {tensor: dtype_of(facts["dtype"]) for tensor, facts in tensors.items()}
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for tensor in sorted(tensors, key=lambda tensor: (order.index(dtypes[tensor]), tensor)):
        begin, end = end, end + _nbytes(tensors[tensor])
        shape = list(tensors[tensor]["shape"])
        table[tensor] = {
            "dtype": _NAMES[dtypes[tensor]],
            "shape": shape,
            "data_offsets": [begin, end],
        }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    first = 8 + len(text)
    placed = tuple(
        FileTensor(
            tensor, tuple(entry["shape"]), dtypes[tensor].itemsize, first + entry["data_offsets"][0]
        )
        for tensor, entry in table.items()
        if tensor != "__metadata__"
    )
    return File(name, len(text).to_bytes(8, "little") + text, placed, first + end)


def index_of(files: list[File], tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """The text of the index of several files."""
    places = {tensor.name: file.name for file in files for tensor in file.tensors}
    # stable: within a file as the model has them
    in_order = sorted(tensors, key=places.__getitem__)
    texts = {name: value for name, value in metadata.items() if name != "format"}
    body = {
        "metadata": {"total_size": sum(map(_nbytes, tensors.values())), **texts},
        "weight_map": {name: places[name] for name in in_order},
    }
    return json.dumps(body, indent=2).encode()


def _nbytes(facts: dict[str, Any]) -> int:
    return math.prod(facts["shape"]) * dtype_of(facts["dtype"]).itemsize
