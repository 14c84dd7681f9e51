"""Nested structures of tensors as JSON: what a call takes and returns, without the classes that made it."""

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Description = dict[str, Any]

_PLAIN = (bool, int, float, str, type(None))


def describe(value: Any, where: str, found: list[tuple[str, torch.Tensor]]) -> Description:
    """Returns the description of a nested value, and adds its tensors, with their paths, to `found`.

    Lists, tuples, named tuples and dicts come back as such; a dataclass or another mapping as a dict of its fields.
    Raises TypeError for any other object.
    """
    if isinstance(value, torch.Tensor):
        found.append((where, value))
        return {"tensor": len(found) - 1}
    if isinstance(value, _PLAIN):
        return {"value": value}
    if isinstance(value, (torch.dtype, torch.device, torch.memory_format)):
        return {"text": str(value)}
    if _is_named(value):
        items = [describe(item, f"{where}.{name}", found) for name, item in zip(value._fields, value, strict=True)]
        return {"named tuple": type(value).__name__, "fields": list(value._fields), "items": items}
    if isinstance(value, (list, tuple)):
        items = [describe(item, f"{where}[{place}]", found) for place, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    fields = _fields(value)
    if fields is None:
        raise TypeError(
            f"export: {where} is a {type(value).__name__}; a program takes and returns tensors, numbers, strings and "
            "None in lists, tuples, named tuples, dicts and dataclasses"
        )
    bad = [key for key in fields if not isinstance(key, (str, int))]
    if bad:
        raise TypeError(f"export: {where} has the key {bad[0]!r}; keys of dicts must be strings or integers")
    return {"dict": [[key, describe(item, f"{where}[{key!r}]", found)] for key, item in fields.items()]}


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple)


def _fields(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def rebuild(description: Description, tensor: Callable[[int], Any]) -> Any:
    """Returns the value of a description, with `tensor(i)` for its i-th tensor."""
    if "tensor" in description:
        return tensor(description["tensor"])
    if "value" in description:
        return description["value"]
    if "text" in description:
        value = getattr(torch, description["text"].removeprefix("torch."), None)
        return value if isinstance(value, (torch.dtype, torch.memory_format)) else torch.device(description["text"])
    if "dict" in description:
        return {key: rebuild(item, tensor) for key, item in description["dict"]}
    if "named tuple" in description:
        result = namedtuple(description["named tuple"], description["fields"])  # type: ignore[misc]
        return result(*(rebuild(item, tensor) for item in description["items"]))
    if "list" in description:
        return [rebuild(item, tensor) for item in description["list"]]
    return tuple(rebuild(item, tensor) for item in description["tuple"])


def matched(description: Description, given: Any, where: str) -> list[torch.Tensor]:
    """Returns the tensors of a value in the order of a description; ValueError where the two differ."""
    tensors: list[torch.Tensor] = []
    _match(description, given, where, tensors)
    return tensors


def _match(description: Description, given: Any, where: str, found: list[torch.Tensor]) -> None:
    if "tensor" in description:
        if not isinstance(given, torch.Tensor):
            raise _differ(where, "a tensor", _shown(given))
        found.append(given)
    elif "value" in description or "text" in description:
        wanted = description.get("value", description.get("text"))
        value = str(given) if "text" in description else given
        if type(value) is not type(wanted) or not (value == wanted or (value != value and wanted != wanted)):
            raise _differ(where, f"{wanted!r}, which is part of the program", _shown(given))
    elif "dict" in description:
        fields, keys = _fields(given), [key for key, _ in description["dict"]]
        if fields is None or set(fields) != set(keys):
            raise _differ(where, f"a dict with the keys {_listed(keys)}", _shown(given))
        for key, item in description["dict"]:
            _match(item, fields[key], f"{where}[{key!r}]", found)
    else:
        items: Sequence[Description] = next(
            description[kind] for kind in ("items", "list", "tuple") if kind in description
        )
        if not isinstance(given, (list, tuple)) or len(given) != len(items):
            raise _differ(where, f"a list or tuple of {len(items)}", _shown(given))
        for index, (item, value) in enumerate(zip(items, given, strict=True)):
            _match(item, value, f"{where}[{index}]", found)


def _shown(given: Any) -> str:
    if isinstance(given, _PLAIN):
        return repr(given)
    fields = None if isinstance(given, torch.Tensor) else _fields(given)
    if fields is not None:
        return f"the keys {_listed(list(fields))}"
    many = f" of {len(given)}" if isinstance(given, (list, tuple)) else ""
    return f"a {type(given).__name__}{many}"


def _listed(keys: Sequence[Any]) -> str:
    return ", ".join(map(repr, keys)) or "none"


def _differ(where: str, wanted: str, got: str) -> ValueError:
    return ValueError(f"{where}: the program was exported with {wanted}, got {got}; call it as it was exported")
