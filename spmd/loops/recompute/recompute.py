"""`torch.utils.checkpoint` that saves memory: the inputs of a recomputation are held back until its
gradient arrives.

XLA merges a recomputation with the first computation, or schedules it right behind it; both keep
the values that were to be dropped. An optimization barrier over the inputs and the gradient
prevents it (see `compile.options` for the CPU).
"""

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import jax
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import nn
from torch._ops import OpOverload
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten
from torch.utils.checkpoint import CheckpointError

from ...core import (
    LOCK,
    Meta,
    Patch,
    Storage,
    XlaTensor,
    create,
    ends_at_user_line,
    in_flight,
    points,
    seed,
    storage_of,
    tensor_meta,
    wrap,
)
from ...core.extend import (
    Arrays,
    Draw,
    Interned,
    Layouts,
    OpSpec,
    Value,
    constrain,
    meta_of,
    op_specs,
    reads,
    record_calls,
    stack_rows,
    views,
    walks,
)
from ...mesh.graph_constants import constant_of_graphs
from .checkpoint_policies import Decision, Policy, as_policy, nothing_saveable
from .wrapped import wrapped

Kept = tuple[OpOverload, Any]  # an op and what it returned, each tensor as it was then


class Keep(TorchDispatchMode):
    """The forward pass: saves the values that the policy names, in order; those it offloads, in the
    host's memory."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy = policy
        self.saved_values: list[Kept] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        decision = _decide(self.policy, func, args)
        if decision != "recompute":
            keep = create.TO_HOST if decision == "offload" else same
            self.saved_values.append((func, tree_map_only(torch.Tensor, keep, result)))
        return result


class Recall(TorchDispatchMode):
    """A recomputation, without the saved values: `saved_values`, in the form to be read."""

    def __init__(self, policy: Policy, saved_values: Sequence[Kept]):
        super().__init__()
        self.policy = policy
        self.saved: Iterator[tuple[Any, Any]] = iter(saved_values)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _decide(self.policy, func, args) == "recompute":
            return func(*args, **(kwargs or {}))
        op, values = next(self.saved, ("nothing more", None))
        if op is not func:
            raise CheckpointError(
                f"a recomputation called {func} where the forward pass called {op}, among the ops "
                "that the policy saves; a checkpointed function must call the same ops each time"
            )
        return tree_map_only(torch.Tensor, same, values)


def _decide(policy: Policy, func: OpOverload, args: Sequence[Any]) -> Decision:
    return policy.decide(str(func), args[1] if func is create.CHECKPOINT_NAME else None)


def same(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a new tensor of the value that this one has now, whatever is written into it
    later."""
    if not isinstance(tensor, XlaTensor):
        return tensor.detach().clone()
    with LOCK:
        value: Any = views.read(tensor)
        storage = Storage(value, tensor_meta(tensor))
        if walks.is_unpadded(value):
            storage.settle_unpadded(value, storage_of(tensor).home)
        return wrap(tensor_meta(tensor), storage)


@dataclass(eq=False)
class Recomputation:
    """The checkpointed function: its first call is the forward pass, each later one a recomputation
    on held values.

    It draws the forward pass's random numbers again, where `same_draws`; torch does so only where a
    positional argument is on the device, and not where another thread has drawn in between. form:
    the structure of the function's arguments, where it is called with their flat values.
    """

    function: Callable[..., Any]
    same_draws: bool
    policy: Policy = nothing_saveable
    form: TreeSpec | None = None
    saved_values: list[Kept] = field(default_factory=list)  # of the forward pass
    storage: Any = None  # the values that torch's own selective checkpointing saves of it
    draws: list[Draw] | None = None  # the draws of the forward pass
    # the run of the engine and of the graph that made the gradients
    moment: tuple[int, int] | None = None
    gradients: dict[int, Value] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        keeps = bool(self.policy.rules)
        if self.draws is None:
            keep = Keep(self.policy)
            self.saved_values = keep.saved_values
            with seed.noted() as self.draws, keep if keeps else contextlib.nullcontext():
                return self._call(self.function, args, kwargs)
        captured = _captured(self.function)
        cached = [wrapper for wrapper in tree_flatten(self.storage)[0] if _is_cached(wrapper)]
        values = [wrapper.val for wrapper in cached]
        args, kwargs, captured, saved_values, values = self._hold(
            (args, kwargs, captured, self.saved_values, values)
        )
        for wrapper, value in zip(cached, values, strict=True):
            wrapper.val, wrapper.version = value, value._version
        function = _with_captured(self.function, captured) if captured else self.function
        with Recall(self.policy, saved_values) if keeps else contextlib.nullcontext():
            if not self.same_draws:
                return self._call(function, args, kwargs)
            with seed.fork(), seed.repeated(self.draws):
                return self._call(function, args, kwargs)

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.form is not None:
            args, kwargs = tree_unflatten(args, self.form)
        return function(*args, **kwargs)

    def contexts(self, context_fn: Callable[[], Any]) -> Any:
        """Returns a user's contexts, whose second may be torch's own, which recalls the values its
        policy saved."""
        forward, recomputation = context_fn()
        if isinstance(recomputation, torch_checkpoint._CachedTorchDispatchMode):
            self.storage = recomputation.storage
        return forward, recomputation

    def watch(self, outputs: Any) -> None:
        """Notes the gradients of these outputs when they arrive, before the recomputation."""
        this = weakref.ref(self)
        for index, output in enumerate(tree_flatten(outputs)[0]):
            if isinstance(output, XlaTensor) and output.requires_grad:
                output.register_hook(functools.partial(_note, this, index))

    def _hold(self, inputs: Any) -> Any:
        tensors = list(
            dict.fromkeys(
                value for value in tree_flatten(inputs)[0] if isinstance(value, XlaTensor)
            )
        )
        gradients = (
            self.gradients if self.moment == (record_calls.graph_task(), in_flight.stamp()) else {}
        )
        self.gradients, self.moment = {}, None
        if not tensors:
            return inputs
        delayed_tensors = hold(tensors, [gradients[index] for index in sorted(gradients)])
        return tree_map_only(XlaTensor, lambda tensor: delayed_tensors[tensor], inputs)


