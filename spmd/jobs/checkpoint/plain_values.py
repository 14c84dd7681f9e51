"""Values of a state dict as JSON: what JSON lacks is a dict with one key that begins with "$";
nothing is pickled."""

import base64
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Put = Callable[[torch.Tensor, str], str]
Get = Callable[[str, str], torch.Tensor]


def dtype_of(name: str) -> torch.dtype:
    """Returns torch's dtype of a name ("float32")."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"expected the name of a dtype of torch, got {name!r}")
    return dtype


# By the key that stands for a type: what makes a value of its items, of its keys and values, or of
# its text.
_OF_ITEMS: dict[str, Callable[[Any], Any]] = {
    "$tuple": tuple,
    "$size": torch.Size,
    "$set": set,
    "$frozenset": frozenset,
    "$complex": lambda parts: complex(*parts),
}
_OF_PAIRS: dict[str, type[dict[Any, Any]]] = {
    "$dict": dict,
    "$ordered": OrderedDict,
    "$counter": Counter,
}
_OF_TEXT: dict[str, Callable[[str], Any]] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$dtype": dtype_of,
    "$device": torch.device,
}
_KEYS: dict[Any, str] = {make: key for key, make in {**_OF_ITEMS, **_OF_PAIRS}.items()}


def encode(value: Any, path: str, put: Put) -> Any:
    """Returns a value as JSON's; `put` takes each tensor with its path, and returns the name that
    stands for it.

    Raises TypeError that names the path of a value that it does not know.
    """

    def inner(value: Any, key: Any) -> Any:
        return encode(value, f"{path}.{key}", put)

    def pairs(mapping: Any) -> list[Any]:
        return [[inner(key, "key"), inner(item, key)] for key, item in mapping.items()]

    def items(values: Any) -> list[Any]:
        return [inner(item, index) for index, item in enumerate(values)]

    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"$tensor": put(value, path)}
    if kind is list:
        return items(value)
    if kind in (dict, defaultdict) and all(
        type(key) is str and not key.startswith("$") for key in value
    ):
        return {key: inner(item, key) for key, item in value.items()}
    key = "$dict" if kind is defaultdict else _KEYS.get(kind)
    if key is not None:
        is_set = kind in (set, frozenset)
        return {
            key: pairs(value)
            if key in _OF_PAIRS
            else items(sorted(value, key=repr) if is_set else value)
        }
    if kind is deque:
        return {"$deque": [items(value), value.maxlen]}
    if kind in (bytes, bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    if kind is complex:
        return {"$complex": items((value.real, value.imag))}
    if kind in (torch.dtype, torch.device):
        return {f"${kind.__name__}": str(value).removeprefix("torch.")}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"$scalar": [value.dtype.name, inner(value.item(), "item")]}
    if kind is np.ndarray and value.dtype.kind in "biufc":
        return {"$array": {"$tensor": put(torch.from_numpy(np.array(value, order="C")), path)}}
    raise TypeError(
        f"CheckpointManager: {path} is a {kind.__module__}.{kind.__qualname__}, which a "
        "checkpoint cannot hold: it has tensors, numbers, strings, bytes, lists, tuples, sets, "
        "dicts, and objects with state_dict and load_state_dict. Give it these two methods, or "
        "save what it is made of"
    )


def decode(value: Any, path: str, get: Get) -> Any:
    """Returns the value that `encode` was given; `get` takes the name of each tensor with its
    path."""

    def inner(value: Any, key: Any) -> Any:
        return decode(value, f"{path}.{key}", get)

    def items(values: Any) -> list[Any]:
        return [inner(item, index) for index, item in enumerate(values)]

    def pairs(values: Any) -> list[Any]:
        keys = [inner(key, "key") for key, _ in values]
        return [(key, inner(item, key)) for key, (_, item) in zip(keys, values, strict=True)]

    if isinstance(value, list):
        return items(value)
    if not isinstance(value, dict):
        return value
    kind: str = next(iter(value), "")
    content: Any = value.get(kind)
    if kind in _OF_ITEMS:
        return _OF_ITEMS[kind](items(content))
    if kind in _OF_PAIRS:
        return _OF_PAIRS[kind](dict(pairs(content)))
    if kind in _OF_TEXT:
        return _OF_TEXT[kind](content)
    match kind:
        case "$tensor":
            return get(content, path)
        case "$deque":
            return deque(items(content[0]), content[1])
        case "$scalar":
            dtype = np.dtype(str(content[0]))
            if dtype.kind not in "biuf":  # of text or bytes it would have any size
                raise ValueError(
                    f"expected a scalar of numbers at {path}, got the dtype {content[0]!r}"
                )
            return dtype.type(inner(content[1], "item"))
        case "$array":
            return get(content["$tensor"], path).numpy()
    return {key: inner(item, key) for key, item in value.items()}
