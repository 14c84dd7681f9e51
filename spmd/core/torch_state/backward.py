"""Backward passes: gradients with the shardings of their tensors; exceptions and Ctrl-C where
torch's C++ allows none.

An annotated leaf tensor's gradient gets the tensor's sharding once it is accumulated, an annotated
computed value's when it arrives.
"""

import contextlib
import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ..base.interrupt import later
from ..base.state import PerThread, held, while_any
from ..graph.graph import origin
from ..graph.source import THREADS, Line, Ring, forward_ring
from ..record import tensor as tensors
from ..record.annotations import annotate
from ..record.storage import Storage
from ..record.tensor import WHEN_PARAMETER, XlaTensor, note_gradients
from ..record.threads import enter_thread
from ..record.views import read

PIN = -1  # the key of our hook on a gradient, which no handle of torch has
# the attribute of a tensor that `follow` and `leave` set: its hook; False: it was left
PINNED = "_pins_grad"


_set_hooks: Any = vars(torch._C.TensorBase)["_backward_hooks"].__set__


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
            _set_hooks(tensor, OrderedDict({PIN: pin}))  # no note: nobody has seen its hooks
            tensor.grad_fn._register_hook_dict(tensor)  # else autograd calls none of them
        else:
            tensor._backward_hooks[PIN] = pin


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
        tensor._backward_hooks.pop(PIN, None)
    tensor.__dict__[PINNED] = False


def unpin(tensor: torch.Tensor) -> bool:
    """Takes the hook of `follow` from a computed value; True if it had one."""
    pins = isinstance(tensor.__dict__.get(PINNED), partial)
    if pins:
        tensor._backward_hooks.pop(PIN, None)  # type: ignore[union-attr]
    return pins


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


class PlayedHook(partial[Any]):
    """A hook of this library's on a leaf tensor: a recorded function has its ops."""


def played_hooks(hooks: Mapping[Any, Any] | None) -> list[PlayedHook]:
    """Those of the hooks on a leaf tensor that a recorded function has."""
    return [hook for hook in hooks.values() if type(hook) is PlayedHook] if hooks else []


class LeafHooks:
    """The hooks on leaf tensors; they are looked at again where one was added or removed.

    are_plain: no hook of a user's sees a gradient. visited: the leaf tensors with a hook behind the
    accumulation that leaves gradients as they are (it has the attribute `plays`).
    """

    def __init__(self, leaves: Sequence[torch.Tensor]):
        self._leaves = leaves
        self._seen: Any = None
        self._assignment: object = None  # the last one when the hooks were read
        self.are_plain, self.visited = True, [*leaves[:0]]

    def look(self) -> bool:
        """Returns `are_plain` of the hooks as they are."""
        if self._assignment is not tensors.last_assignment:
            self._assignment = tensors.last_assignment
            with torch._C.DisableTorchFunctionSubclass():
                self._before = [leaf._backward_hooks for leaf in self._leaves]
                self._behind = [leaf._post_accumulate_grad_hooks for leaf in self._leaves]
            self._boxes = [*filter(None, (*self._before, *self._behind))]
            self._seen = None
        seen = [*map(len, self._boxes)], [*itertools.chain.from_iterable(self._boxes)]
        if seen != self._seen:
            self._seen = seen
            before, behind = self._before, self._behind
            plays = [
                [hasattr(hook, "plays") for hook in (hooks or {}).values()] for hooks in behind
            ]
            self.visited = [*itertools.compress(self._leaves, map(any, plays))]
            self.are_plain = not any(
                hooks and len(hooks) > len(played_hooks(hooks)) for hooks in before
            ) and all(
                len(each) - sum(each) == is_pinned(leaf)
                for leaf, each in zip(self._leaves, plays, strict=True)
            )
        return self.are_plain