def _is_cached(wrapper: Any) -> bool:
    """True if it holds a tensor of the device that is unwritten since: for others torch raises its
    own error."""
    is_wrapper = isinstance(wrapper, torch_checkpoint._VersionWrapper) and isinstance(
        wrapper.val, XlaTensor
    )
    return is_wrapper and wrapper.val._version == wrapper.version


def _captured(function: Callable[..., Any]) -> dict[int, Any]:
    """The tensors in the closure of a plain function, by index."""
    closure = function.__closure__ or () if type(function) is types.FunctionType else ()
    return {index: cell.cell_contents for index, cell in enumerate(closure) if _holds_tensor(cell)}


def _holds_tensor(captured: types.CellType) -> bool:
    """True for a tensor that is no parameter, or a tuple of such."""
    try:
        value = captured.cell_contents
    except ValueError:  # not assigned yet
        return False
    if type(value) is tuple:
        return bool(value) and all(
            isinstance(part, XlaTensor) and not part._is_param for part in value
        )
    return isinstance(value, XlaTensor) and not value._is_param


def _with_captured(function: Any, captured: dict[int, Any]) -> types.FunctionType:
    """Returns the function with other tensors in its closure."""
    closure = list(function.__closure__ or ())
    for index, tensor in captured.items():
        closure[index] = types.CellType(tensor)
    result = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(closure),
    )
    result.__kwdefaults__ = function.__kwdefaults__
    return result


def _note(recomputation: "weakref.ref[Recomputation]", index: int, gradient: torch.Tensor) -> None:
    """The hook on one output: keeps the value of its gradient, not the tensor, which would stay
    alive with it."""
    owner = recomputation()
    if owner is None or not isinstance(gradient, XlaTensor):
        return
    moment = (record_calls.graph_task(), in_flight.stamp())
    if owner.moment != moment:
        owner.moment, owner.gradients = moment, {}
    with LOCK:
        owner.gradients[index] = views.read(gradient)


class _Through(torch.autograd.Function):
    """A held tensor in place of its original, which gets its gradient."""

    @staticmethod
    def forward(ctx: Any, original: XlaTensor, value: Value) -> XlaTensor:
        return wrap(value.meta, Storage(value, value.meta))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def hold(tensors: list[XlaTensor], gradients: list[Value]) -> dict[XlaTensor, XlaTensor]:
    """Returns tensors of the same values that XLA can neither merge with these nor compute before
    the gradients."""
    # selective checkpointing sees every call of torch by such a mode
    with LOCK, _disable_current_modes():
        key = (
            tuple(tensor_meta(tensor).layout for tensor in tensors),
            tuple(value.meta for value in gradients),
        )
        op = _OP_SPECS.of(key, lambda: _new_op(*key))
        operands = [*(reads.operand(tensor) for tensor in tensors), *gradients]
        values = walks.results(
            record_calls.record_here(op, operands, (), sys._getframe(1), record_calls.graph_task())
        )
    return {
        tensor: _Through.apply(tensor, value)
        if tensor.requires_grad
        else wrap(value.meta, Storage(value, value.meta))
        for tensor, value in zip(tensors, values, strict=True)
    }


