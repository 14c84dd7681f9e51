"""`spmd.cond`: one of two functions, chosen by the data."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..compile.region import Branches, region_entry
from ..debug.check import recorded
from ..ir.graph import Region, Value, results, value_name
from ..ir.meta import dense_meta
from ..lazy.cell import BARRIER, LOCK, Cell
from ..lazy.reads import lay_gradient, next_turn, operand
from ..lazy.record import graph_task, record_here
from ..lazy.tensor import XlaTensor, wrap
from .capture import Capture
from .scan import expect_functions, on_device
from .varying import as_own

Tensors = list[XlaTensor]


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """`true_fn(*operands) if pred else false_fn(*operands)`, chosen by the program while it runs.

    Both functions run once in Python, and one of them on the device; no value comes to the host. Gradients reach the
    operands and what the functions close over; backward computes the branch that was taken again. What a branch writes
    in place outside is written where it is taken. Both functions' draws move the random stream on. With a Python bool,
    or without a tensor on xla, it is the plain choice.

    Args:
        pred: a bool tensor of one element. true_fn, false_fn: return pytrees of tensors of the same structure, shapes
            and dtypes. operands: a tuple or list of pytrees.

    Raises ValueError for results that differ, TypeError for a `pred` that is no bool tensor, `BodyError` for a value
    that is asked for, NotImplementedError for a gradient of the gradient.
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
    given = as_own([leaf for leaf in flat if type(leaf) is XlaTensor])
    with BARRIER, LOCK:
        branches = [_Branch(function, flat, tree) for function in (true_fn, false_fn)]
        choice = _Choice(branches, given)
        made = choice.run(pred)
    recorded()
    return tree_unflatten(made, branches[0].tree)


class _Branch:
    """One function on stand-ins: what it makes, its gradients, and what both are given."""

    def __init__(self, function: Callable[..., Any], flat: Sequence[Any], tree: Any):
        with Capture("spmd.cond") as capture:
            given = [
                capture.stand_in(
                    dense_meta(leaf.shape, leaf.dtype), requires_grad=leaf.requires_grad and torch.is_grad_enabled()
                )
                if type(leaf) is XlaTensor
                else leaf
                for leaf in flat
            ]
            own = [leaf for leaf in given if type(leaf) is XlaTensor]
            leaves, self.tree = tree_flatten(function(*tree_unflatten(given, tree)))
            if not all(map(capture.is_unwritten, own)):
                raise NotImplementedError("spmd.cond: a branch writes in place into its operands; make new tensors")
            for leaf in leaves:
                if type(leaf) is not XlaTensor:
                    raise TypeError(f"spmd.cond: a branch must return tensors on xla, got {leaf!r}")
            self.made: Tensors = leaves
            self.metas = [dense_meta(tensor.shape, tensor.dtype) for tensor in leaves]
            self.roots = [operand(tensor) for tensor in leaves]
            self.written = capture.written()
            self.given = list(capture.given)
            self.has_gradient = [bool(capture.reached(tensor)) for tensor in leaves]
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
        """The gradients by what they belong to: the place of an operand, or a tensor from outside."""
        next_turn()
        chosen = [i for i, has in enumerate(self.has_gradient) if has]
        met = {tensor: None for i in chosen for tensor in capture.reached(self.made[i])}
        wanted: dict[Any, XlaTensor] = {place: tensor for place, tensor in enumerate(own) if tensor in met}
        inside = set(own)
        self.closed_over = [tensor for tensor in met if tensor not in inside]
        if any(tensor._cell in self.written for tensor in self.closed_over):
            raise NotImplementedError("spmd.cond: a branch writes in place into a tensor that requires a gradient")
        wanted |= {tensor: tensor for tensor in self.closed_over}
        tensors = [capture.stand_in(self.metas[i]) for i in chosen]
        self.arriving = {i: tensor._cell.value for i, tensor in zip(chosen, tensors, strict=True)}
        found: Any = torch.autograd.grad(
            [self.made[i] for i in chosen], list(wanted.values()), tensors, allow_unused=True
        )
        with torch.no_grad():
            for (key, tensor), gradient in zip(wanted.items(), found, strict=True):
                if gradient is not None:
                    lay_gradient(tensor._cell, gradient)
                    self.gradients[key] = operand(gradient)


class _Choice:
    """Both branches as one op, and their gradients as another."""

    def __init__(self, branches: Sequence[_Branch], given: Tensors):
        self.branches, self.given = branches, given
        one, other = branches
        if one.tree != other.tree or one.metas != other.metas:
            raise ValueError(
                f"spmd.cond: the branches must return the same: one makes {one.tree} of {one.metas}, the other "
                f"{other.tree} of {other.metas}"
            )
        self.written = list({cell: None for branch in branches for cell in branch.written})
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
        kept = _union([cell.value for cell in self.written] for _ in (0,))
        constants = _union((constants, kept))
        regions = []
        for branch in self.branches:
            new = [branch.written[cell][1] if cell in branch.written else cell.value for cell in self.written]
            regions.append(Region.of([*branch.roots, *new], [*constants, *branch.given]))
        made = self._record("spmd.cond", regions, [operand(pred), *constants, *map(operand, self.given)])
        count = len(made) - len(self.written)
        for cell, value in zip(self.written, made[count:], strict=True):
            cell.write(value)
        return [wrap(value.meta, Cell(value, value.meta)) for value in made[:count]]

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
            found.append(None if value is None else wrap(value.meta, Cell(value, value.meta)))
        recorded()
        return found

    def kept(self) -> Tensors:
        """A tensor for each of `_constants`."""
        tensors = {name: tensor for branch in self.branches for name, tensor in branch.tensors.items()}
        return [tensors[name] for name in self._constants()]

    def _constants(self) -> dict[Any, Value]:
        return {value_name(value): value for branch in self.branches for value in branch.backward_constants}

    def _zeros(self, key: Any) -> Any:
        like = self.given[key] if isinstance(key, int) else key
        return torch.zeros(like.shape, dtype=like.dtype, device="xla")

    def _record(self, name: str, regions: Sequence[Region], operands: Sequence[Value]) -> Sequence[Value]:
        numbers = [number for region in regions for node in region.nodes for number in node.numbers]
        entry = region_entry(name, Branches(*regions), [value.meta for value in operands], regions[0].roots)
        return results(record_here(entry, operands, numbers, sys._getframe(1), graph_task()))


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
