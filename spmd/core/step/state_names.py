"""The names and roles of the tensors that a step reaches."""

from typing import NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..graph.source import plain_name
from ..record.storage import Storage
from ..record.tensor import XlaTensor, wrap
from .objects import Objects, outermost


class Named(NamedTuple):
    """A tensor of a step. role: "parameter", "buffer", "optimizer state", "gradient" or "state"
    (any other tensor)."""

    name: str
    role: str
    tensor: torch.Tensor


class StateNames:
    """The tensors that a step reaches, each storage once: a module's by their paths in it, without
    a wrapper of one `module`; those of an optimizer as `optimizer.<parameter>.<key>`."""

    def __init__(self, reachable: Objects):
        self.named: dict[Storage, Named] = {}
        self._names: set[str] = set()
        for root in outermost(reachable.of(nn.Module)):
            for path, module in root.named_modules():
                # Tied weights have the name of their first place, as in a state dict.
                prefix = plain_name(root, path)
                for role, tensors in (
                    ("parameter", module._parameters),
                    ("buffer", module._buffers),
                ):
                    for name, tensor in tensors.items():
                        self._add(f"{prefix}.{name}".lstrip("."), role, tensor)
        for optimizer in reachable.of(torch.optim.Optimizer):
            self._add_optimizer(optimizer)
        reached_tensors = [tensor for _, tensor in reachable.tensors.values()]
        for tensor in reached_tensors:
            if tensor.is_leaf and tensor.grad is not None and self._name_of(tensor):
                self._add(f"{self._name_of(tensor)}.grad", "gradient", tensor.grad)
        for tensor in reached_tensors:
            self._add(f"state.{len(self.named)}", "state", tensor)

    def _add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Names the tensors of an optimizer's groups and state."""
        for number, group in enumerate(optimizer.param_groups):
            # Parameters of modules have their names already.
            for tensor in group["params"]:
                self._add(f"parameter.{len(self.named)}", "parameter", tensor)
            for key, value in group.items():  # a learning rate
                self._add(f"optimizer.groups.{number}.{key}", "optimizer state", value)
        for parameter, state in optimizer.state.items():
            for key, value in state.items() if isinstance(state, dict) else ():
                for tensor in tree_leaves(value):
                    self._add(
                        f"optimizer.{self._name_of(parameter)}.{key}", "optimizer state", tensor
                    )

    def _add(self, name: str, role: str, tensor: object) -> None:
        """Names a tensor's storage, unless it has a name already."""
        if isinstance(tensor, XlaTensor) and tensor._storage not in self.named:
            unique, number = name, 1
            # Two models of one step may have the same paths.
            while unique in self._names:
                number += 1
                unique = f"{name}.{number}"
            self._names.add(unique)
            storage = tensor._storage
            # A program reads memory as it is stored, and not through a view.
            self.named[storage] = Named(
                unique, role, tensor if tensor._view is None else wrap(storage.meta, storage)
            )

    def _name_of(self, tensor: object) -> str:
        named = self.of(tensor._storage if isinstance(tensor, XlaTensor) else None)
        return "" if named is None else named.name

    def of(self, storage: Storage | None) -> Named | None:
        """The name, role and tensor of a storage; None for one that is not reachable."""
        return None if storage is None else self.named.get(storage)
