"""Nested structures of tensors as JSON: what a call takes and returns, without the classes that
made it."""

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...mesh.hints import listed

Description = dict[str, Any]


def describe(value: Any, path: str, tensors: list[tuple[str, torch.Tensor]]) -> Description:
    """Returns the description of a nested value, and adds its tensors, with their paths, to
    `tensors`.

    Lists, tuples, named tuples and dicts come back as such; a dataclass or another mapping as a
    dict of its fields. Raises TypeError for any other object.
    """
    match value:
        case torch.Tensor():
            tensors.append((path, value))
            return {"tensor": len(tensors) - 1}
        case None | bool() | int() | float() | str():
            return {"value": value}
        case torch.dtype() | torch.device() | torch.memory_format():
            return {"text": str(value)}
        case tuple() if hasattr(value, "_fields"):
            items = [
                describe(item, f"{path}.{name}", tensors)
                for name, item in zip(value._fields, value, strict=True)
            ]
            return {
                "named tuple": type(value).__name__,
                "fields": list(value._fields),
                "items": items,
            }
        case list() | tuple():
            items = [
                describe(item, f"{path}[{index}]", tensors) for index, item in enumerate(value)
            ]
            return {"list" if isinstance(value, list) else "tuple": items}
    fields = _fields(value)
    if fields is None:
        raise TypeError(
            f"export: {path} is a {type(value).__name__}; a program takes and returns tensors, "
            "numbers, strings and None in lists, tuples, named tuples, dicts and dataclasses"
        )
    wrong_keys = [key for key in fields if not isinstance(key, (str, int))]
    if wrong_keys:
        raise TypeError(
            f"export: {path} has the key {wrong_keys[0]!r}; keys of dicts must be strings or "
            "integers"
        )
    return {
        "dict": [[key, describe(item, f"{path}[{key!r}]", tensors)] for key, item in fields.items()]
    }


def _fields(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def rebuild(description: Description, tensor: Callable[[int], Any]) -> Any:
    """Returns the value of a description, with `tensor(i)` for its i-th tensor."""

    def inner(items: Sequence[Description]) -> list[Any]:
        return [rebuild(item, tensor) for item in items]

    match description:
        case {"tensor": index}:
            return tensor(index)
        case {"value": value}:
            return value
        case {"text": str(text)}:
            value = getattr(torch, text.removeprefix("torch."), None)
            return (
                value
                if isinstance(value, (torch.dtype, torch.memory_format))
                else torch.device(text)
            )
        case {"dict": pairs}:
            return {key: rebuild(item, tensor) for key, item in pairs}
        case {"named tuple": name, "fields": fields, "items": items}:
            return namedtuple(name, fields)(*inner(items))
        case {"list": items}:
            return inner(items)
        case _:
            return tuple(inner(description["tuple"]))


def matched(description: Description, value: Any, path: str) -> list[torch.Tensor]:
    """Returns the tensors of a value in the order of a description; ValueError where the two
    differ."""
    match description:
        case {"tensor": _}:
            if not isinstance(value, torch.Tensor):
                raise _differ(path, "a tensor", value)
            return [value]
        case {"value": constant} | {"text": constant}:
            argument = str(value) if "text" in description else value
            is_nan = argument != argument and constant != constant
            if type(argument) is not type(constant) or not (argument == constant or is_nan):
                raise _differ(path, f"{constant!r}, which is part of the program", value)
            return []
        case {"dict": pairs}:
            keys, fields = [key for key, _ in pairs], _fields(value)
            if fields is None or set(fields) != set(keys):
                raise _differ(path, f"a dict with the keys {listed(keys)}", value)
            parts = [(item, fields[key], f"{path}[{key!r}]") for key, item in pairs]
        case {"items": items} | {"list": items} | {"tuple": items}:
            if not isinstance(value, (list, tuple)) or len(value) != len(items):
                raise _differ(path, f"a list or tuple of {len(items)}", value)
            parts = [(item, value[index], f"{path}[{index}]") for index, item in enumerate(items)]
        case _:
            raise ValueError(f"expected the description of a value, got {description!r}")
    return [tensor for part in parts for tensor in matched(*part)]


def _differ(path: str, expected: str, value: Any) -> ValueError:
    fields = None if isinstance(value, torch.Tensor) else _fields(value)
    match value:
        case None | bool() | int() | float() | str():
            shown = repr(value)
        case list() | tuple():
            shown = f"a {type(value).__name__} of {len(value)}"
        case _:
            shown = (
                f"a {type(value).__name__}"
                if fields is None
                else f"the keys {listed(list(fields))}"
            )
    return ValueError(
        f"{path}: the program was exported with {expected}, got {shown}; call it as it was exported"
    )