@contextlib.contextmanager
def without_hooks(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Context in which gradients of leaf tensors pass no hook: a later accumulation calls them."""
    boxes = [leaf._backward_hooks for leaf in leaves if leaf._backward_hooks]
    hooks = [[*box.items()] for box in boxes]
    for box in boxes:
        box.clear()
    try:
        yield
    finally:
        for box, items in zip(boxes, hooks, strict=True):
            box.update(items)


def adds_plainly(leaf: torch.Tensor) -> bool:
    """True if a leaf tensor's gradient is in the sharding that `pin_gradient` gives."""
    grad, pinned = leaf.grad, is_pinned(leaf)
    return (
        type(grad) is XlaTensor
        and grad._view is None
        and grad._meta is leaf._meta  # type: ignore[attr-defined]
        and grad._storage.sharding is (leaf._storage.sharding if pinned else None)  # type: ignore[attr-defined]
    )


def is_pinned(tensor: torch.Tensor) -> bool:
    """True for a leaf tensor whose gradient gets its sharding."""
    return tensor.__dict__.get(PINNED) is pin_gradient


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
# True while a backward pass of this thread adds to the gradients of all leaf tensors
accumulates = PerThread(False)
# While one leaves out the leaf tensors of recorded calls: what these have decided (see `_ends`)
decided = PerThread[dict[Any, Any] | None](None)
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


# An input of each recorded call that gives its leaf tensors their gradients.
END = torch.zeros((), requires_grad=True)
_AccumulateGrad: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]
_MOST_NODES = 64  # that a walk costs less than it spares


class PlayedCall(NamedTuple):
    """A recorded call that gives its leaf tensors their gradients, as an attribute of its node.

    others: the tensors and nodes at its other inputs. decide: notes where the gradients go; returns
    the leaf tensors that autograd visits in any case, or None where it accumulates.
    """

    leaves: Sequence[torch.Tensor]
    others: Sequence[Any]
    decide: Callable[[dict[Any, Any]], Sequence[torch.Tensor] | None]

    def note(self, node: Any) -> None:
        """Makes it the call of a node."""
        global _has_calls
        node._played, _has_calls = self, True


_has_calls = False


def _ends(roots: Sequence[torch.Tensor], decisions: dict[Any, Any]) -> list[torch.Tensor] | None:
    """The leaf tensors at which a backward pass ends, with `END` in place of those of recorded
    calls: autograd visits none of these then. Empty where it has to; None where it may also add
    gradients of one tensor, so that calls leave them to it. decisions: of the calls."""
    todo: list[Any] = [root.grad_fn for root in roots if root.grad_fn]
    ends: dict[int, torch.Tensor] = {}
    calls: list[PlayedCall] = []
    visited: set[Any] = set()  # holds them: the same node is the same object then
    while todo:
        node = todo.pop()
        if type(node) is _AccumulateGrad:
            node = node.variable
        if isinstance(node, torch.Tensor):
            ends[id(node)] = node
        elif node not in visited:
            visited.add(node)
            call = getattr(node, "_played", None)
            calls += [call] if call else []
            others = call.others if call else [edge[0] for edge in node.next_functions]
            todo += [other for other in others if other is not None]
            if len(visited) > _MOST_NODES:
                return None
    if len(calls) > 1 or ends:
        leaves = {id(leaf) for call in calls for leaf in call.leaves}
        if len(leaves) < sum(len(call.leaves) for call in calls) or not leaves.isdisjoint(ends):
            return None
    for call in calls:
        visits = call.decide(decisions)
        if visits is None:
            return []
        ends.update((id(leaf), leaf) for leaf in visits)
    return [*ends.values(), END] if calls else []


# Called before each backward pass, with its roots, whether it creates a graph, and its inputs.
BEFORE: list[Callable[[Sequence[torch.Tensor], bool, Sequence[Any]], None]] = []


def run_backward(
    engine: Callable[..., object], roots: Sequence[torch.Tensor], *args: object, **kwargs: object
) -> object:
    """Runs autograd's engine. An exception that `_type_in_backward` kept is raised in place of the
    engine's SystemError."""
    enter_thread()
    note_gradients()
    for look in [*BEFORE]:
        look(roots, bool(args[2]), args[3] if len(args) > 3 else ())  # type: ignore[arg-type]
    if torch._C._is_multithreading_enabled():  # by `torch.inference_mode(False)`
        torch.autograd.set_multithreading_enabled(False)
    try:
        # Ctrl-C raised within `_type_in_backward` would abort the process.
        accumulates_all = bool(kwargs.get("accumulate_grad")) and not any(args[3:4])  # inputs
        with (
            held(THREADS, backward=_recorded_in(roots)),
            accumulates.held(accumulates_all),
            later(),
            _guarded(),
        ):
            decisions: dict[Any, Any] = {}
            is_plain = _has_calls and accumulates_all and not args[2]
            ends = _ends(roots, decisions) if is_plain else []
            with (
                decided.held(decisions if ends else None),
                accumulates.held(accumulates_all and ends is not None),
            ):
                return engine(
                    roots, *args[:3], tuple(ends) if ends else args[3], *args[4:], **kwargs
                )
    except SystemError:
        error, _interrupted.value = _interrupted.value, None
        if error is None:
            raise
        raise error from None