def _new_op(metas: tuple[Meta, ...], gradients: tuple[Meta, ...]) -> OpSpec:
    dense = tuple(meta_of(torch.empty_like(meta.make())) for meta in metas)
    return OpSpec.of("spmd.loops.recompute", _Hold(), dense, (*metas, *gradients))


@dataclass(frozen=True, slots=True)
class _Hold(op_specs.Identity):
    """The first operands, one for each result, delayed until the other operands, the gradients, are
    computed."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        results = constrain.wait_for_all(tuple(operands))
        return tuple(constrain.on_device(array) for array in results[: len(op.metas)])


stack_rows.ANY_MEMORY.add(_Hold)  # offloaded values are fetched behind the optimization barrier
_OP_SPECS: Interned[tuple[tuple[Meta, ...], tuple[Meta, ...]], OpSpec] = Interned(4096)


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.cache
    def disabled() -> Callable[..., Any]:
        """The wrapper that torch itself would use; made when first needed, as it imports all of
        torch.compile."""
        return torch._dynamo.disable(original, wrapping=False)

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = [
            value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)
        ]
        if tensors and not any(isinstance(tensor, XlaTensor) for tensor in tensors):
            return disabled()(function, *args, **kwargs)
        if type(function) is not Recomputation:
            function = Recomputation(function, kwargs.get("preserve_rng_state", True))
        if "context_fn" in kwargs:
            kwargs["context_fn"] = functools.partial(function.contexts, kwargs["context_fn"])
        outputs = original(function, *args, **kwargs)
        if torch.is_grad_enabled():
            function.watch(outputs)
        return outputs

    return checkpoint


_F = TypeVar("_F", bound=Callable[..., Any])


@ends_at_user_line
def remat(function: _F, *, policy: Policy | str | None = None) -> _F:
    """Returns the function or module with a forward pass that saves little for backward; the rest
    is recomputed.

    A policy of `spmd.checkpoint_policies` names the values that are saved in addition to the
    inputs: none, the results of products ("dots"), values named by `spmd.checkpoint_name`, on the
    device or in the host's memory. Values and gradients are those of the plain function, its
    dropout included. It is `torch.utils.checkpoint.checkpoint` with `use_reentrant=False` and a
    policy; a module is wrapped as by torch's `checkpoint_wrapper`, so that its state dict and the
    names of its parameters stay, and `functools.partial(spmd.remat, policy=...)` is a
    `checkpoint_wrapper_fn` for torch's `apply_activation_checkpointing`.

    Args:
        function: a module, or a function of any arguments; it must do the same each time.
        policy: a policy, or "everything", "nothing" (also None), "dots", "dots_with_no_batch_dims",
            "offload_dot_with_no_batch_dims".

    Raises TypeError or ValueError for an invalid policy. Source: `jax.remat` (`jax.checkpoint`),
    Chen et al. (arXiv:1604.06174).

    >>> import torch, spmd
    >>> block = spmd.remat(
    ...     torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to("xla"), policy="dots"
    ... )
    >>> block(torch.ones(2, 4, device="xla")).sum().backward()
    >>> wave = spmd.remat(lambda x, scale: (x * scale).sin())
    >>> wave(torch.zeros(3, device="xla"), scale=2.0).tolist()
    [0.0, 0.0, 0.0]
    """
    resolved_policy = as_policy(policy, "remat")
    if isinstance(function, nn.Module):
        return cast(
            _F,
            checkpoint_wrapper(
                function, checkpoint_fn=functools.partial(recomputed, resolved_policy)
            ),
        )
    if not callable(function):
        raise TypeError(f"remat: expected a function or a module, got {type(function).__name__}")

    return cast(_F, wrapped(recomputed, function, resolved_policy))


def recomputed(policy: Policy, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls the function that `remat` returns."""
    if policy.keeps_all:
        return function(*args, **kwargs)
    # torch keeps positional tensors so that a checkpoint around this one need not keep them.
    values, form = tree_flatten((args, kwargs))
    recomputation = Recomputation(function, same_draws=True, policy=policy, form=form)
    return torch_checkpoint.checkpoint(recomputation, *values, use_reentrant=False)


def _join_checkpoint() -> None:
    """Replaces the body of `torch.utils.checkpoint.checkpoint`, also for modules that imported it
    before.

    torch calls the body through an attribute of it, which exists to switch torch.compile off
    inside.
    """
    body = torch_checkpoint.checkpoint.__wrapped__  # type: ignore[attr-defined]
    setattr(body, "__dynamo_disable", _checkpoint(body))


PATCH = Patch(
    "`torch.utils.checkpoint.checkpoint.__wrapped__(function, ...)`",
    "its saving of memory",
    _join_checkpoint,
)
points.AT_FIRST_USE.append(PATCH.apply)
constant_of_graphs(Policy)
