"""The manifest of a step: text in JSON that lists its tensors, their shards in the files, and all
other values.

Each process describes what it has written; the first one merges these parts. Imports neither torch
nor jax.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

from ...tensors.sealed_json import digest

FORMAT = "spmd checkpoint 1"
NAME = "manifest.json"
_DEEPEST = 100  # levels of lists and dicts: readers recurse
_LARGEST = 1 << 30  # bytes of a manifest


class DamagedError(ValueError):
    """Files of a checkpoint are not as they were written.

    >>> import os, tempfile, torch, spmd
    >>> folder, state = tempfile.mkdtemp(), {"weight": torch.ones(2)}
    >>> manager = spmd.CheckpointManager(folder)
    >>> saved = manager.save(0, state)
    >>> manager.wait()
    >>> os.truncate(f"{folder}/0/manifest.json", 10)
    >>> try:
    ...     step = manager.restore(state)
    ... except spmd.checkpoint.DamagedError:
    ...     print("a step before it is to be restored: skip_damaged=True")
    a step before it is to be restored: skip_damaged=True
    """


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns tensors, values and files of all processes as one.

    The shards of a tensor on devices are those of all. CPU tensors and values that are equal
    everywhere are kept once; an entry that differs is kept for each process, under "by_process",
    its tensors with the process's number.
    """
    tensors: dict[str, Any] = {}
    for index, part in enumerate(parts):
        for name, tensor in part["tensors"].items():
            if not tensor["on_host"]:
                tensors.setdefault(name, {**tensor, "shards": []})["shards"] += tensor["shards"]
            else:
                tensors[f"{name}@{index}"] = tensor
    values = {}
    for path in dict.fromkeys(path for part in parts for path in part["values"]):
        contents = [_contents(path, part) for part in parts]
        entries = [
            _renamed(value, {name: f"{name}@{index}" for name, *_ in on_host})
            for index, (value, on_host) in enumerate(contents)
        ]
        is_equal = all(content == contents[0] for content in contents)
        values[path] = entries[0] if is_equal else {"by_process": entries}
    used = dict.fromkeys(name for value in values.values() for name in tensor_names(value))
    hosts = {name for name in used if tensors[name]["on_host"]}
    final = {
        name: name[:-2] for name in hosts if name.endswith("@0") and f"{name[:-2]}@1" not in used
    }
    return {
        "files": {name: size for part in parts for name, size in part["files"].items()},
        "tensors": {final.get(name, name): tensors[name] for name in used},
        "values": {path: _renamed(value, final) for path, value in values.items()},
    }


def _contents(path: str, part: dict[str, Any]) -> tuple[Any, list[Any]]:
    """An entry of a process, None where it has none, and the name, shape, dtype and checksums of
    its CPU tensors."""
    value = part["values"].get(path)
    tensors = {name: part["tensors"][name] for name in tensor_names(value)}
    return value, [
        (name, tensor["shape"], tensor["dtype"], [shard["crc32"] for shard in tensor["shards"]])
        for name, tensor in tensors.items()
        if tensor["on_host"]
    ]


def tensor_names(value: Any) -> list[str]:
    """The names of the tensors that an encoded value refers to."""
    if isinstance(value, dict):
        if "$tensor" in value:
            return [value["$tensor"]]
        return [name for inner in value.values() for name in tensor_names(inner)]
    return (
        [name for inner in value for name in tensor_names(inner)] if isinstance(value, list) else []
    )


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if "$tensor" in value:
            return {**value, "$tensor": names.get(value["$tensor"], value["$tensor"])}
        return {key: _renamed(inner, names) for key, inner in value.items()}
    return [_renamed(inner, names) for inner in value] if isinstance(value, list) else value


# --- the text -------------------------------------------------------------------------------------


def text(body: dict[str, Any]) -> str:
    """Returns the manifest as text, with the sha256 of its contents; raises ValueError for values
    nested too deep."""
    _check_depth(body)
    return json.dumps({"format": FORMAT, "sha256": digest(body), **body}) + "\n"


def parsed(content: bytes, where: str) -> dict[str, Any]:
    """Returns the contents of a manifest; raises DamagedError where it is not as it was written."""
    try:
        body = json.loads(content)
        kind, stated = body.pop("format"), body.pop("sha256")
        _check_depth(body)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(
            f"{where} is damaged: it is no manifest ({type(error).__name__}: {error})"
        ) from error
    if kind != FORMAT:
        raise DamagedError(
            f"{where}: expected the format {FORMAT!r}, got {kind!r}; it was written by another "
            "version"
        )
    if stated != digest(body):
        raise DamagedError(
            f"{where} is damaged: its contents do not have the sha256 that it states"
        )
    return body


