"""Values of a state dict as JSON: what JSON lacks is a dict with one key that begins with "$"; nothing is pickled."""

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Put = Callable[[torch.Tensor, str], str]
Get = Callable[[str, str], torch.Tensor]


def encode(value: Any, path: str, put: Put) -> Any:
    """Returns a value as JSON's; `put` takes each tensor with its path, and returns the name that stands for it.

    Raises TypeError that names the path of a value that it does not know.
    """

    def inner(value: Any, key: Any) -> Any:
        return encode(value, f"{path}.{key}", put)

    def pairs(mapping: Any) -> list[Any]:
        return [[inner(key, "key"), inner(each, key)] for key, each in mapping.items()]

    def items(values: Any) -> list[Any]:
        return [inner(each, index) for index, each in enumerate(values)]

    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"$tensor": put(value, path)}
    if kind is list:
        return items(value)
    if kind in (tuple, torch.Size):
        return {"$tuple" if kind is tuple else "$size": items(value)}
    if kind in (dict, defaultdict):
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: inner(each, key) for key, each in value.items()}
        return {"$dict": pairs(value)}
    if kind in (OrderedDict, Counter):
        return {"$ordered" if kind is OrderedDict else "$counter": pairs(value)}
    if kind is deque:
        return {"$deque": [items(value), value.maxlen]}
    if kind in (set, frozenset):
        return {f"${kind.__name__}": items(sorted(value, key=repr))}
    if kind in (bytes, bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$complex": [inner(value.real, "real"), inner(value.imag, "imag")]}
    if kind in (torch.dtype, torch.device):
        return {f"${kind.__name__}": str(value).removeprefix("torch.")}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"$scalar": [value.dtype.name, inner(value.item(), "item")]}
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return {"$array": {"$tensor": put(torch.from_numpy(np.array(value, order="C")), path)}}
    raise TypeError(
        f"CheckpointManager: {path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold: it has "
        "tensors, numbers, strings, bytes, lists, tuples, sets, dicts, and objects with state_dict and "
        "load_state_dict. Give it these two methods, or save what it is made of"
    )


def decode(value: Any, path: str, get: Get) -> Any:
    """Returns the value that `encode` was given; `get` takes the name of each tensor with its path."""

    def inner(value: Any, key: Any) -> Any:
        return decode(value, f"{path}.{key}", get)

    def items(values: Any) -> list[Any]:
        return [inner(each, index) for index, each in enumerate(values)]

    def pairs(values: Any) -> list[Any]:
        keys = [inner(key, "key") for key, _ in values]
        return [(key, inner(each, key)) for key, (_, each) in zip(keys, values, strict=True)]

    if isinstance(value, list):
        return items(value)
    if not isinstance(value, dict):
        return value
    kind: str = next(iter(value), "")
    content: Any = value.get(kind)
    match kind:
        case "$float":
            return float(content)
        case "$tensor":
            return get(content, path)
        case "$tuple":
            return tuple(items(content))
        case "$size":
            return torch.Size(items(content))
        case "$dict":
            return dict(pairs(content))
        case "$ordered":
            return OrderedDict(pairs(content))
        case "$counter":
            return Counter(dict(pairs(content)))
        case "$deque":
            return deque(items(content[0]), content[1])
        case "$set":
            return set(items(content))
        case "$frozenset":
            return frozenset(items(content))
        case "$bytes":
            return base64.b64decode(content)
        case "$complex":
            return complex(*items(content))
        case "$dtype":
            return dtype_of(content)
        case "$device":
            return torch.device(content)
        case "$scalar":
            return np.dtype(content[0]).type(inner(content[1], "item"))
        case "$array":
            return get(content["$tensor"], path).numpy()
    return {key: inner(each, key) for key, each in value.items()}


def dtype_of(name: str) -> torch.dtype:
    """Returns torch's dtype of a name ("float32")."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"expected the name of a dtype of torch, got {name!r}")
    return found
