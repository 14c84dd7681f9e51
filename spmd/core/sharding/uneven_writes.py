"""Scatters whose rows the devices do not divide, which the program pads itself, and sums that are counted twice.

Rows that are uneven over some of a mesh's axes, and replicated over others, XLA pads and writes: at index 0, or at what
the index's producer makes of padding, with what the values' producer makes of it (jaxlib 0.10.2, both partitioners).
Here the index of padding is past the end, and XLA drops what is written there. A module has the scatters of the rules,
of gradients, of jax's own functions and of a user's jax code; all are rewritten.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.jax_private import hlo, ir
from .partitioner import manual_parts, ops_of


def pad_scatters(module: ir.Module, num_devices: int) -> None:
    """Pads the rows of scatters to a multiple of the devices, which every sharding divides; even ones stay as they are.

    Scatters that overwrite stay, too: XLA does not split their rows, whose order counts.
    """
    scatters = [op for op in ops_of(module, "stablehlo.scatter") if len(op.regions[0].blocks[0].operations) > 1]
    if num_devices == 1 or not scatters:
        return
    is_manual = manual_parts(module)
    with module.context:
        for op in scatters:
            if not is_manual(op):
                with op.location, ir.InsertionPoint(op):
                    _sum_apart(op)
                    _pad_rows(op, num_devices)


def _sum_apart(op: ir.Operation) -> None:
    """Has a scatter with batching dims sum onto zeros, and adds its operand after that: XLA may count it twice."""
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    is_sum = op.regions[0].blocks[0].operations[0].name == "stablehlo.add"
    before, total = op.operands[0], op.results[0]
    if not is_sum or not numbers.input_batching_dims or _is_zero(before):
        return
    op.operands[0] = hlo.broadcast_in_dim(total.type, _scalar(total, 0), ir.DenseI64ArrayAttr.get([]))
    with ir.InsertionPoint.after(op):
        added = hlo.add(total, before)
    total.replace_all_uses_except(added, added.owner.operation)


def _is_zero(value: ir.Value) -> bool:
    owner: Any = value.owner
    while getattr(owner, "name", "") in ("stablehlo.broadcast_in_dim", "stablehlo.convert"):
        owner = owner.operands[0].owner
    return getattr(owner, "name", "") == "stablehlo.constant" and str(owner.attributes["value"]).startswith("dense<0")


def _pad_rows(op: ir.Operation, multiple: int) -> None:
    scatter: Any = op.opview
    numbers = hlo.ScatterDimensionNumbers(scatter.scatter_dimension_numbers)
    index, updates, batching = scatter.scatter_indices, list(scatter.updates), numbers.scatter_indices_batching_dims
    in_index = [dim for dim in range(index.type.rank) if dim != numbers.index_vector_dim]
    in_updates = [dim for dim in range(updates[0].type.rank) if dim not in numbers.update_window_dims]
    # Batching dims are split together with the operand's, or not at all.
    rows = [dims for dims in zip(in_index, in_updates, strict=True) if dims[0] not in batching]
    if all(index.type.shape[dim] % multiple == 0 for dim, _ in rows):
        return
    (first, first_in_updates), others = rows[0], len(rows) - 1
    if others and rows[-1] == (first + others, first_in_updates + others):
        # Merged, as each by itself might be short: then padding would be most of it.
        index = _merge(index, first, others)
        updates = [_merge(update, first_in_updates, others) for update in updates]
        vector = numbers.index_vector_dim
        numbers = hlo.ScatterDimensionNumbers.get(
            [dim - others * (dim > first_in_updates) for dim in numbers.update_window_dims],
            numbers.inserted_window_dims, numbers.input_batching_dims,
            [dim - others * (dim > first) for dim in batching],
            numbers.scattered_dims_to_operand_dims, vector - others * (vector > first),
        )  # fmt: skip
        rows = rows[:1]
    past_end = max(op.operands[0].type.shape)
    for dim, in_update in rows:
        index = _pad(_wide(index), dim, multiple, past_end)
        updates = [_pad(update, in_update, multiple, 0) for update in updates]
    padded = hlo.ScatterOp(
        [result.type for result in op.results], list(scatter.inputs), index, updates, numbers,
        indices_are_sorted=False, unique_indices=False,
    )  # fmt: skip
    op.regions[0].blocks[0].append_to(padded.regions[0])
    for result, replacement in zip(op.results, padded.results, strict=True):
        result.replace_all_uses_with(replacement)
    op.erase()


def _merge(value: ir.Value, first: int, others: int) -> ir.Value:
    """Merges a dim with so many that follow."""
    shape, end = value.type.shape, first + others + 1
    return hlo.reshape(_typed(value, [*shape[:first], math.prod(shape[first:end]), *shape[end:]]), value)


def _pad(value: ir.Value, dim: int, multiple: int, filler: int) -> ir.Value:
    """Pads the end of a dim to a multiple."""
    zeros = [0] * value.type.rank
    high = [-size % multiple * (axis == dim) for axis, size in enumerate(value.type.shape)]
    return hlo.pad(value, _scalar(value, filler), zeros, high, zeros)


def _scalar(like: ir.Value, number: int) -> ir.Value:
    """A number in the dtype of a value."""
    buffer: Any = np.array(number)  # numpy's own types do not say that it is a buffer
    return hlo.convert(_typed(like, []), hlo.constant(ir.DenseElementsAttr.get(buffer)))


def _wide(index: ir.Value) -> ir.Value:
    """The index in a dtype that has a number past the end."""
    is_narrow = index.type.element_type.width < 32
    return hlo.convert(_typed(index, index.type.shape, ir.IntegerType.get_signless(32)), index) if is_narrow else index


def _typed(value: ir.Value, shape: Sequence[int], element_type: ir.Type | None = None) -> ir.Type:
    return ir.RankedTensorType.get(shape, element_type or value.type.element_type)
