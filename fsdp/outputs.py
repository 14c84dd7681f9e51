"""What modules take and return: the tensors in it, and how they are split over the batch axes."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import spmd


def tensors(output: Any) -> list[torch.Tensor]:
    """Every device tensor of an output: a tensor, tuple, dict, dataclass, nested."""
    if isinstance(output, torch.Tensor):
        return [output] if output.device.type == "xla" else []
    found: list[torch.Tensor] = []
    for leaf in tree_leaves(output):
        if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
            found += tensors([getattr(leaf, field.name) for field in dataclasses.fields(leaf)])
        elif isinstance(leaf, torch.Tensor) and leaf.device.type == "xla":
            found.append(leaf)
    return found


def map_tensors(output: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same form, with the function's result for each tensor; what has none stays the same object."""

    return tree_map(partial(_mapped, function), output)


def cast(output: Any, dtype: torch.dtype | None) -> Any:
    """The same form, with its floating-point tensors in a dtype; None: as they are."""
    if dtype is None:
        return output
    return map_tensors(output, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], leaf: Any) -> Any:
    # Not inside `map_tensors`: a function that calls itself there would be a cycle that keeps what it maps alive.
    if isinstance(leaf, torch.Tensor):
        return function(leaf)
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        parts = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf) if field.init}
        return dataclasses.replace(leaf, **{name: map_tensors(part, function) for name, part in parts.items()})
    return leaf


class BatchSplit:
    """Splits dim 0 of tensors over the batch axes; what they do not divide, vectors and scalars stay as XLA chooses.

    It knows nothing of modules, so that hooks which hold it make no reference cycle that keeps parameters alive.
    """

    def __init__(self, mesh: spmd.Mesh, axes: tuple[str, ...]):
        self.mesh = mesh
        self.axes = axes
        self.ways = math.prod(mesh.shape()[axis] for axis in axes)
        self._specs: dict[int, spmd.PartitionSpec] = {}  # by rank of the tensor

    def rows(self, stack: torch.Tensor) -> None:
        """Splits dim 0 of each row of a stack, where that divides."""
        if stack.dim() >= 2 and stack.shape[1] % self.ways == 0:
            spec = spmd.PartitionSpec(None, self.axes, *(None for _ in range(stack.dim() - 2)))
            spmd.mark_sharding(stack, self.mesh, spec)

    def __call__(self, output: Any) -> None:
        for tensor in tensors(output):
            rank = tensor.dim()
            if rank >= 2 and tensor.shape[0] % self.ways == 0 and tensor.shape[0] > 0:
                spec = self._specs.get(rank)
                if spec is None:
                    spec = self._specs[rank] = spmd.PartitionSpec(self.axes, *(None for _ in range(rank - 1)))
                spmd.mark_sharding(tensor, self.mesh, spec)
