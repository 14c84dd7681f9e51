"""`torch.utils.checkpoint` that saves memory: what a recomputation reads is held back until its gradient has arrived.

XLA merges a recomputation with the first computation, or schedules it right behind it; both keep what was to be
dropped. An optimization barrier over what is read and the gradient prevents it (see `compile.options` for the CPU).
"""

import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import torch
import torch.utils.checkpoint as torch_checkpoint
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from .. import seed
from ..ir.graph import Value, results
from ..ir.meta import Meta, meta_of
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..lazy.cell import LOCK, Cell
from ..lazy.reads import operand
from ..lazy.record import graph_task, record_here
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.views import read
from ..pjrt import runs
from ..tables import Interned


class Recomputation:
    """The checkpointed function: its first call is the forward pass, each later one a recomputation on held values.

    It draws the forward pass's random numbers again, where `same_draws`; torch sees to that only where a positional
    argument is on the device, and not where another thread has drawn between them.
    """

    def __init__(self, function: Callable[..., Any], same_draws: bool):
        self.function = function
        self.same_draws = same_draws
        self.draws: list[seed.Draw] | None = None  # what the forward pass drew
        self.moment: tuple[int, int] | None = (
            None  # the run of the engine, and of the graph, that the gradients are from
        )
        self.gradients: dict[int, Value] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.draws is None:
            with seed.noted() as self.draws:
                return self.function(*args, **kwargs)
        captured = _captured(self.function)
        args, kwargs, captured = self._hold((args, kwargs, captured))
        function = _with_captured(self.function, captured) if captured else self.function
        if not self.same_draws:
            return function(*args, **kwargs)
        with seed.fork(), seed.repeated(self.draws):
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
        held = hold(list(dict.fromkeys(given)), [known[index] for index in sorted(known)])
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

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return tuple(jax.lax.optimization_barrier(tuple(operands)))[: len(op.metas)]


_ENTRIES: Interned[tuple[tuple[Meta, ...], tuple[Meta, ...]], Entry] = Interned(4096)


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    disabled: list[Callable[..., Any]] = []  # what torch would have put in our place, made when first needed

    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if tensors and not any(type(tensor) is XlaTensor for tensor in tensors):
            if not disabled:
                disabled.append(torch._dynamo.disable(original, wrapping=False))
            return disabled[0](function, *args, **kwargs)
        recomputation = Recomputation(function, kwargs.get("preserve_rng_state", True))
        outputs = original(recomputation, *args, **kwargs)
        if torch.is_grad_enabled():
            recomputation.watch(outputs)
        return outputs

    return checkpoint


def join_checkpoint() -> None:
    """Puts this in the place of `torch.utils.checkpoint.checkpoint`'s body, also for those who imported it before.

    torch calls the body through an attribute of it, which is there for switching torch.compile off inside.
    """
    body = torch_checkpoint.checkpoint.__wrapped__  # type: ignore[attr-defined]
    setattr(body, "__dynamo_disable", _checkpoint(body))
