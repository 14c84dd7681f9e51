"""`spmd.cond`: one of two functions, chosen by a value on the device."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..debug.check import recorded
from ..ir.graph import Region, Value, results, value_name
from ..ir.meta import dense_meta
from ..lazy.reads import next_generation, operand, shard_gradient
from ..lazy.record import graph_task, record_here
from ..lazy.storage import LOCK, SYNC_LOCK, Storage
from ..lazy.tensor import XlaTensor, wrap
from ..lower.region import Branches, region_op
from .capture import Capture
from .scan import expect_functions, on_device
from .varying import as_own

Tensors = list[XlaTensor]


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """`true_fn(*operands) if pred else false_fn(*operands)`, chosen by the program while it runs.

    Both functions run once in Python, and one of them on the device; no value comes to the host. Gradients reach the
    operands and tensors that the functions close over; backward recomputes the branch that was taken. In-place writes
    of a branch to tensors from outside happen where it is taken. Both functions' draws advance the random stream. With
    a Python bool, or without a tensor on xla, it is Python's choice.

    Args:
        pred: a bool tensor of one element. true_fn, false_fn: return pytrees of tensors of the same structure, shapes
            and dtypes. operands: a tuple or list of pytrees.

    Raises ValueError for results that differ, TypeError for a `pred` that is no bool tensor, `BodyError` for a read of
    a value, NotImplementedError for a gradient of the gradient.
    Source: `torch.cond`, `jax.lax.cond`.

    >>> import torch, spmd
    >>> x = torch.tensor([1.0, -2.0]).to("xla")
    >>> spmd.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,)).tolist()
    [-1.0, 2.0]
    """
    expect_functions("cond", true_fn=true_fn, false_fn=false_fn)
    if not isinstance(operands, (tuple, list)):
        raise TypeError(f"spmd.cond: operands must be a tuple or list, got {type(operands).__name__}")
    if isinstance(pred, bool) or not on_device("cond", (pred, operands)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if type(pred) is not XlaTensor or pred.dtype is not torch.bool or pred.numel() != 1:
        shown = f"{pred.dtype} of shape {list(pred.shape)}" if isinstance(pred, torch.Tensor) else repr(pred)
        raise TypeError(f"spmd.cond: pred must be a bool tensor of one element, got {shown}")
    flat, tree = tree_flatten(tuple(operands))
    given = as_own([value for value in flat if type(value) is XlaTensor])
    with SYNC_LOCK, LOCK:
        branches = [_Branch(function, flat, tree) for function in (true_fn, false_fn)]
        choice = _Choice(branches, given)
        made = choice.run(pred)
    recorded()
    return tree_unflatten(made, branches[0].tree)


class _Branch:
    """One function on stand-ins: its results and gradients, and the operands of both."""

    def __init__(self, function: Callable[..., Any], flat: Sequence[Any], tree: Any):
        with Capture("spmd.cond") as capture:
            given = [
                capture.stand_in(
                    dense_meta(value.shape, value.dtype), requires_grad=value.requires_grad and torch.is_grad_enabled()
                )
                if type(value) is XlaTensor
                else value
                for value in flat
            ]
            own = [value for value in given if type(value) is XlaTensor]
            flat_made, self.tree = tree_flatten(function(*tree_unflatten(given, tree)))
            if not all(map(capture.is_unwritten, own)):
                raise NotImplementedError("spmd.cond: a branch writes in place into its operands; make new tensors")
            for value in flat_made:
                if type(value) is not XlaTensor:
                    raise TypeError(f"spmd.cond: a branch must return tensors on xla, got {value!r}")
            self.made: Tensors = flat_made
            self.metas = [dense_meta(tensor.shape, tensor.dtype) for tensor in flat_made]
            self.roots = [operand(tensor) for tensor in flat_made]
            self.written = capture.written()
            self.given = list(capture.given)
            self.has_gradient = [bool(capture.reached(tensor)) for tensor in flat_made]
            self.gradients: dict[Any, Value] = {}
            self.arriving: dict[int, Value] = {}
            self.closed_over: Tensors = []
            if any(self.has_gradient):
                self._differentiate(capture, own)
            wanted = [*self.roots, *(new for _, new in self.written.values())]
            self.constants = capture.outside(wanted, self.given)
            every = [*self.given, *self.arriving.values()]
            self.backward_constants = capture.outside(list(self.gradients.values()), every)
            self.tensors = dict(
                zip(map(value_name, self.backward_constants), capture.tensors(self.backward_constants), strict=True)
            )
        del self.made

    def _differentiate(self, capture: Capture, own: Tensors) -> None:
        """Records the gradients, by the place of an operand, or by a tensor from outside."""
        next_generation()
        chosen = [i for i, has in enumerate(self.has_gradient) if has]
        met = {tensor: None for i in chosen for tensor in capture.reached(self.made[i])}
        wanted: dict[Any, XlaTensor] = {place: tensor for place, tensor in enumerate(own) if tensor in met}
        inside = set(own)
        self.closed_over = [tensor for tensor in met if tensor not in inside]
        if any(tensor._storage in self.written for tensor in self.closed_over):
            raise NotImplementedError("spmd.cond: a branch writes in place into a tensor that requires a gradient")
        wanted |= {tensor: tensor for tensor in self.closed_over}
        tensors = [capture.stand_in(self.metas[i]) for i in chosen]
        self.arriving = {i: tensor._storage.value for i, tensor in zip(chosen, tensors, strict=True)}
        found: Any = torch.autograd.grad(
            [self.made[i] for i in chosen], list(wanted.values()), tensors, allow_unused=True
        )
        with torch.no_grad():
            for (key, tensor), gradient in zip(wanted.items(), found, strict=True):
                if gradient is not None:
                    shard_gradient(tensor._storage, gradient)
                    self.gradients[key] = operand(gradient)


class _Choice:
    """Both branches as one op, and their gradients as another one."""

    def __init__(self, branches: Sequence[_Branch], given: Tensors):
        self.branches, self.given = branches, given
        one, other = branches
        if one.tree != other.tree or one.metas != other.metas:
            raise ValueError(
                f"spmd.cond: the branches must return the same: one returns {one.tree} of {one.metas}, the other "
                f"{other.tree} of {other.metas}"
            )
        self.written = list({storage: None for branch in branches for storage in branch.written})
        self.has_gradient = [a or b for a, b in zip(one.has_gradient, other.has_gradient, strict=True)]
        self.closed_over = list(dict.fromkeys(tensor for branch in branches for tensor in branch.closed_over))
        self.wanted = [
            key for key in (*range(len(given)), *self.closed_over) if any(key in b.gradients for b in branches)
        ]

    def run(self, pred: XlaTensor) -> Tensors:
        if any(self.has_gradient):
            return list(_Apply.apply(self, pred, *self.given, *self.closed_over))
        return self.forward(pred)

    def forward(self, pred: XlaTensor) -> Tensors:
        constants = _union(branch.constants for branch in self.branches)
        kept = _union([storage.value for storage in self.written] for _ in (0,))
        constants = _union((constants, kept))
        regions = []
        for branch in self.branches:
            new = [
                branch.written[storage][1] if storage in branch.written else storage.value for storage in self.written
            ]
            regions.append(Region.of([*branch.roots, *new], [*constants, *branch.given]))
        made = self._record("spmd.cond", regions, [operand(pred), *constants, *map(operand, self.given)])
        count = len(made) - len(self.written)
        for storage, value in zip(self.written, made[count:], strict=True):
            storage.write(value)
        return [wrap(value.meta, Storage(value, value.meta)) for value in made[:count]]

    def backward(self, pred: Any, given: Sequence[Any], constants: Sequence[Any], arriving: Sequence[Any]) -> list[Any]:
        names = self._constants()
        chosen = [i for i, has in enumerate(self.has_gradient) if has]
        regions = []
        with torch.no_grad(), LOCK:
            zeros = {key: operand(self._zeros(key)) for key in self.wanted}
            for branch in self.branches:
                roots = [branch.gradients.get(key, zeros[key]) for key in self.wanted]
                stand_ins = [branch.arriving.get(i, operand(arriving[i])) for i in chosen]
                fixed = [*zeros.values(), *names.values(), *branch.given, *stand_ins]
                regions.append(Region.of(roots, fixed))
            operands = [operand(pred), *zeros.values(), *map(operand, constants), *map(operand, given)]
            operands += [operand(arriving[i]) for i in chosen]
            made = dict(zip(self.wanted, self._record("spmd.cond.backward", regions, operands), strict=True))
        found = []
        for key in (*range(len(self.given)), *self.closed_over):
            value = made.get(key)
            found.append(None if value is None else wrap(value.meta, Storage(value, value.meta)))
        recorded()
        return found

    def kept(self) -> Tensors:
        """Returns a tensor for each of `_constants`."""
        tensors = {name: tensor for branch in self.branches for name, tensor in branch.tensors.items()}
        return [tensors[name] for name in self._constants()]

    def _constants(self) -> dict[Any, Value]:
        return {value_name(value): value for branch in self.branches for value in branch.backward_constants}

    def _zeros(self, key: Any) -> Any:
        like = self.given[key] if isinstance(key, int) else key
        return torch.zeros(like.shape, dtype=like.dtype, device="xla")

    def _record(self, name: str, regions: Sequence[Region], operands: Sequence[Value]) -> Sequence[Value]:
        numbers = [number for region in regions for node in region.nodes for number in node.numbers]
        op = region_op(name, Branches(*regions), [value.meta for value in operands], regions[0].roots)
        return results(record_here(op, operands, numbers, sys._getframe(1), graph_task()))


def _union(lists: Any) -> list[Value]:
    found: dict[Any, Value] = {}
    for values in lists:
        for value in values:
            found.setdefault(value_name(value), value)
    return list(found.values())


class _Apply(torch.autograd.Function):
    """A choice and its gradient."""

    @staticmethod
    def forward(ctx: Any, choice: _Choice, pred: Any, *inputs: Any) -> tuple[torch.Tensor, ...]:
        made = choice.forward(pred)
        ctx.choice = choice
        ctx.save_for_backward(pred, *choice.given, *choice.kept())
        without = (tensor for tensor, has in zip(made, choice.has_gradient, strict=True) if not has)
        ctx.mark_non_differentiable(*without)
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *arriving: torch.Tensor) -> Any:
        choice: _Choice = ctx.choice
        if torch.is_grad_enabled():
            raise NotImplementedError("spmd.cond: its gradient has no gradient (create_graph=True)")
        pred, *kept = ctx.saved_tensors
        count = len(choice.given)
        return None, None, *choice.backward(pred, kept[:count], kept[count:], arriving)
