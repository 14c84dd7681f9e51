"""Inputs and outputs of modules: what is in nested tuples, lists, dicts and dataclasses."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
from torch.utils._pytree import tree_leaves, tree_map

_T = TypeVar("_T")


def leaves(structure: object) -> Iterator[object]:
    """Yields the values in a structure. torch's pytrees do not look into dataclasses, which models
    return as outputs."""
    for value in tree_leaves(structure):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from leaves([getattr(value, field.name) for field in dataclasses.fields(value)])
        else:
            yield value


def map_tensors(structure: _T, function: Callable[[torch.Tensor], torch.Tensor]) -> _T:
    """Applies a function to each tensor of a structure; other leaves stay the same objects."""
    result: _T = tree_map(partial(_mapped, function), structure)
    return result


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: object) -> object:
    """`map_tensors` for one leaf of the structure: a tensor, a dataclass or another value."""
    # Not inside `map_tensors`: a closure that calls itself would be a reference cycle that keeps
    # the tensors alive.
    if isinstance(value, torch.Tensor):
        return function(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(
            value, **{name: map_tensors(part, function) for name, part in parts.items()}
        )
    return value
