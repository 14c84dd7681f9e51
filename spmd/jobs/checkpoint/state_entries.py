"""The entries of a state: nested dicts and lists of tensors, numbers, text, and objects with a
state of their own."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import torch
from torch import nn

from .plain_values import Put, encode

# {"kind": "tensor", "object" or "value", "state": encoded, "class": of an object}
Entry = dict[str, Any]


def kind_of(value: Any) -> str:
    """The kind of an entry."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    is_object = hasattr(value, "state_dict") or isinstance(value, torch.Generator)
    return "object" if is_object and not isinstance(value, type) else "value"


def is_plain(value: Any) -> bool:
    """True for a value that is one entry: with neither tensors nor objects in it."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return kind_of(value) == "value"


def entries(
    state: Any, path: str = "", is_entry: Callable[[Any], bool] = is_plain
) -> Iterator[tuple[str, Any]]:
    """Yields the entries of a state, each with its path: its keys and places, joined by dots.

    is_entry: true for dicts, lists and tuples that are one entry.
    """
    if not isinstance(state, (Mapping, list, tuple)) or (path and is_entry(state)):
        yield path, state
        return
    for key, value in state.items() if isinstance(state, Mapping) else enumerate(state):
        yield from entries(value, f"{path}.{key}" if path else str(key), is_entry)


def replaced(
    state: Any,
    replace: Callable[[str, Any], Any],
    path: str = "",
    is_entry: Callable[[Any], bool] = is_plain,
) -> Any:
    """Returns a state with other entries: in the same dicts and lists, and in new tuples."""
    if not isinstance(state, (Mapping, list, tuple)) or (path and is_entry(state)):
        return replace(path, state)
    items = [*state.items()] if isinstance(state, Mapping) else [*enumerate(state)]
    new = {
        key: replaced(value, replace, f"{path}.{key}" if path else str(key), is_entry)
        for key, value in items
    }
    if isinstance(state, tuple):
        return tuple(new.values())
    for key, value in new.items():
        if state[key] is not value:
            state[key] = value  # type: ignore[index]
    return state


def filled(old: Any, new: Any) -> Any:
    """Returns a plain value with the contents of `new`: `old` itself, changed, where both are
    dicts, lists, sets or deques, and so for what they hold; else `new`."""
    if isinstance(new, dict) and isinstance(old, MutableMapping):
        pairs = [(key, filled(old.get(key), value)) for key, value in new.items()]
        old.clear()
        for key, value in pairs:  # the update of a Counter adds
            old[key] = value
    elif isinstance(new, set) and isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(new, (list, tuple, deque)) and isinstance(old, type(new)):
        values = [
            filled(old[index] if index < len(old) else None, value)
            for index, value in enumerate(new)
        ]
        if isinstance(new, tuple) or getattr(old, "maxlen", None) != getattr(new, "maxlen", None):
            return type(new)(values, new.maxlen) if isinstance(new, deque) else type(new)(values)
        container: Any = old
        container.clear()
        container.extend(values)
    else:
        return new
    return old


def checked(state: Any, caller: str) -> dict[str, Any]:
    """Returns the entries of a state by path; raises TypeError for a state that is no dict,
    ValueError for a path that two entries have."""
    if not isinstance(state, dict):
        raise TypeError(
            f'{caller}: expected a dict such as {{"model": model, "optimizer": optimizer, "step": '
            "0}, got "
            f"{type(state).__name__}"
        )
    result: dict[str, Any] = {}
    for path, value in entries(state):
        if path in result:
            raise ValueError(
                f"{caller}: two entries of the state have the path {path!r}; rename a key"
            )
        result[path] = value
    return result


def described(path: str, value: Any, put: Put) -> Entry:
    """Returns an entry as it is written."""
    kind = kind_of(value)
    if kind != "object":
        return {"kind": kind, "state": encode(value, path, put)}
    if isinstance(value, torch.Generator):
        state: Any = value.get_state()
    elif not hasattr(value, "load_state_dict"):
        raise TypeError(
            f"CheckpointManager: {path} is a {type(value).__name__} with state_dict and without "
            "load_state_dict; save its state_dict() instead"
        )
    else:
        state = value.state_dict()
    entry = {"kind": kind, "class": type(value).__name__}
    if isinstance(value, nn.Module):
        entry["metadata"] = encode(getattr(state, "_metadata", None), path, put)
        state = dict(state)
    return {**entry, "state": encode(state, path, put)}
