"""`spmd.cond`: one of two functions, chosen by a value on the device."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core import XlaTensor, dense_meta, ends_at_user_line, storage_of
from ..core.extend import Region, Value, reads, regions, walks
from .capture import Capture
from .gradient import Tensors, as_one_op, record, tensors, with_gradient
from .scan import expect_functions, on_device, refilled, result_tensors, tensors_of
from .vma import as_own


@ends_at_user_line
def cond(
    pred: Any,
    true_fn: Callable[..., Any],
    false_fn: Callable[..., Any],
    operands: Sequence[Any] = (),
) -> Any:
    """`true_fn(*operands) if pred else false_fn(*operands)`, chosen by the program while it runs.

    Both functions run once in Python, and one of them on the device; no value comes to the host.
    Gradients reach the operands and tensors that the functions close over; backward recomputes the
    branch that was taken. In-place writes of a branch to tensors from outside happen where it is
    taken. Both functions' draws advance the random stream. With a Python bool, or without a tensor
    on xla, it is Python's choice.

    Args:
        pred: a bool tensor of one element. true_fn, false_fn: return pytrees of tensors and None,
            of the same structure, shapes and dtypes. operands: a tuple or list of pytrees.

    Raises ValueError for results that differ, TypeError for a `pred` that is no bool tensor,
    `BodyError` for a read of a value, NotImplementedError for a gradient of the gradient.
    Source: `torch.cond`, `jax.lax.cond`.

    >>> import torch, spmd
    >>> x = torch.tensor([1.0, -2.0]).to("xla")
    >>> spmd.cond(x.sum() > 0, lambda x: x * 2, lambda x: -x, (x,)).tolist()
    [-1.0, 2.0]
    """
    expect_functions("cond", true_fn=true_fn, false_fn=false_fn)
    if not isinstance(operands, (tuple, list)):
        raise TypeError(
            f"spmd.cond: operands must be a tuple or list, got {type(operands).__name__}"
        )
    if isinstance(pred, bool) or not on_device("cond", (pred, operands)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, XlaTensor) or pred.dtype is not torch.bool or pred.numel() != 1:
        shown = (
            f"{pred.dtype} of shape {list(pred.shape)}"
            if isinstance(pred, torch.Tensor)
            else repr(pred)
        )
        raise TypeError(f"spmd.cond: pred must be a bool tensor of one element, got {shown}")
    inputs = as_own(tensors_of(operands))
    with as_one_op():
        branches = [_Branch(function, operands, inputs) for function in (true_fn, false_fn)]
        choice = _Choice(pred, branches, inputs)
        queue = iter(
            with_gradient(
                "spmd.cond", [*choice.gradient_of.values()], choice.forward, choice.backward
            )
        )
    return tree_unflatten(
        [None if meta is None else next(queue) for meta in branches[0].metas], branches[0].tree
    )


Source = int | XlaTensor  # of a gradient: the number of an operand, or a tensor from outside


class _Branch:
    """One function on stand-ins: its results and gradients, and the values from outside that these
    need."""

    def __init__(self, function: Callable[..., Any], operands: Sequence[Any], inputs: Tensors):
        is_on = torch.is_grad_enabled()
        with Capture("spmd.cond") as capture:
            stand_ins = [
                capture.stand_in(
                    dense_meta(tensor.shape, tensor.dtype),
                    requires_grad=is_on and tensor.requires_grad,
                )
                for tensor in inputs
            ]
            self.arguments = list(capture.arguments)
            refusal = "spmd.cond: a branch writes in place into its operands; make new tensors"
            tree = capture.run(
                function, *refilled(operands, stand_ins), unwritten=stand_ins, refusal=refusal
            )
            result = result_tensors("spmd.cond: a branch must return", tree)
            flat, self.tree = tree_flatten(tree)
            self.metas = [
                None if value is None else dense_meta(value.shape, value.dtype) for value in flat
            ]
            self.roots = list(map(reads.operand, result))
            self.written = {storage: after for storage, (_, after) in capture.written().items()}
            output_indices, reached = capture.reached_by(result)
            capture.refuse_written(reached, self.written, "return the new value instead")
            arriving = [
                capture.stand_in(dense_meta(result[i].shape, result[i].dtype))
                for i in output_indices
            ]
            self.arriving = {
                i: storage_of(tensor).value
                for i, tensor in zip(output_indices, arriving, strict=True)
            }
            gradients = capture.grad([result[i] for i in output_indices], reached, arriving)
            operand_index = {tensor: i for i, tensor in enumerate(stand_ins)}
            sources: list[Source] = [operand_index.get(tensor, tensor) for tensor in reached]
            self.gradients = dict(zip(sources, gradients, strict=True))
            self.constants = capture.outside([*self.roots, *self.written.values()], self.arguments)
            saved_values = capture.outside(gradients, [*self.arguments, *self.arriving.values()])
            self.saved = list(zip(saved_values, capture.tensors(saved_values), strict=True))

    def __str__(self) -> str:
        return f"{self.tree} of {self.metas}"


class _Choice:
    """Both branches as one op, and their gradients as another one."""

    def __init__(self, pred: XlaTensor, branches: Sequence[_Branch], inputs: Tensors):
        self.pred, self.branches, self.inputs = pred, branches, inputs
        first, second = branches
        if (first.tree, first.metas) != (second.tree, second.metas):
            raise ValueError(
                f"spmd.cond: the branches must return the same: one returns {first}, the other "
                f"{second}"
            )
        self.written = list(first.written | second.written)
        self.differentiable = sorted(first.arriving | second.arriving)
        self.gradient_of: dict[Source, XlaTensor] = {
            source: inputs[source] if isinstance(source, int) else source
            for source in first.gradients | second.gradients
        }
        self.saved = {
            walks.value_name(value): (value, tensor)
            for value, tensor in (*first.saved, *second.saved)
        }

    def forward(self) -> tuple[Tensors, Tensors, list[bool]]:
        """Records the op: its results, the tensors that backward reads, and which results have a
        gradient."""
        outside = [
            *(value for branch in self.branches for value in branch.constants),
            *(s.value for s in self.written),
        ]
        constants = list({walks.value_name(value): value for value in outside}.values())
        bodies = []
        for branch in self.branches:
            new = [branch.written.get(storage, storage.value) for storage in self.written]
            bodies.append(Region.of([*branch.roots, *new], [*constants, *branch.arguments]))
        operands = [reads.operand(self.pred), *constants, *map(reads.operand, self.inputs)]
        result = _record("spmd.cond", bodies, operands)
        count = len(result) - len(self.written)
        for storage, value in zip(self.written, result[count:], strict=True):
            storage.write(value)
        saved_tensors = [self.pred, *(tensor for _, tensor in self.saved.values()), *self.inputs]
        return (
            tensors(result[:count]),
            saved_tensors,
            [i in self.differentiable for i in range(count)],
        )

    def backward(self, saved_tensors: Sequence[Any], arriving: Sequence[Any]) -> Tensors:
        """Records the op of the gradients."""
        constants = [value for value, _ in self.saved.values()]
        zeros = {source: reads.operand(_zeros(like)) for source, like in self.gradient_of.items()}
        bodies = []
        for branch in self.branches:
            stand_ins = [
                branch.arriving.get(i, reads.operand(arriving[i])) for i in self.differentiable
            ]
            gradients = zeros | branch.gradients
            bodies.append(
                Region.of(list(gradients.values()), [*constants, *branch.arguments, *stand_ins])
            )
        operands = list(
            map(reads.operand, [*saved_tensors, *(arriving[i] for i in self.differentiable)])
        )
        return tensors(_record("spmd.cond.backward", bodies, operands))


def _record(name: str, bodies: Sequence[Region], operands: Sequence[Value]) -> list[Value]:
    numbers = [number for region in bodies for number in regions.body_numbers(region)]
    op = regions.region_op(
        name, regions.Branches(*bodies), [value.meta for value in operands], bodies[0].roots
    )
    return record(op, operands, numbers)


def _zeros(like: XlaTensor) -> Any:
    return torch.zeros(like.shape, dtype=like.dtype, device="xla")
