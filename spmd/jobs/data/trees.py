"""Batches as trees: mappings, sequences and dataclasses with tensors and arrays inside."""

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ...core import dtypes

Path = tuple[Any, ...]  # keys, positions and field names from the batch to an entry


def is_data(value: Any) -> bool:
    """True for a tensor and for a numpy array of numbers."""
    return isinstance(value, torch.Tensor) or (
        isinstance(value, np.ndarray) and value.dtype in dtypes.NUMPY_TO_TORCH
    )


def moves(value: Any) -> bool:
    """True for what goes to a device: tensors, packed sequences."""
    return hasattr(value, "to") and not isinstance(value, (Mapping, type))


def mapped(
    batch: Any,
    is_leaf: Callable[[Any], bool],
    function: Callable[[Path, Any], Any],
    path: Path = (),
    outer: frozenset[int] = frozenset(),
) -> Any:
    """Returns the batch with `function(path, entry)` for each entry, in new containers of the same
    types.

    All other values are the same objects, containers without an entry included. outer: the objects
    around the batch, by their ids: one that holds itself is not entered twice.
    """
    if is_leaf(batch):
        return function(path, batch)
    entries = None if id(batch) in outer else _entries(batch)
    if entries is None:
        return batch
    around = outer | {id(batch)}
    new = {
        key: mapped(value, is_leaf, function, (*path, key), around)
        for key, value in entries.items()
    }
    return (
        batch
        if all(new[key] is value for key, value in entries.items())
        else _with_entries(batch, new)
    )


def _entries(batch: Any) -> dict[Any, Any] | None:
    """The values inside of a container by their keys; None for a value that is none."""
    if isinstance(batch, Mapping):
        return dict(batch.items())
    if isinstance(batch, (tuple, list)):
        return dict(enumerate(batch))
    if isinstance(batch, (set, frozenset)):
        return {item: item for item in batch}
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    has_fields = (
        hasattr(batch, "__dict__") and not callable(batch) and not isinstance(batch, ModuleType)
    )
    return dict(vars(batch)) if has_fields else None


def _with_entries(batch: Any, entries: dict[Any, Any]) -> Any:
    """A container of the same type with these entries."""
    if isinstance(batch, Mapping):
        return _mapping(batch, entries)
    if isinstance(batch, (tuple, list, set, frozenset)):
        return (
            type(batch)(*entries.values())
            if hasattr(batch, "_fields")
            else type(batch)(entries.values())
        )
    result = copy.copy(batch)
    for name, value in entries.items():
        object.__setattr__(result, name, value)  # may be frozen
    return result


def _mapping(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the batch's type with these items; of one that cannot be changed, a dict."""
    if not isinstance(batch, MutableMapping):
        return items
    result = copy.copy(batch)
    result.update(items)
    return result


def leaves(batch: Any, is_leaf: Callable[[Any], bool] = is_data) -> list[tuple[Path, Any]]:
    """The tensors and arrays of a batch, or other leaves, with their paths."""
    pairs: list[tuple[Path, Any]] = []
    mapped(batch, is_leaf, lambda path, leaf: pairs.append((path, leaf)))
    return pairs


def name_of(path: Path) -> str:
    """The name of an entry in specs and messages: "inputs.ids"."""
    return ".".join(map(str, path))


def with_mask(batch: Any, is_leaf: Callable[[Any], bool], mask: Any, key: str) -> Any:
    """The batch with one more entry: under `key` in a mapping, last in a tuple or list, next to a
    bare tensor."""
    if isinstance(batch, Mapping):
        if key in batch:
            raise ValueError(
                f'DataLoader: last="pad" adds a mask under {key!r}, which the batch has already; '
                "rename it"
            )
        return _mapping(batch, {**batch, key: mask})
    if is_leaf(batch):
        return batch, mask
    if type(batch) in (tuple, list):
        return type(batch)((*batch, mask))
    raise TypeError(
        'DataLoader: last="pad" adds a mask to a mapping, a tuple or a list; the batch is a '
        f'{type(batch).__name__}. Let the source give one of these, or use last="drop"'
    )
