"""`spmd.cond`: one of two functions, chosen by a value on the device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import LOCK, XlaTensor, dense_meta, ends_at_user_line, storage_of, view_of
from ..core.extend import (
    SYNC_LOCK,
    Branches,
    Region,
    Value,
    body_numbers,
    reads,
    record_calls,
    region_op,
    storages,
    walks,
)
from .capture import Capture
from .gradient import Tensors, record, refuse_second, tensors, with_gradient
from .scan import expect_functions, on_device, refilled, tensors_of
from .varying import as_own


@ends_at_user_line
def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any] = ()) -> Any:
    """`true_fn(*operands) if pred else false_fn(*operands)`, chosen by the program while it runs.

    Both functions run once in Python, and one of them on the device; no value comes to the host. Gradients reach the
    operands and tensors that the functions close over; backward recomputes the branch that was taken. In-place writes
    of a branch to tensors from outside happen where it is taken. Both functions' draws advance the random stream. With
    a Python bool, or without a tensor on xla, it is Python's choice.

    Args:
        pred: a bool tensor of one element. true_fn, false_fn: return pytrees of tensors and None, of the same
            structure, shapes and dtypes. operands: a tuple or list of pytrees.

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
    given = as_own(tensors_of(operands))
    with SYNC_LOCK, LOCK:
        branches = [_Branch(function, operands, given) for function in (true_fn, false_fn)]
        choice = _Choice(pred, branches, given)
        result = with_gradient(choice.inputs, choice.forward, choice.backward)
    storages.recorded()
    queue = iter(result)
    return tree_unflatten([None if none else next(queue) for none in branches[0].is_none], branches[0].tree)


Source = int | XlaTensor  # of a gradient: the place of an operand, or a tensor from outside


class _Branch:
    """One function on stand-ins: its results and gradients, and the values from outside that these need."""

    def __init__(self, function: Callable[..., Any], operands: Sequence[Any], given: Tensors):
        is_on = torch.is_grad_enabled()
        with Capture("spmd.cond") as capture:
            own = [
                capture.stand_in(dense_meta(each.shape, each.dtype), requires_grad=is_on and each.requires_grad)
                for each in given
            ]
            self.given = list(capture.given)
            refusal = "spmd.cond: a branch writes in place into its operands; make new tensors"
            flat, self.tree = tree_flatten(
                capture.run(function, *refilled(operands, own), unwritten=own, refusal=refusal)
            )  # fmt: skip
            self.is_none = [value is None for value in flat]
            result = [value for value in flat if value is not None]
            for value in result:
                if type(value) is not XlaTensor:
                    raise TypeError(f"spmd.cond: a branch must return tensors on xla (or None), got {value!r}")
            self.metas = [dense_meta(tensor.shape, tensor.dtype) for tensor in result]
            self.roots = list(map(record_calls.operand, result))
            self.written = {storage: after for storage, (_, after) in capture.written().items()}
            self.gradients: dict[Source, Value] = {}
            self.arriving: dict[int, Value] = {}
            self._differentiate(capture, result, own)
            self.constants = capture.outside([*self.roots, *self.written.values()], self.given)
            kept = capture.outside(list(self.gradients.values()), [*self.given, *self.arriving.values()])
            self.kept = list(zip(kept, capture.tensors(kept), strict=True))

    def shown(self) -> str:
        """The results as a message shows them."""
        nones = f" and {sum(self.is_none)} None" if any(self.is_none) else ""
        return f"{self.tree} of {self.metas}{nones}"

    def _differentiate(self, capture: Capture, made: Tensors, own: Tensors) -> None:
        """Records the gradients of the operands and of the tensors from outside that results reach."""
        reached = {i: each for i, tensor in enumerate(made) if (each := capture.reached(tensor))}
        met = list(dict.fromkeys(tensor for each in reached.values() for tensor in each))
        place: dict[XlaTensor, Source] = {tensor: i for i, tensor in enumerate(own)}
        self.sources = [place.get(tensor, tensor) for tensor in met]
        if any(storage_of(tensor) in self.written for tensor in met):
            raise NotImplementedError("spmd.cond: a branch writes in place into a tensor that requires a gradient")
        if not reached:
            return
        reads.next_generation()
        arriving = [capture.stand_in(self.metas[i]) for i in reached]
        self.arriving = {i: storage_of(tensor).value for i, tensor in zip(reached, arriving, strict=True)}
        found = capture.grad([made[i] for i in reached], met, arriving)
        with torch.no_grad():
            for source, tensor, gradient in zip(self.sources, met, found, strict=True):
                if gradient is not None:
                    if view_of(tensor) is None:
                        record_calls.shard_gradient(storage_of(tensor), gradient)
                    self.gradients[source] = record_calls.operand(gradient)


