"""Backward passes: gradients with the shardings of their tensors; exceptions and Ctrl-C where
torch's C++ allows none.

An annotated leaf tensor's gradient gets the tensor's sharding once it is accumulated, an annotated
computed value's when it arrives.
"""

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..base.interrupt import later
from ..base.state import PerThread, held, while_any
from ..graph.graph import origin
from ..graph.source import THREADS, Line, Ring, forward_ring
from ..record.annotations import annotate
from ..record.storage import Storage
from ..record.tensor import WHEN_PARAMETER, XlaTensor
from ..record.threads import enter_thread
from ..record.views import read

_PIN = -1  # the key of our hook on a gradient, which no handle of torch has
# the attribute of a tensor that `follow` and `leave` set: its hook; False: it was left
PINNED = "_pins_grad"


def follow(tensor: Any, *, after_leave: bool = False) -> None:
    """Gives later gradients of an annotated tensor its sharding: a leaf tensor's once accumulated,
    a computed value's when it arrives. after_leave: also after `leave`."""
    if after_leave and tensor.__dict__.get(PINNED) is False:
        del tensor.__dict__[PINNED]
    pin = tensor.__dict__.get(PINNED)
    if pin is not None or not tensor.requires_grad:
        return
    if tensor.is_leaf:
        _pin_parameter(tensor)
    elif tensor._view is None:
        # A view gets no hook: its sharding is not its storage's, and XLA chooses its gradient's.
        pin = tensor.__dict__[PINNED] = partial(_pin_arriving, tensor._storage.ref)
        # register_hook without its handle, which costs more than the mark
        if tensor._backward_hooks is None:
            tensor._backward_hooks = OrderedDict({_PIN: pin})
            tensor.grad_fn._register_hook_dict(tensor)  # else autograd calls none of them
        else:
            tensor._backward_hooks[_PIN] = pin


def _pin_parameter(tensor: torch.Tensor) -> None:
    """Adds `pin_gradient` to a leaf tensor, once."""
    tensor.__dict__[PINNED] = pin_gradient
    hooks = tensor._post_accumulate_grad_hooks
    # Module.to() swaps autograd's record of a parameter, but leaves the parameter this dict: set
    # again, autograd sees it again.
    tensor._post_accumulate_grad_hooks = hooks
    if hooks is None or pin_gradient not in hooks.values():
        tensor.register_post_accumulate_grad_hook(pin_gradient)


def leave(tensor: torch.Tensor) -> None:
    """Leaves the sharding of a tensor's gradient to the partitioner, until
    `follow(after_leave=True)`."""
    if tensor.is_leaf:
        hooks = tensor._post_accumulate_grad_hooks or {}
        for key in [key for key, hook in hooks.items() if hook is pin_gradient]:
            del hooks[key]
    elif tensor._backward_hooks is not None:
        tensor._backward_hooks.pop(_PIN, None)
    tensor.__dict__[PINNED] = False


def shard_gradient(storage: Storage, grad: XlaTensor) -> None:
    """Gives a gradient the sharding of the storage that it belongs to, where that is annotated."""
    sharding = storage.sharding
    if sharding is None or grad._storage.sharding is sharding:
        return
    if grad._view is not None and grad.storage_offset() == 0 and grad.is_contiguous():
        # Backward often ends in a view (a transposed product). The gradient that stays is stored
        # itself, not its base.
        grad._storage, grad._view = Storage(read(grad), grad._meta), None
    # Constrained first to the sharding in which ops read the parameter (see `annotate`).
    annotate(grad, sharding, None if storage.reads is None else storage.reads.latest.layout)


def pin_gradient(parameter: torch.Tensor) -> None:
    """The hook on a leaf tensor: gives its gradient, which has been accumulated, the tensor's
    sharding."""
    assert isinstance(parameter, XlaTensor)
    if isinstance(parameter.grad, XlaTensor):
        shard_gradient(parameter._storage, parameter.grad)


def _pin_arriving(ref: "weakref.ref[Storage]", grad: torch.Tensor) -> None:
    """The hook on a computed value: gives an arriving gradient the sharding of the value."""
    storage = ref()
    if storage is not None and isinstance(grad, XlaTensor):
        shard_gradient(storage, grad)


WHEN_PARAMETER.append(follow)


# --- errors ---------------------------------------------------------------------------------------

_TYPE = torch._C._autograd.DeviceType.PrivateUse1
# the exception raised in this thread's backward pass
_interrupted = PerThread[BaseException | None](None)
_probe = ().__len__  # the cheapest call that the interpreter does not specialise


class _Guard(torch._C._acc.DeviceGuard):
    # torch calls this several times an op, and no exception may come out: it runs no bytecode that
    # Ctrl-C could stop.
    type_ = itertools.repeat(_TYPE).__next__  # type: ignore[assignment]  # torch's stub has another type


def _type_in_backward() -> torch._C._autograd.DeviceType:
    """Replaces `_Guard.type_` during a backward pass.

    The engine also calls it from a C++ destructor, while it unwinds from a Python exception (of a
    hook); a return with this exception still set would abort the process. A call of Python made
    with an exception set raises SystemError, whose cause the exception is: there it is found, and
    kept for `run_backward` to raise.
    """
    try:
        _probe()
    except SystemError as error:
        _interrupted.value = error.__cause__
    return _TYPE


GUARD = _Guard()
_guarded = while_any(
    partial(setattr, GUARD, "type_", _type_in_backward), partial(delattr, GUARD, "type_")
)


def _recorded_in(roots: Sequence[torch.Tensor]) -> Ring:
    """The last recorded lines of the thread that recorded the roots of a backward pass."""
    for root in roots:
        if isinstance(root, XlaTensor) and root.grad_fn is not None:
            maker: Any = root._view or origin(root._storage.value)
            line = None if maker is None else Line(maker.code, maker.instruction)
            return forward_ring(root.grad_fn._sequence_nr(), line)
    return THREADS.ring


def run_backward(
    engine: Callable[..., object], roots: Sequence[torch.Tensor], *args: object, **kwargs: object
) -> object:
    """Runs autograd's engine. An exception that `_type_in_backward` kept is raised in place of the
    engine's SystemError."""
    enter_thread()
    if torch._C._is_multithreading_enabled():  # by `torch.inference_mode(False)`
        torch.autograd.set_multithreading_enabled(False)
    try:
        # Ctrl-C raised within `_type_in_backward` would abort the process.
        with held(THREADS, backward=_recorded_in(roots)), later(), _guarded():
            return engine(roots, *args, **kwargs)
    except SystemError:
        error, _interrupted.value = _interrupted.value, None
        if error is None:
            raise
        raise error from None
