"""The values that a checkpoint's policy saves of a forward pass, and their return in place of a recomputation."""

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import CheckpointError

from ...core import LOCK, Storage, XlaTensor, storage_of, tensor_meta, transfer, wrap
from ...core.extend import is_unpadded, record_calls
from .checkpoint_policies import Decision, Policy

Kept = tuple[OpOverload, Any]  # an op and what it returned, each tensor as it was then


class Keep(TorchDispatchMode):
    """The forward pass: saves the values that the policy names, in order; those it offloads, in the host's memory."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy
        self.kept: list[Kept] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        decision = _decide(self.policy, func, args)
        if decision != "recompute":
            keep = transfer.TO_HOST if decision == "offload" else same
            self.kept.append((func, tree_map_only(torch.Tensor, keep, result)))
        return result


class Recall(TorchDispatchMode):
    """A recomputation, without the saved values. kept: those, in the form to be read."""

    def __init__(self, policy: Policy, kept: Sequence[Kept]):
        super().__init__()
        self.policy = policy
        self.kept = iter(kept)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _decide(self.policy, func, args) == "recompute":
            return func(*args, **(kwargs or {}))
        op, values = next(self.kept, (None, None))
        if op is not func:
            was = "nothing more" if op is None else str(op)
            raise CheckpointError(
                f"a recomputation called {func} where the forward pass called {was}, among the ops that the policy "
                "saves; a checkpointed function must call the same ops each time"
            )
        return tree_map_only(torch.Tensor, same, values)


def _decide(policy: Policy, func: OpOverload, args: Sequence[Any]) -> Decision:
    return policy.decide(str(func), args[1] if func is transfer.CHECKPOINT_NAME else None)


def same(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a new tensor of the value that this one has now, whatever is written into it later."""
    if type(tensor) is not XlaTensor:
        return tensor.detach().clone()
    with LOCK:
        value: Any = record_calls.read(tensor)
        storage = Storage(value, tensor_meta(tensor))
        if is_unpadded(value):
            storage.settle_unpadded(value, storage_of(tensor).home)
        return wrap(tensor_meta(tensor), storage)
