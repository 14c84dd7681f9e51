"""What a checkpoint's policy keeps of a forward pass, and gives the recomputation for what it would make again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.checkpoint import CheckpointError

from ..checkpoint_policies import Decision, Policy
from ..ir.graph import is_shown
from ..lazy.cell import LOCK, Cell
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.views import read
from ..ops.offload import CHECKPOINT_NAME, TO_HOST


@dataclass(frozen=True, slots=True)
class Kept:
    """The results of one op: its tensors, each as it was then, and what it returned around them."""

    op: OpOverload
    tensors: list[torch.Tensor]
    form: TreeSpec
    is_offloaded: bool


class Keep(TorchDispatchMode):
    """The forward pass: keeps what the policy says, in order; what it offloads, in the host's memory."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy
        self.kept: list[Kept] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        decision = _decide(self.policy, func, args)
        if decision != "recompute":
            tensors, form = tree_flatten(made)
            is_offloaded = decision == "offload"
            kept = [TO_HOST(tensor) if is_offloaded else same(tensor) for tensor in tensors]
            self.kept.append(Kept(func, kept, form, is_offloaded))
        return made


class Recall(TorchDispatchMode):
    """A recomputation: what was kept is not made again. tensors: those of `kept`, in order, as they are to be read."""

    def __init__(self, policy: Policy, kept: Sequence[Kept], tensors: Sequence[torch.Tensor]):
        super().__init__()
        self.policy = policy
        self.kept = iter(kept)
        self.tensors = iter(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _decide(self.policy, func, args) == "recompute":
            return func(*args, **(kwargs or {}))
        kept = next(self.kept, None)
        if kept is None or kept.op is not func:
            was = "nothing more" if kept is None else str(kept.op)
            raise CheckpointError(
                f"a recomputation called {func} where the forward pass called {was}, of what the policy keeps; a "
                "checkpointed function must call the same ops each time"
            )
        return tree_unflatten([same(next(self.tensors)) for _ in kept.tensors], kept.form)


def _decide(policy: Policy, func: OpOverload, args: Sequence[Any]) -> Decision:
    return policy.decide(str(func), args[1] if func is CHECKPOINT_NAME else None)


def same(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor of the value that this one has now, whatever is written into it later."""
    if type(tensor) is not XlaTensor:
        return tensor.detach().clone()
    with LOCK:
        value = read(tensor)
        cell = Cell(value, tensor._meta)
        if is_shown(value):
            cell.rest(value, tensor._cell.home)
        return wrap(tensor._meta, cell)
