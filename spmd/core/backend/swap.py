"""One tensor object takes what another holds, on whichever device: what the moves of modules are made of."""

from collections import OrderedDict
from typing import Any

import torch

from ..lazy.annotate import annotate
from ..lazy.cell import LOCK
from ..lazy.tensor import OURS, XlaTensor

# Of a tensor's attributes, those that say what it holds; the others are its user's, and the hook that its mark left.
_HELD = {*OURS} - {"_pins_grad"}


def swap(tensor: torch.Tensor, made: torch.Tensor) -> None:
    """Gives a tensor what another one holds, on whichever device, and keeps what makes it itself to others.

    torch's own `swap_tensors` refuses tensors that a graph or a weak reference holds, and takes hooks and attributes
    away. What was held goes on in `made`; a graph that has it gives its gradient to `tensor`.
    """
    requires_grad = tensor.requires_grad
    cell: Any = tensor._cell if type(tensor) is XlaTensor and tensor._view is None else None
    before = None if cell is None else cell.sharding
    exchange(tensor, made)
    if type(tensor) is not XlaTensor:
        _unpin(tensor)
    elif before is not None and tensor._cell.sharding is None:
        annotate(tensor, before)
    if cell is not None and cell.reads is not None and type(tensor) is XlaTensor:
        cell.reads.move(cell, tensor._cell)
    _tell_hooks(tensor)
    if requires_grad and made._use_count() > 1:  # type: ignore[attr-defined]
        made._post_accumulate_grad_hooks = OrderedDict({0: _Forward(tensor)})


def exchange(tensor: torch.Tensor, made: torch.Tensor) -> None:
    """Has two tensors hold what the other one held; once more, and all is as before."""
    with LOCK:
        torch._C._swap_tensor_impl(tensor, made)
        tensor.__class__, made.__class__ = made.__class__, tensor.__class__
        taken, given = tensor.__dict__, made.__dict__
        tensor.__dict__ = {n: v for n, v in taken.items() if n not in _HELD} | {n: given[n] for n in _HELD & {*given}}
        made.__dict__ = {name: taken[name] for name in _HELD & {*taken}}


def _tell_hooks(tensor: torch.Tensor) -> None:
    """The hooks are the Python object's; the autograd of what it now holds has yet to learn of them."""
    if tensor._backward_hooks is not None:
        tensor._backward_hooks = tensor._backward_hooks
    if hooks_after(tensor) is not None:
        tensor._post_accumulate_grad_hooks = hooks_after(tensor)


def hooks_after(tensor: Any) -> Any:
    """The hooks that run when a gradient has arrived."""
    return tensor._post_accumulate_grad_hooks


def _unpin(tensor: torch.Tensor) -> None:
    """Off the device no mesh lays a gradient out."""
    pin = tensor.__dict__.pop("_pins_grad", None)
    if pin:
        hooks = hooks_after(tensor)
        for key in [key for key, hook in hooks.items() if hook is pin]:
            del hooks[key]


class _Forward:
    """The hook of a tensor that only an old graph has: its gradient is one of the parameter that it was."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor

    def __call__(self, old: torch.Tensor) -> None:
        tensor = self.tensor
        gradient, old.grad = old.grad, None
        assert gradient is not None
        gradient = gradient.to(tensor.device, tensor.dtype)
        tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient
        for hook in [*(hooks_after(tensor) or {}).values()]:
            hook(tensor)
