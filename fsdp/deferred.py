"""Sums of the gradients of a step's micro-batches: reduced each time (`Each`), or once at the end (`Deferred`)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

import spmd

from .units import unit_of, units_in


@dataclass(frozen=True)
class Once:
    """The axes over which gradients are reduced once (`over`), among those that shard the batch, in their order."""

    mesh: spmd.Mesh
    batch_axes: tuple[str, ...]
    over: tuple[str, ...]

    @property
    def ways(self) -> int:
        """The number of devices among which the batch is divided."""
        return math.prod(self.mesh.shape()[axis] for axis in self.batch_axes)

    @property
    def count(self) -> int:
        """The number of summands of a gradient."""
        return math.prod(self.mesh.shape()[axis] for axis in self.over)


class Each:
    """Gradients that each backward pass inside of `with` adds to `.grad`; what has none at the end gets none."""

    def __init__(self, model: nn.Module):
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._without = [parameter for parameter in trained if parameter.grad is None]
        self._arrived: set[int] = set()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> "Each":
        for parameter in self._without:
            self._hooks.append(parameter.register_post_accumulate_grad_hook(lambda one: self._arrived.add(id(one))))
            parameter.grad = torch.zeros_like(parameter)  # the loop adds to it
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for parameter in self._without:
            if id(parameter) not in self._arrived:
                parameter.grad = None

    def take(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a backward pass as the loop adds it up."""
        return loss

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the losses."""
        return loss


class Deferred:
    """Gradients that are taken from `.grad` after each backward pass, inside of `with`, and added up unreduced: a stack
    of summands a parameter, of which a device has one, in the size of the parameter over the other axes."""

    def __init__(self, caller: str, model: nn.Module, once: Once):
        self.caller, self.once = caller, once
        self.parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def __enter__(self) -> "Deferred":
        self._former = {name: one.grad for name, one in self.parameters.items()}
        self._stacks = {name: self._zeros(one) for name, one in self.parameters.items()}
        self._losses = self._zeros(torch.zeros((), device="xla"))
        self._has_losses = False
        self._arrived: set[str] = set()
        for one in self.parameters.values():
            one.grad = None
        return self

    def __exit__(self, *error: object) -> None:
        for name, parameter in self.parameters.items():
            result, former = parameter.grad, self._former[name]
            parameter.grad = former
            if error[0] is None and result is not None:
                if former is None:
                    parameter.grad = result
                else:
                    former.add_(result)

    def _zeros(self, like: torch.Tensor) -> torch.Tensor:
        dtype = like.dtype if like.dtype.itemsize >= 4 else torch.float32
        stack = torch.zeros(self.once.count, *like.shape, dtype=dtype, device="xla")
        return spmd.mark_sharding(stack, self.once.mesh, spmd.PartitionSpec(self.once.over, *self._spec(like)))

    def _spec(self, like: torch.Tensor) -> spmd.PartitionSpec:
        """The spec of a parameter over the axes that reduce its gradient each time."""
        sharding = spmd.get_sharding(like)
        if sharding is None or sharding.mesh_axes() != self.once.mesh.shape():
            return spmd.PartitionSpec(*(None for _ in like.shape))
        spec = spmd.PartitionSpec(*sharding.partition_spec(like.dim()))
        for axis in self.once.over:
            spec = spec.without(axis)
        return spec

    def take(self, loss: torch.Tensor) -> torch.Tensor:
        """Adds up what a backward pass has left; returns the loss, or zero where it is added up unreduced, too."""
        named = {name: one.grad for name, one in self.parameters.items() if one.grad is not None}
        once = self.once
        *result, of_loss = spmd.unreduced([*named.values(), loss], once.mesh, once.batch_axes, once.over)
        for name, stack in zip(named, result, strict=True):
            if isinstance(stack, NotImplementedError):
                raise NotImplementedError(
                    f"{self.caller}: the gradient of {name} cannot be reduced once over "
                    f"{', '.join(map(repr, once.over))}; {stack}. Pass reduce='each'"
                )
            self._stacks[name].add_(stack)
            self.parameters[name].grad = None
        self._arrived.update(named)
        if isinstance(of_loss, NotImplementedError):
            return loss
        self._has_losses = True
        self._losses.add_(of_loss)
        return torch.zeros_like(loss)

    def reduced(self, loss: torch.Tensor) -> torch.Tensor:
        """Reduces what was added up: gradients into `.grad`; returns the sum of the losses."""
        for name in self._arrived:
            parameter, sharding = self.parameters[name], spmd.get_sharding(self.parameters[name])
            total = self._stacks[name].sum(0).to(parameter.dtype)
            parameter.grad = total if sharding is None else spmd.mark_sharding(total, sharding)
        return loss + self._losses.sum() if self._has_losses else loss


def once_over(caller: str, model: nn.Module, batch: object, reduce: str | Mapping[str, str]) -> Once | None:
    """Returns the axes over which gradients are reduced once, of the argument `reduce`; None: over none."""
    words = reduce.values() if isinstance(reduce, Mapping) else (reduce,)
    if any(word not in ("once", "each") for word in words):
        raise ValueError(
            f"{caller}: expected reduce to be 'each', 'once', or one of these by mesh axis, as {{'dcn': 'once'}}; got "
            f"{reduce!r}"
        )
    if "once" not in words:
        return None
    found = _of_batch(model, batch)
    if found is None:
        raise ValueError(
            f"{caller}: reduce={reduce!r} needs a batch whose dim 0 is sharded over mesh axes; wrap the model with "
            "fsdp, or call spmd.mark_sharding on the batch"
        )
    mesh, axes = found
    wanted = dict(reduce) if isinstance(reduce, Mapping) else dict.fromkeys(axes, reduce)
    for axis in wanted:
        if axis not in axes:
            raise ValueError(
                f"{caller}: reduce={reduce!r} names {axis!r}, but dim 0 of the batch is sharded over "
                f"{', '.join(map(repr, axes))}"
            )
    over = tuple(axis for axis in axes if wanted.get(axis) == "once" and mesh.shape()[axis] > 1)
    return Once(mesh, axes, over) if over else None


def _of_batch(model: nn.Module, batch: object) -> tuple[spmd.Mesh, tuple[str, ...]] | None:
    """The mesh and the axes that shard dim 0 of the batch: those of the model's units, else by its own annotation."""
    root = unit_of(model) or next(iter(units_in(model)), None)
    if root is not None:
        return root.split.mesh, root.split.axes
    for value in tree_leaves(batch):
        sharding = spmd.get_sharding(value) if isinstance(value, torch.Tensor) and value.dim() else None
        axes = None if sharding is None else sharding.partition_spec(value.dim())[0]
        if sharding is not None and axes is not None:
            mesh = spmd.Mesh(sharding.device_ids, sharding.mesh_shape, sharding.axis_names, target=sharding.target)
            return mesh, axes if isinstance(axes, tuple) else (axes,)
    return None
