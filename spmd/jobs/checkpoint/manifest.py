"""The manifest of a step: text in JSON that lists its tensors, their shards in the files, and all other values.

Each process describes what it has written; the first one merges these parts. Only the standard library.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

FORMAT = "spmd checkpoint 1"
NAME = "manifest.json"


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

    The shards of a tensor on devices are those of all. CPU tensors and values that are equal everywhere are kept once;
    an entry that differs is kept for each process, under "by_process", its tensors with the process's number.
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
    final = {name: name[:-2] for name in hosts if name.endswith("@0") and f"{name[:-2]}@1" not in used}
    return {
        "files": {name: size for part in parts for name, size in part["files"].items()},
        "tensors": {final.get(name, name): tensors[name] for name in used},
        "values": {path: _renamed(value, final) for path, value in values.items()},
    }


def _contents(path: str, part: dict[str, Any]) -> tuple[Any, list[Any]]:
    """An entry of a process, None where it has none, and the name, shape, dtype and checksums of its CPU tensors."""
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
    return [name for inner in value for name in tensor_names(inner)] if isinstance(value, list) else []


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if "$tensor" in value:
            return {**value, "$tensor": names.get(value["$tensor"], value["$tensor"])}
        return {key: _renamed(inner, names) for key, inner in value.items()}
    return [_renamed(inner, names) for inner in value] if isinstance(value, list) else value


# --- the text ---------------------------------------------------------------------------------------------------------


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()


def text(body: dict[str, Any]) -> str:
    """Returns the manifest as text, with the sha256 of its contents."""
    return json.dumps({"format": FORMAT, "sha256": _digest(body), **body}) + "\n"


def parsed(content: bytes, where: str) -> dict[str, Any]:
    """Returns the contents of a manifest; raises DamagedError where it is not as it was written."""
    try:
        body = json.loads(content)
        kind, digest = body.pop("format"), body.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{where} is damaged: it is no manifest ({type(error).__name__}: {error})") from error
    if kind != FORMAT:
        raise DamagedError(f"{where}: expected the format {FORMAT!r}, got {kind!r}; it was written by another version")
    if digest != _digest(body):
        raise DamagedError(f"{where} is damaged: its contents do not have the sha256 that it states")
    return body


def read(folder: Any) -> dict[str, Any]:
    """Returns the manifest of a step's folder, a `Path` or `UrlPath`; raises DamagedError."""
    file = folder / NAME
    body = parsed(file.read_bytes(), str(file))
    for name in body["files"]:
        if PurePosixPath(name).name != name:
            raise DamagedError(f"{file}: the file {name!r} is not in the folder of the step")
    return body
