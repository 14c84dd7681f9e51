"""Where gradients lie: that of an annotated leaf like it, that of an annotated computed value where it arrives."""

import weakref
from collections import OrderedDict
from functools import partial
from typing import Any

import torch

from .cell import Cell
from .reads import lay_gradient
from .tensor import WHEN_PARAMETER, XlaTensor

_PIN = -1  # a place among the hooks on a gradient that no handle of torch has


def follow(tensor: Any) -> None:
    """From now on the gradient of a marked leaf lies like it; that of a computed value, where it arrives."""
    pin = tensor.__dict__.get("_pins_grad")
    if pin is not None or not tensor.requires_grad:
        return
    if tensor.is_leaf:
        _pin_leaf(tensor)
    elif tensor._view is None:  # how a view lies is not how its cell does, and XLA lays its gradient
        pin = tensor.__dict__["_pins_grad"] = partial(_pin_arriving, tensor._cell.ref)
        if tensor._backward_hooks is None:  # what register_hook does, without a handle, which costs more than the mark
            tensor._backward_hooks = OrderedDict({_PIN: pin})
            tensor.grad_fn._register_hook_dict(tensor)  # else autograd calls none of them
        else:
            tensor._backward_hooks[_PIN] = pin


def _pin_leaf(leaf: Any) -> None:
    leaf.__dict__["_pins_grad"] = pin_gradient
    hooks = leaf._post_accumulate_grad_hooks
    # Module.to() swaps what autograd knows of a parameter, but leaves it this dict: set again, autograd sees it again.
    leaf._post_accumulate_grad_hooks = hooks
    if hooks is None or pin_gradient not in hooks.values():
        leaf.register_post_accumulate_grad_hook(pin_gradient)


def leave(tensor: Any) -> None:
    """From now on a tensor's gradient lies as the partitioner likes, until `follow` after `may_follow`."""
    if tensor.is_leaf:
        hooks = tensor._post_accumulate_grad_hooks or {}
        for key in [key for key, hook in hooks.items() if hook is pin_gradient]:
            del hooks[key]
    elif tensor._backward_hooks is not None:
        tensor._backward_hooks.pop(_PIN, None)
    tensor.__dict__["_pins_grad"] = False


def may_follow(tensor: Any) -> None:
    """Takes back `leave`."""
    if tensor.__dict__.get("_pins_grad") is False:
        del tensor.__dict__["_pins_grad"]


def pin_gradient(parameter: torch.Tensor) -> None:
    """The hook on a leaf: its gradient, which has arrived, lies like it."""
    assert isinstance(parameter, XlaTensor)
    if isinstance(parameter.grad, XlaTensor):
        lay_gradient(parameter._cell, parameter.grad)


def _pin_arriving(ref: "weakref.ref[Cell]", grad: torch.Tensor) -> None:
    cell = ref()
    if cell is not None and isinstance(grad, XlaTensor):
        lay_gradient(cell, grad)


WHEN_PARAMETER.append(follow)
