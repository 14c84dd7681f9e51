"""The user's tensors behind the storages of a recorded step: their names and roles."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ...core import Storage, XlaTensor, storage_of, view_of, wrap
from ...core.extend import Objects, reached

Named = tuple[str, str, torch.Tensor]


class StateNames:
    """The names of the tensors that are reachable from a step, each once: a module's as in its state dict, those of an
    optimizer as `optimizer.<parameter>.<key>`."""

    def __init__(self, reachable: Objects):
        self._named: dict[Storage, Named] = {}
        self._taken: set[str] = set()
        for root in reached.outermost(reachable.of(nn.Module)):
            parameters = {id(one) for one in root.parameters()}
            for name, tensor in _tensors_of(root):
                self._add(name, "parameter" if id(tensor) in parameters else "buffer", tensor)
        for optimizer in reachable.of(torch.optim.Optimizer):
            for number, group in enumerate(optimizer.param_groups):
                for key, value in group.items():  # a learning rate
                    self._add(f"optimizer.groups.{number}.{key}", "optimizer state", value)
            for parameter, state in optimizer.state.items():
                for key, tensor in state.items() if isinstance(state, dict) else ():
                    self._add(f"optimizer.{self._name_of(parameter)}.{key}", "optimizer state", tensor)
        for _, tensor in reachable.tensors.values():
            if tensor.is_leaf and tensor.grad is not None and self._name_of(tensor):
                self._add(f"{self._name_of(tensor)}.grad", "gradient", tensor.grad)
        for _, tensor in reachable.tensors.values():
            self._add(f"state.{len(self._named)}", "state", tensor)

    def _add(self, name: str, role: str, tensor: Any) -> None:
        if isinstance(tensor, XlaTensor) and storage_of(tensor) not in self._named:
            unique, number = name, 1
            while unique in self._taken:
                number += 1
                unique = f"{name}.{number}"
            self._taken.add(unique)
            if view_of(tensor) is not None:
                tensor = wrap(storage_of(tensor).meta, storage_of(tensor))
            self._named[storage_of(tensor)] = unique, role, tensor

    def _name_of(self, tensor: Any) -> str:
        named = self.of(storage_of(tensor) if isinstance(tensor, XlaTensor) else None)
        return named[0] if named is not None else ""

    def of(self, storage: Storage | None) -> Named | None:
        """The name, role and tensor of a storage; None for one that is not reachable."""
        return None if storage is None else self._named.get(storage)


def _tensors_of(root: nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    state = root.state_dict(keep_vars=True)
    yield from ((name, value) for name, value in state.items() if isinstance(value, torch.Tensor))
    yield from root.named_parameters()
    yield from root.named_buffers()