def read(folder: Any) -> dict[str, Any]:
    """Returns the manifest of a step's folder, a `Path` or `UrlPath`; raises DamagedError."""
    file = folder / NAME
    size = file.stat().st_size
    if size > _LARGEST or _is_link(file):
        raise DamagedError(
            f"{file} is damaged: expected a file of at most {_LARGEST:,} bytes and no link, got "
            f"{size:,}"
        )
    body = parsed(file.read_bytes(), str(file))
    try:
        _check(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(
            f"{file} is damaged: {error if type(error) is ValueError else repr(error)}"
        ) from error
    for name in body["files"]:
        if _is_link(folder / name):
            raise DamagedError(
                f"{folder / name} is a link: expected a file in the folder of the step"
            )
    return body


def _is_link(file: Any) -> bool:
    return hasattr(file, "is_symlink") and file.is_symlink()


def _check_depth(body: Any) -> None:
    level = [body]
    for _ in range(_DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ValueError(f"its values are nested more than {_DEEPEST} deep")


# --- what it may say ------------------------------------------------------------------------------


def _check(body: dict[str, Any]) -> None:
    """Raises ValueError, or what a value of another type raises, for what no save writes: bytes
    outside of the files of the folder or in two shards, shards that are not their tensor's, names
    of no tensor."""
    files: dict[str, int] = body["files"]
    for name in files:
        if name in ("", ".", "..") or {"/", "\\", "\0"} & {*name}:
            raise ValueError(f"the file {name!r} is not in the folder of the step")
    _sizes([*files.values()])
    places = [
        (shard["file"], *_checked(tensor, shard))
        for tensor in _tensors(body)
        for shard in tensor["shards"]
    ]
    last, end = "", 0
    for name, offset, size in sorted(places):
        if name not in files or offset + size > files[name]:
            raise ValueError(
                f"a shard is at byte {offset:,} of {name!r}, which is not in a file that it lists"
            )
        if name == last and offset < end:
            raise ValueError(f"two shards have byte {offset:,} of {name!r}")
        last, end = name, offset + size
    for path, value in body["values"].items():
        by_process = value.get("by_process", [value])
        kinds = [(entry["kind"], entry["state"]) for entry in by_process if entry is not None]
        if not by_process or not {kind for kind, _ in kinds} <= {"tensor", "value", "object"}:
            raise ValueError(f"{path!r} is of a kind that no save writes")
        if not all(isinstance(state["$tensor"], str) for kind, state in kinds if kind == "tensor"):
            raise ValueError(f"{path!r} names no tensor")
        missing = [name for name in tensor_names(value) if name not in body["tensors"]]
        if missing:
            raise ValueError(f"{path!r} names the tensor {missing[0]!r}, which it does not list")


def _tensors(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The tensors, whose shards have as many elements as they."""
    for name, tensor in body["tensors"].items():
        count = sum(math.prod(_sizes(shard["shape"])) for shard in tensor["shards"])
        if count != math.prod(_sizes(tensor["shape"])) or type(tensor["on_host"]) is not bool:
            raise ValueError(
                f"the shards of {name!r} have {count:,} elements, and its shape is "
                f"{tensor['shape']}"
            )
    return [*body["tensors"].values()]


def _checked(tensor: dict[str, Any], shard: dict[str, Any]) -> list[int]:
    """The first byte of a shard, and the number of its bytes."""
    bounds = zip(_sizes(shard["at"]), shard["shape"], tensor["shape"], strict=True)
    if not all(offset + size <= dim for offset, size, dim in bounds) or not isinstance(
        shard["crc32"], str
    ):
        raise ValueError(
            f"a shard at {shard['at']} of {shard['shape']} is not in a tensor of {tensor['shape']}"
        )
    return _sizes([shard["offset"], shard["bytes"]])


def _sizes(numbers: Any) -> list[int]:
    """The same numbers, which are sizes: at most as many as bytes of an address."""
    if not isinstance(numbers, list) or not all(
        type(number) is int and 0 <= number < 1 << 62 for number in numbers
    ):
        raise ValueError(f"{str(numbers)[:80]} are no sizes")
    return numbers
