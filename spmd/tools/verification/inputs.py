"""The values that a step starts from, as copies on the CPU, and the user's objects with these values on the device."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ...core import XlaTensor, module_moves
from ...core.extend import Objects, abstract_calls, reached
from ...mesh.mesh import Mesh
from ...mesh.partition_spec import PartitionSpec
from ...rules.applied import moved
from ...tensors.annotate import mark_sharding
from ..planning.layout import refuse_sharded
from .rounding import unit_of

ULPS = 16  # roundings of a neighbour's values, enough that those of its ops are others


class Inputs:
    """The tensors that a step reaches (parameters, buffers, optimizer state, arguments, others), and their values.

    arguments: (args, kwargs) of the step. Raises ValueError for tensors without data, and for models that are sharded.
    """

    def __init__(self, step: Any, arguments: Any):
        self.reachable = Objects.of_step(step, arguments)
        held = [tensor for _, tensor in self.reachable.tensors.values()]
        for root in reached.outermost(self.reachable.of(nn.Module)):
            refuse_sharded(root, "verify", "pass the rules and meshes to it")
        self.arguments = [one for one in tree_leaves(arguments) if isinstance(one, torch.Tensor)]
        owned = [
            tensor
            for module in self.reachable.of(nn.Module)
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        ]
        state = [one for optimizer in self.reachable.of(torch.optim.Optimizer) for one in tree_leaves(optimizer.state)]
        # Numbers on the host, such as an optimizer's count of steps, are no values of the device in a run either.
        others = [
            tensor
            for tensor in (*(one for one in state if isinstance(one, torch.Tensor)), *held)
            if tensor.is_leaf and (tensor.dim() or type(tensor) is XlaTensor)
        ]
        by_id = {id(tensor): tensor for tensor in (*owned, *self.arguments, *others)}
        self.tensors = [tensor for tensor in by_id.values() if tensor.layout is torch.strided and tensor.is_leaf]
        varied = {id(tensor) for tensor in (*owned, *self.arguments)}
        self._varied = [number for number, tensor in enumerate(self.tensors) if id(tensor) in varied]
        for tensor in self.tensors:
            if tensor.is_meta:
                raise ValueError(
                    f"verify: expected tensors with values, got one of shape {tuple(tensor.shape)} on the meta device; "
                    "initialise the model (model.to_empty(device='cpu'), then its parameters) or pass data"
                )
        self.values = [tensor.detach().cpu().clone() for tensor in self.tensors]
        self.gradients = [
            tensor.grad.detach().cpu().clone() if tensor.is_leaf and tensor.grad is not None else None
            for tensor in self.tensors
        ]

    def digest(self) -> str:
        """The SHA-256 of dtypes, shapes and bytes of all values, in the order in which they are reached."""
        digest = hashlib.sha256()
        for value in self.values:
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def near(self, number: int) -> list[torch.Tensor]:
        """The values themselves, for 0, or neighbours: parameters, buffers and arguments moved towards zero by up to
        `ULPS` unit roundoffs, at random, so near that the step has the same condition.

        They are rounded to float32, so that every run in float32 or wider starts from exactly the same numbers.
        """
        generator = torch.Generator().manual_seed(number)
        result = [*self.values]
        for index in self._varied:
            value = result[index]
            if value.is_floating_point() or value.is_complex():
                unit = max(unit_of(value.dtype), unit_of(torch.float32))
                part = torch.rand(value.shape, generator=generator, dtype=torch.float64) * ULPS * unit
                moved_value = cast(value, torch.float64) * (1 - part if number else 1)
                result[index] = cast(moved_value, torch.float32).to(value.dtype)
        return result

    @contextlib.contextmanager
    def on_device(self, values: Sequence[torch.Tensor], dtype: torch.dtype | None) -> Iterator[None]:
        """Gives the user's objects these values on the device for the context. dtype: of floats; None: their own."""
        exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
        roots = reached.outermost(self.reachable.of(nn.Module))
        try:
            for tensor, value, gradient in zip(self.tensors, values, self.gradients, strict=True):
                result = cast(value, dtype).to("xla").requires_grad_(tensor.requires_grad)
                if isinstance(tensor, nn.Parameter):
                    result._is_param = True
                exchanged.append((tensor, result))
                module_moves.exchange(tensor, result)
                module_moves.renew_hooks(tensor)
                if gradient is not None:
                    tensor.grad = cast(gradient, dtype).to("xla")
            for root in roots:
                moved(root)
            yield
        finally:
            for tensor, result in reversed(exchanged):
                module_moves.exchange(tensor, result)
            for root in roots:
                abstract_calls.restore_module(root)

    def shard_arguments(self, mesh: Mesh) -> None:
        """Shards dim 0 of the step's arguments, which are on the device by now, over the first axis of a mesh."""
        for tensor in self.arguments:
            if tensor.dim() and tensor.is_leaf:
                axis = next(iter(mesh.shape()))
                mark_sharding(tensor, mesh, PartitionSpec(axis, *[None] * (tensor.dim() - 1)))


def cast(value: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A value with floats and complex numbers in another precision; other dtypes, and None, leave it as it is."""
    if dtype is None or not (value.is_floating_point() or value.is_complex()):
        return value
    return value.to(dtype.to_complex() if value.is_complex() else dtype)
