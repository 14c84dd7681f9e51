"""State of optimizers that follows a mark of its parameter: moments, momentum and gradients made
before the mark."""

# Why optimizers are known: a parameter does not refer to its state, and state that keeps its first
# layout is gathered and cut again in every step, without a word.

import math
import weakref
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from ..record.annotations import annotate, current_sharding
from ..record.tensor import XlaTensor
from ..sharding.value import Sharding

_OPTIMIZERS: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()


def know_optimizer(
    original: Callable[..., None], self: torch.optim.Optimizer, *args: object, **kwargs: object
) -> None:
    """Runs before `Optimizer.__init__` and before `__setstate__`, which copies and unpickled
    optimizers call: notes the optimizer."""
    _OPTIMIZERS.add(self)
    original(self, *args, **kwargs)


def shard_state(parameter: XlaTensor, sharding: Sharding) -> None:
    """Shards the gradient and the optimizers' state of a parameter's shape like the parameter, in
    their own memory.

    State that would then take more of a device's memory stays as it is: ZeRO's, and that of
    parameters that are unsharded for a while.
    """
    if not parameter.is_leaf:
        return
    state = [
        optimizer.state[parameter]
        for optimizer in list(_OPTIMIZERS)
        if parameter in optimizer.state
    ]
    rank, size = parameter.dim(), math.prod(sharding.shard_shape(tuple(parameter.shape)))
    for value in (parameter.grad, *tree_leaves(state)):
        if (
            type(value) is not XlaTensor
            or value._view is not None
            or value.shape != parameter.shape
        ):
            continue
        present = current_sharding(value) or sharding.replicated()
        is_smaller = size <= math.prod(present.shard_shape(tuple(value.shape)))
        if present.devices != sharding.devices or (
            is_smaller and present.tiles(rank) != sharding.tiles(rank)
        ):
            annotate(value, sharding.with_spec(sharding.spec, present.memory))
