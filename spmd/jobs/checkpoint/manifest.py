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
    """Files of a checkpoint are not as they were written."""


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
        entries = [part["values"].get(path) for part in parts]
        if all(one == entries[0] for one in entries) and _have_equal_tensors(path, parts):
            values[path] = _renamed(entries[0], {name: f"{name}@0" for name in _on_host(path, parts[0])})
        else:
            values[path] = {
                "by_process": [
                    None if one is None else _renamed(one, {name: f"{name}@{i}" for name in _on_host(path, parts[i])})
                    for i, one in enumerate(entries)
                ]
            }
    used: dict[str, None] = {}
    for value in values.values():
        used |= dict.fromkeys(tensor_names(value))
    hosts = {name for name in used if tensors[name]["on_host"]}
    only_first = {name for name in hosts if name.endswith("@0") and f"{name[:-2]}@1" not in used}
    final = {name: name[:-2] for name in only_first}
    return {
        "files": {name: size for part in parts for name, size in part["files"].items()},
        "tensors": {final.get(name, name): tensors[name] for name in used},
        "values": {path: _renamed(value, final) for path, value in values.items()},
    }


def _on_host(path: str, part: dict[str, Any]) -> list[str]:
    return [name for name in tensor_names(part["values"].get(path)) if part["tensors"][name]["on_host"]]


def _have_equal_tensors(path: str, parts: Sequence[dict[str, Any]]) -> bool:
    """True if the CPU tensors of an entry have the same bytes in all processes."""

    def contents(part: dict[str, Any]) -> list[Any]:
        tensors = [part["tensors"][name] for name in _on_host(path, part)]
        return [[one["shape"], one["dtype"], [shard["crc32"] for shard in one["shards"]]] for one in tensors]

    return all(contents(part) == contents(parts[0]) for part in parts)


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
