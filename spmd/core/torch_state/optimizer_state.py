"""State of optimizers that follows a mark of its parameter: moments, momentum and gradients made before the mark."""

# Why optimizers are known: a parameter does not refer to its state, and state that keeps its first layout is gathered
# and cut again in every step, without a word.

import math
import weakref
from collections.abc import Callable

import torch
from torch.utils._pytree import tree_leaves

from ..record.annotations import annotate, current_sharding
from ..record.tensor import XlaTensor
from ..sharding.value import DEVICE, Sharding

_OPTIMIZERS: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()


def know_optimizer(original: Callable[..., None], self: torch.optim.Optimizer, *args: object, **kwargs: object) -> None:
    """`Optimizer.__init__` and `__setstate__`, of a copy or an unpickled one."""
    _OPTIMIZERS.add(self)
    original(self, *args, **kwargs)


def shard_state(parameter: XlaTensor, sharding: Sharding) -> None:
    """Shards the gradient and the optimizers' state of a parameter's shape like the parameter, in their own memory.

    State of which a device would hold more then stays: ZeRO's, and that of parameters that are unsharded for a while.
    """
    if not (parameter.is_leaf and parameter.requires_grad):
        return
    state = [optimizer.state[parameter] for optimizer in list(_OPTIMIZERS) if parameter in optimizer.state]
    for value in (parameter.grad, *tree_leaves(state)):
        if type(value) is XlaTensor and value._view is None and value.shape == parameter.shape:
            present = current_sharding(value)
            if present is None or _is_better(tuple(value.shape), present, sharding):
                annotate(value, sharding.with_spec(sharding.spec, DEVICE if present is None else present.memory))


def _is_better(shape: tuple[int, ...], present: Sharding, new: Sharding) -> bool:
    """True for another layout whose shards are not larger, and for one on other devices."""
    if present.devices != new.devices:
        return True
    sizes = [math.prod(sharding.shard_shape(shape)) for sharding in (new, present)]
    return sizes[0] <= sizes[1] and present.tiles(len(shape)) != new.tiles(len(shape))
