"""Objects of tensors that torch's pytree does not know, as results of a segment: dataclasses, and
caches of keys and values."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node, tree_map

from ..replay.argument_objects import parts_of


class _Place:
    """A place in the copy of an object, in which a tensor goes."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """An object whose tensors are leaves of a tree; a tree of other tensors has a copy of it."""

    tensors: Sequence[torch.Tensor]
    form: Any
    places: list[_Place]


def opened(tree: Any) -> Any:
    """The tree with the tensors of objects as leaves."""
    return tree_map(_opened, tree)


def _opened(leaf: Any) -> Any:
    parts = parts_of(leaf)
    if parts is None:
        return leaf
    places = [_Place() for _ in parts.tensors]
    in_place = {id(tensor): place for tensor, place in zip(parts.tensors, places, strict=True)}
    return _Opened(parts.tensors, copy.deepcopy(leaf, in_place), places)


def _closed(tensors: Any, context: Any) -> Any:
    form, places = context
    return copy.deepcopy(form, {id(x): tensor for x, tensor in zip(places, tensors, strict=True)})


register_pytree_node(_Opened, lambda x: ([*x.tensors], (x.form, x.places)), _closed)
