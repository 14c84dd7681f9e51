"""The dtype in which a gradient is summed over devices: the op that computes the gradient is
recorded again, in that dtype.

A partitioner reduces a sum at the op that sums, over the batch say, in that op's dtype: a cast
after it comes too late. So the path back from the gradient leads to that op, through casts,
annotations, views and sums of several uses.
"""

import operator
from collections.abc import Sequence
from typing import Any

import torch

from ..core import (
    LOCK,
    Storage,
    XlaTensor,
    annotations,
    ends_at_user_line,
    grad_shardings,
    storage_of,
    tensor_meta,
    view_of,
    warn,
)
from ..core.extend import (
    Node,
    OpSpec,
    Value,
    calls,
    intern_meta,
    lowerings,
    partitioning,
    record_calls,
    set_storage,
    views,
    walks,
)
from ..loops.gradient import tensors
from ..tensors.annotate import on_device
from .unreduced import LINEAR, SAME, location_of, sums_of

_warned: set[tuple[str, torch.dtype]] = set()


@ends_at_user_line
def reduce_gradient_in(
    leaf: torch.Tensor, dtype: torch.dtype | None, factor: float | None = None
) -> Any:
    """Sets the dtype in which the gradient of a leaf tensor is summed over devices; it may differ
    from the computation. None: the gradient's own. factor: multiplies the sum.

    The products and sums that make the gradient get that dtype, before a partitioner reduces them;
    the gradient arrives in the tensor's own dtype. For a scatter (an embedding's gradient) and a
    convolution's kernel it is at least the dtype in which they accumulate, float32. A gradient that
    another op makes is reduced in its own dtype, with a warning that names the op.

    Returns torch's handle that removes it. Raises TypeError for a tensor that is not on xla or a
    dtype that is not floating-point, ValueError for another tensor than a leaf tensor that requires
    a gradient. Source: `torch.distributed.fsdp.MixedPrecisionPolicy`.

    >>> import torch, spmd
    >>> weight = torch.ones(4, 4, device="xla", dtype=torch.bfloat16, requires_grad=True)
    >>> handle = spmd.reduce_gradient_in(weight, torch.float32)
    >>> (torch.ones(2, 4, device="xla", dtype=torch.bfloat16) @ weight).sum().backward()
    >>> weight.grad.dtype
    torch.bfloat16
    """
    target = on_device(leaf, "reduce_gradient_in")
    if not (target.is_leaf and target.requires_grad):
        raise ValueError(
            "reduce_gradient_in: expected a leaf tensor that requires a gradient, such as a "
            "parameter in training"
        )
    is_float = isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1
    if dtype is not None and not is_float:
        raise TypeError(
            "reduce_gradient_in: expected a floating-point torch.dtype of 16 bits or more, got "
            f"{dtype!r}"
        )
    return target.register_hook(grad_shardings.PlayedHook(_reduced, dtype, factor))


def _reduced(dtype: torch.dtype | None, factor: float | None, gradient: torch.Tensor) -> Any:
    """The gradient times the factor; None for the gradient itself."""
    if isinstance(gradient, XlaTensor) and dtype is not None:
        _reduce_in(dtype, gradient)
    return None if factor is None or gradient is None else factor * gradient


def _reduce_in(dtype: torch.dtype, gradient: XlaTensor) -> None:
    """Takes the sum over devices of a gradient in a dtype; the gradient keeps its own dtype and its
    storage."""
    with LOCK:
        value = views.read(gradient)
        narrow_sum = _summed_in(value, dtype)
        if narrow_sum is value:
            return
        narrowed: Any = tensors([narrow_sum])[0].to(value.meta.dtype)
        result = views.read(narrowed)
        if view_of(gradient) is None:
            storage_of(gradient).write(result)
        else:  # the base of the view keeps its value
            set_storage(gradient, Storage(result, tensor_meta(gradient)), None)


def _summed_in(value: Value, dtype: torch.dtype) -> Value:
    """The value with its sums in the dtype, and perhaps in that dtype itself; the same object if it
    has none."""
    node = walks.origin(value)
    if node is None or not value.meta.dtype.is_floating_point:
        return value  # data: its sum has been taken
    name, index = node.op.name.partition(":")[0], walks.result_index(value)
    sums = sums_of(node.op, partitioning.SUMS.get(name, ()))
    is_same = value.meta.dtype is dtype
    if index in sums:
        return value if is_same else _sum_in(node, sums, index, dtype)
    lowering = node.op.lowering
    is_linear = (
        isinstance(lowering, lowerings.Call)
        and not node.op.is_opaque
        and (name in LINEAR or name in SAME)
    )
    if is_linear or name == "mark_sharding":
        operands = [_summed_in(operand, dtype) for operand in node.operands]
        return (
            value
            if all(map(operator.is_, operands, node.operands))
            else _recorded_again(node, operands)
        )
    if not is_same:
        _warn(name, value.meta.dtype, dtype)
    return value


def _sum_in(node: Node, sums: Sequence[int], index: int, dtype: torch.dtype) -> Value:
    """The op that sums, with its sums in the dtype: its rule computes in the dtype of the results'
    metas."""
    op, metas = node.op, list(node.op.metas)
    for i in sums:
        metas[i] = intern_meta(metas[i].shape, dtype, metas[i].strides, metas[i].offset)
    in_dtype = OpSpec.of(
        op.name,
        op.lowering,
        tuple(metas),
        op.operands,
        numbers=op.numbers,
        statics=f"{op.statics}, sum={dtype}",
        layout=op.layout,
    )
    return walks.results(
        record_calls.record(in_dtype, node.operands, node.numbers, location_of(node))
    )[index]


def _recorded_again(node: Node, operands: Sequence[Value]) -> Value:
    """The op on operands whose sums are in the dtype; for a cast, its operand."""
    lowering: Any = node.op.lowering
    if node.op.name == "aten._to_copy":
        return operands[0]
    if node.op.name == "mark_sharding":
        mark = annotations.mark_op(operands[0].meta, lowering.sharding, lowering.via)
        return record_calls.record(mark, (operands[0],), (), location_of(node))
    of_operand, of_number = tensors(operands).__getitem__, node.numbers.__getitem__
    arguments = {
        name: calls.fill(template, of_operand, of_number) for name, template in lowering.arguments
    }
    return views.read(lowering.overload(**arguments))


def _warn(name: str, computed: torch.dtype, requested_dtype: torch.dtype) -> None:
    if (name, requested_dtype) not in _warned:
        _warned.add((name, requested_dtype))
        warn(
            f"a gradient is to be reduced in {requested_dtype}, but {name} computes it in "
            f"{computed} and has no other dtype: it is reduced in {computed}"
        )
