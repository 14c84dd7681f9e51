"""Objects among a call's arguments that hold tensors and plain values alone, such as a cache of
keys and values.

They count by their structure and not by their identity: a recording serves the next object of the
same structure, and what the call has written into the tensors of one a replay writes into those of
the other.
"""

import types
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import nn

from ...core import XlaTensor

_PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size)
_EXACT = frozenset(_PLAIN)
_CLOSED = (
    nn.Module,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    torch.optim.Optimizer,
)
_MOST = 4096  # values


class CountedAttribute(NamedTuple):
    """An attribute of an object that a call counts up; of its number, what a call does depends on
    `stage` alone."""

    name: str
    stage: Callable[[Any], Hashable]


# By class, of packages that join this: a sliding cache counts its tokens by a Python number.
COUNTERS: dict[type, CountedAttribute] = {}


class ObjectParts(NamedTuple):
    """key: the classes and plain values of an object and those in it; with the stages of counters.
    tensors: its own, in order. counted: the objects with a counter, and their names and numbers."""

    key: tuple[Hashable, Hashable]
    tensors: list[XlaTensor]
    counted: list[tuple[Any, str, int]]


def parts_of(thing: Any) -> ObjectParts | None:
    """The parts of an object of tensors on xla; None for one that holds anything else, and for no
    object."""
    if isinstance(thing, (*_PLAIN, torch.Tensor)) or not hasattr(thing, "__dict__"):
        return None
    key: list[Any] = []
    tensors: list[XlaTensor] = []
    counted: list[tuple[Any, str, int]] = []
    stages: list[Hashable] = []
    index_of_id: dict[int, int] = {}
    todo = [thing]
    while todo:
        value = todo.pop()
        kind = type(value)
        # Most by their type alone: `isinstance` looks at each of the classes.
        if kind in _EXACT or (kind is not XlaTensor and isinstance(value, _PLAIN)):
            key.append((kind, value))
            continue
        if id(value) in index_of_id:  # the same object again
            key.append(index_of_id[id(value)])
            continue
        index_of_id[id(value)] = len(index_of_id)
        if kind is XlaTensor:
            tensors.append(value)
            key.append(XlaTensor)
            continue
        attributes = getattr(value, "__dict__", None)
        if kind in (list, tuple):
            key.append((kind, len(value)))
            todo += value
        elif kind is dict:
            key.append((dict, *value))
            todo += value.values()
        elif isinstance(attributes, dict) and not isinstance(value, (*_CLOSED, torch.Tensor)):
            counter = COUNTERS.get(kind)
            if counter is not None:
                counted.append((value, counter.name, attributes[counter.name]))
                stages.append(counter.stage(value))
                attributes = {
                    name: item for name, item in attributes.items() if name != counter.name
                }
            key.append((kind, *attributes))
            todo += attributes.values()
        else:
            return None
        if len(key) > _MOST:
            return None
    return ObjectParts((tuple(key), tuple(stages)), tensors, counted) if tensors else None