class _Choice:
    """Both branches as one op, and their gradients as another one."""

    def __init__(self, pred: XlaTensor, branches: Sequence[_Branch], given: Tensors):
        self.pred, self.branches, self.given = pred, branches, given
        one, other = branches
        if (one.tree, one.is_none, one.metas) != (other.tree, other.is_none, other.metas):
            raise ValueError(
                f"spmd.cond: the branches must return the same: one returns {one.shown()}, the other {other.shown()}"
            )
        self.written = list(one.written | other.written)
        self.chosen = sorted(one.arriving | other.arriving)
        self.sources = list(dict.fromkeys([*one.sources, *other.sources]))
        self.inputs = [given[source] if isinstance(source, int) else source for source in self.sources]
        self.kept = {walks.value_name(value): (value, tensor) for value, tensor in (*one.kept, *other.kept)}

    def forward(self) -> tuple[Tensors, Tensors, list[bool]]:
        outside = [*(value for branch in self.branches for value in branch.constants), *(s.value for s in self.written)]
        constants = list({walks.value_name(value): value for value in outside}.values())
        regions = []
        for branch in self.branches:
            new = [branch.written.get(storage, storage.value) for storage in self.written]
            regions.append(Region.of([*branch.roots, *new], [*constants, *branch.given]))
        result = self._record(
            "spmd.cond", regions, [record_calls.operand(self.pred), *constants, *map(record_calls.operand, self.given)]
        )
        count = len(result) - len(self.written)
        for storage, value in zip(self.written, result[count:], strict=True):
            storage.write(value)
        kept = [self.pred, *(tensor for _, tensor in self.kept.values()), *self.given]
        return tensors(result[:count]), kept, [i in self.chosen for i in range(count)]

    def backward(self, kept: Sequence[Any], arriving: Sequence[Any]) -> Tensors:
        refuse_second("spmd.cond")
        constants = [value for value, _ in self.kept.values()]
        with torch.no_grad(), LOCK:
            zeros = {
                source: record_calls.operand(_zeros(like))
                for source, like in zip(self.sources, self.inputs, strict=True)
            }
            regions = []
            for branch in self.branches:
                stand_ins = [branch.arriving.get(i, record_calls.operand(arriving[i])) for i in self.chosen]
                gradients = zeros | branch.gradients
                regions.append(Region.of(list(gradients.values()), [*constants, *branch.given, *stand_ins]))
            operands = list(map(record_calls.operand, [*kept, *(arriving[i] for i in self.chosen)]))
            result = tensors(self._record("spmd.cond.backward", regions, operands))
        storages.recorded()
        return result

    def _record(self, name: str, regions: Sequence[Region], operands: Sequence[Value]) -> list[Value]:
        numbers = [number for region in regions for number in body_numbers(region)]
        op = region_op(name, Branches(*regions), [value.meta for value in operands], regions[0].roots)
        return record(op, operands, numbers)


def _zeros(like: XlaTensor) -> Any:
    return torch.zeros(like.shape, dtype=like.dtype, device="xla")
