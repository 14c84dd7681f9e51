"""`torch.utils.checkpoint` that saves memory: what a recomputation reads is held back until its gradient has arrived.

XLA merges a recomputation with the first computation, or schedules it right behind it; both keep what was to be
dropped. An optimization barrier over what is read and the gradient prevents it (see `compile.options` for the CPU).
"""

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from .. import seed
from ..checkpoint_policies import Policy, as_policy, nothing_saveable
from ..ir.graph import Value, results
from ..ir.meta import Meta, meta_of
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..lazy.cell import LOCK, Cell
from ..lazy.reads import operand
from ..lazy.record import graph_task, record_here
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.views import read
from ..pjrt import runs
from ..sharding.constrain import on_device
from ..tables import Interned
from .kept import Keep, Kept, Recall


class Recomputation:
    """The checkpointed function: its first call is the forward pass, each later one a recomputation on held values.

    It draws the forward pass's random numbers again, where `same_draws`; torch sees to that only where a positional
    argument is on the device, and not where another thread has drawn between them. form: what the function takes, where
    it is called with the leaves of that.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        same_draws: bool,
        policy: Policy = nothing_saveable,
        form: TreeSpec | None = None,
    ):
        self.function = function
        self.same_draws = same_draws
        self.policy, self.form = policy, form
        self.kept: list[Kept] = []  # of the forward pass
        self.draws: list[seed.Draw] | None = None  # what the forward pass drew
        self.moment: tuple[int, int] | None = (
            None  # the run of the engine, and of the graph, that the gradients are from
        )
        self.gradients: dict[int, Value] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        keeps = bool(self.policy.rules)
        if self.draws is None:
            keep = Keep(self.policy)
            self.kept = keep.kept
            with seed.noted() as self.draws, keep if keeps else contextlib.nullcontext():
                return self._call(self.function, args, kwargs)
        captured = _captured(self.function)
        args, kwargs, captured, kept = self._hold((args, kwargs, captured, [kept.tensors for kept in self.kept]))
        function = _with_captured(self.function, captured) if captured else self.function
        recall = Recall(self.policy, self.kept, tree_leaves(kept)) if keeps else contextlib.nullcontext()
        with recall:
            if not self.same_draws:
                return self._call(function, args, kwargs)
            with seed.fork(), seed.repeated(self.draws):
                return self._call(function, args, kwargs)

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.form is not None:
            args, kwargs = tree_unflatten(args, self.form)
        return function(*args, **kwargs)

    def watch(self, outputs: Any) -> None:
        """Learns the gradients of these outputs when they arrive, before anything is recomputed."""
        this = weakref.ref(self)
        for index, output in enumerate(tree_leaves(outputs)):
            if type(output) is XlaTensor and output.requires_grad:
                output.register_hook(_Note(this, index))

    def _hold(self, inputs: Any) -> Any:
        given = [leaf for leaf in tree_leaves(inputs) if type(leaf) is XlaTensor]
        known = self.gradients if self.moment == (graph_task(), runs.stamp()) else {}
        self.gradients, self.moment = {}, None
        if not given:
            return inputs
        given = list(dict.fromkeys(given))
        held = hold(given, [known[index] for index in sorted(known)])
        return tree_map_only(XlaTensor, lambda tensor: held[tensor], inputs)


def _captured(function: Callable[..., Any]) -> dict[int, XlaTensor]:
    """The tensors that a plain function reads from around it, by place."""
    cells = function.__closure__ or () if type(function) is types.FunctionType else ()
    return {place: cell.cell_contents for place, cell in enumerate(cells) if _holds_tensor(cell)}


def _holds_tensor(cell: types.CellType) -> bool:
    try:
        return type(cell.cell_contents) is XlaTensor and not cell.cell_contents._is_param
    except ValueError:  # not assigned yet
        return False


def _with_captured(function: Any, captured: dict[int, XlaTensor]) -> types.FunctionType:
    """The function with other tensors around it."""
    cells = list(function.__closure__ or ())
    for place, tensor in captured.items():
        cells[place] = types.CellType(tensor)
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class _Note:
    """The hook on one output: keeps its gradient's value, not the tensor, which the barrier would then keep too."""

    def __init__(self, owner: "weakref.ref[Recomputation]", index: int):
        self.owner = owner
        self.index = index

    def __call__(self, gradient: torch.Tensor) -> None:
        owner = self.owner()
        if owner is None or type(gradient) is not XlaTensor:
            return
        moment = (graph_task(), runs.stamp())
        if owner.moment != moment:
            owner.moment, owner.gradients = moment, {}
        with LOCK:
            owner.gradients[self.index] = read(gradient)


