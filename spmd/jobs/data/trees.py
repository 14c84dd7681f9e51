"""Batches as trees: mappings, sequences and dataclasses with tensors and arrays inside."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ...core import dtypes

Path = tuple[Any, ...]  # keys, positions and field names from the batch to an entry


def is_data(value: Any) -> bool:
    """True for a tensor and for a numpy array of numbers."""
    return isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype in dtypes.NUMPY_TO_TORCH)


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
    """Returns the batch with `function(path, entry)` for each entry, in new containers of the same types.

    All other values are the same objects, containers without an entry included. outer: the objects around the batch, by
    their ids: one that holds itself is not entered twice.
    """
    around = outer | {id(batch)}

    def inside(key: Any, value: Any) -> Any:
        return mapped(value, is_leaf, function, (*path, key), around)

    if is_leaf(batch):
        return function(path, batch)
    if isinstance(batch, Mapping):
        items = {key: inside(key, value) for key, value in batch.items()}
        return batch if all(items[key] is value for key, value in batch.items()) else _mapping(batch, items)
    if isinstance(batch, (tuple, list)):
        inner = [inside(position, value) for position, value in enumerate(batch)]
        if all(one is other for one, other in zip(inner, batch, strict=True)):
            return batch
        return type(batch)(*inner) if hasattr(batch, "_fields") else type(batch)(inner)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        result = copy.copy(batch)
        for field in dataclasses.fields(batch):
            object.__setattr__(result, field.name, inside(field.name, getattr(batch, field.name)))  # may be frozen
        return result
    if isinstance(batch, (set, frozenset)):
        items_of_set = {item: inside(item, item) for item in batch}
        return batch if all(item is new for item, new in items_of_set.items()) else type(batch)(items_of_set.values())
    if (
        hasattr(batch, "__dict__")
        and not callable(batch)
        and not isinstance(batch, ModuleType)
        and id(batch) not in outer
    ):
        fields = {name: inside(name, value) for name, value in vars(batch).items()}
        if any(fields[name] is not value for name, value in vars(batch).items()):
            twin = copy.copy(batch)
            twin.__dict__.update(fields)
            return twin
    return batch


def _mapping(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the batch's type with these items; of one that cannot be changed, a dict."""
    if not isinstance(batch, MutableMapping):
        return items
    result = copy.copy(batch)
    result.update(items)
    return result


def leaves(batch: Any) -> Iterator[tuple[Path, Any]]:
    """The tensors and arrays of a batch, with their paths."""
    pairs: list[tuple[Path, Any]] = []
    mapped(batch, is_data, lambda path, leaf: pairs.append((path, leaf)))
    return iter(pairs)


def name_of(path: Path) -> str:
    """The name of an entry in specs and messages: "inputs.ids"."""
    return ".".join(map(str, path))


def with_mask(batch: Any, is_leaf: Callable[[Any], bool], mask: Any, key: str) -> Any:
    """The batch with one more entry: under `key` in a mapping, last in a tuple or list, next to a bare tensor."""
    if isinstance(batch, Mapping):
        if key in batch:
            raise ValueError(
                f'DataLoader: last="pad" adds a mask under {key!r}, which the batch has already; rename it'
            )
        return _mapping(batch, {**batch, key: mask})
    if is_leaf(batch):
        return batch, mask
    if type(batch) in (tuple, list):
        return type(batch)((*batch, mask))
    raise TypeError(
        f'DataLoader: last="pad" adds a mask to a mapping, a tuple or a list; the batch is a {type(batch).__name__}. '
        'Let the source give one of these, or use last="drop"'
    )
