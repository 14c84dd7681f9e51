"""Structures of tensors, such as batches and state dicts, with a function applied to each tensor in them."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any


def mapped(function: Callable[[Any], Any], data: Any) -> Any:
    """Returns a structure like this one with `function` applied to what has `.to`: tensors, packed sequences.

    Mappings of any class, lists, tuples, named tuples, sets and dataclasses are copied; the rest stays as it is.
    """
    if isinstance(data, Mapping):
        made = copy.copy(data)
        for key, value in data.items():
            made[key] = mapped(function, value)  # type: ignore[index]  # a mapping that scripts fill
        return made
    if hasattr(data, "to"):
        return function(data)
    if isinstance(data, tuple):
        values = [mapped(function, value) for value in data]
        return type(data)(*values) if hasattr(data, "_fields") else type(data)(values)
    if isinstance(data, (list, set)):
        return type(data)(mapped(function, value) for value in data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        fields = [field.name for field in dataclasses.fields(data) if field.init]
        return dataclasses.replace(data, **{name: mapped(function, getattr(data, name)) for name in fields})
    return data