class _Through(torch.autograd.Function):
    """A held tensor stands for its original, to which its gradient belongs."""

    @staticmethod
    def forward(ctx: Any, original: XlaTensor, value: Value) -> XlaTensor:
        return wrap(value.meta, Cell(value, value.meta))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def hold(tensors: list[XlaTensor], gradients: list[Value]) -> dict[XlaTensor, XlaTensor]:
    """Tensors of the same values that XLA can neither merge with the originals nor compute before the gradients."""
    with LOCK, _disable_current_modes():  # selective checkpointing watches every call of torch's by such a mode
        entry = _entry(tuple(tensor._meta.layout for tensor in tensors), tuple(value.meta for value in gradients))
        operands = [*(operand(tensor) for tensor in tensors), *gradients]
        values = results(record_here(entry, operands, (), sys._getframe(1), graph_task()))
    return {
        tensor: _Through.apply(tensor, value) if tensor.requires_grad else wrap(value.meta, Cell(value, value.meta))
        for tensor, value in zip(tensors, values, strict=True)
    }


def _entry(metas: tuple[Meta, ...], gradients: tuple[Meta, ...]) -> Entry:
    key = (metas, gradients)
    return _ENTRIES.get(key) or _ENTRIES.of(key, lambda: _new_entry(metas, gradients))


def _new_entry(metas: tuple[Meta, ...], gradients: tuple[Meta, ...]) -> Entry:
    dense = tuple(meta_of(torch.empty_like(meta.make())) for meta in metas)
    return Entry.of("spmd.recompute", _Hold(), dense, (*metas, *gradients))


@dataclass(frozen=True, slots=True)
class _Hold(Lowering):
    """The first operands, a value for each result, not before the others, the gradients, are there."""

    @property
    def any_memory(self) -> bool:
        return True  # what was offloaded is fetched behind the barrier

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        held = jax.lax.optimization_barrier(tuple(operands))
        return tuple(on_device(array) for array in held[: len(op.metas)])


_ENTRIES: Interned[tuple[tuple[Meta, ...], tuple[Meta, ...]], Entry] = Interned(4096)


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    disabled: list[Callable[..., Any]] = []  # what torch would have put in our place, made when first needed

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if tensors and not any(type(tensor) is XlaTensor for tensor in tensors):
            if not disabled:
                disabled.append(torch._dynamo.disable(original, wrapping=False))
            return disabled[0](function, *args, **kwargs)
        recomputation = (
            function
            if type(function) is Recomputation
            else Recomputation(function, kwargs.get("preserve_rng_state", True))
        )
        outputs = original(recomputation, *args, **kwargs)
        if torch.is_grad_enabled():
            recomputation.watch(outputs)
        return outputs

    return checkpoint


_F = TypeVar("_F", bound=Callable[..., Any])


def remat(function: _F, *, policy: Policy | str | None = None) -> _F:
    """The same function or module, whose forward pass keeps little for the backward pass: the rest is computed again.

    What is kept besides the inputs is said by a policy of `spmd.checkpoint_policies`: nothing, the results of products
    ("dots"), values named by `spmd.checkpoint_name`, on the device or in the host's memory. Values and gradients are
    those of the plain function, its dropout included. It is `torch.utils.checkpoint.checkpoint(use_reentrant=False)`
    with a policy; a module is wrapped as by torch's `checkpoint_wrapper`, so that its state dict and the names of its
    parameters stay, and `functools.partial(spmd.remat, policy=...)` is a `checkpoint_wrapper_fn` for torch's
    `apply_activation_checkpointing`.

    Args:
        function: a module, or a function of anything; it must do the same each time.
        policy: a policy, or "everything", "nothing" (also None), "dots", "dots_with_no_batch_dims".

    Raises TypeError or ValueError for what is no policy. Source: `jax.remat` (`jax.checkpoint`), Chen et al.
    (arXiv:1604.06174).

    >>> import torch, spmd
    >>> block = spmd.remat(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).to("xla"), policy="dots")
    >>> block(torch.ones(2, 4, device="xla")).sum().backward()
    >>> wave = spmd.remat(lambda x, scale: (x * scale).sin())
    >>> wave(torch.zeros(3, device="xla"), scale=2.0).tolist()
    [0.0, 0.0, 0.0]
    """
    chosen = as_policy(policy, "remat")
    if isinstance(function, nn.Module):
        return cast(_F, checkpoint_wrapper(function, checkpoint_fn=functools.partial(_recomputed, chosen)))
    if not callable(function):
        raise TypeError(f"remat: expected a function or a module, got {type(function).__name__}")

    @functools.wraps(function)
    def recomputed(*args: Any, **kwargs: Any) -> Any:
        return _recomputed(chosen, function, *args, **kwargs)

    return cast(_F, recomputed)


def _recomputed(policy: Policy, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    if policy.keeps_all:
        return function(*args, **kwargs)
    # torch keeps positional tensors so that a checkpoint around this one need not keep them.
    leaves, form = tree_flatten((args, kwargs))
    recomputation = Recomputation(function, same_draws=True, policy=policy, form=form)
    return torch_checkpoint.checkpoint(recomputation, *leaves, use_reentrant=False)


def join_checkpoint() -> None:
    """Puts this in the place of `torch.utils.checkpoint.checkpoint`'s body, also for those who imported it before.

    torch calls the body through an attribute of it, which is there for switching torch.compile off inside.
    """
    body = torch_checkpoint.checkpoint.__wrapped__  # type: ignore[attr-defined]
    setattr(body, "__dynamo_disable", _checkpoint(body))
