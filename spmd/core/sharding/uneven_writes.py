"""Scatters that XLA partitions wrongly on a mesh of several axes: uneven rows, and operands that
some axes copy.

Uneven rows: XLA pads rows that are uneven over one axis and replicated over another, and writes the
padding, too, at index 0 or at another real row (jaxlib 0.10.2, both partitioners). Here padding has
an index past the end, where XLA drops writes.

Copied operands: if dims of a scatter are batches, by its attributes or by an index that counts up,
XLA combines copies of the operand once too often, or not at all. Here the scatter starts from the
identity of its combiner, and the operand is combined with the result. A scatter that overwrites has
no identity; its index is hidden behind an optimization barrier.

All scatters of a module are rewritten: of rules, gradients, jax's functions and users' jax code
(docs/decisions/copies-in-sums.md).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..base.jax_private import hlo, ir
from .partitioner import manual_parts, mesh_names, ops_of, replicated


def pad_scatters(module: ir.Module, num_devices: int) -> None:
    """Rewrites the scatters of a program over several devices. Rows are padded to a multiple of the
    number of devices, which every sharding divides. Rows of scatters that overwrite stay: XLA does
    not split them, as their order counts."""
    scatters = ops_of(module, "stablehlo.scatter")
    if num_devices == 1 or not scatters:
        return
    is_manual = manual_parts(module)
    with module.context:
        for op in scatters:
            if not is_manual(op):
                with op.location, ir.InsertionPoint(op):
                    # A region of one op, its return, overwrites; others combine.
                    if len(op.regions[0].blocks[0].operations) > 1:
                        _combine_after(op)
                        _pad_rows(op, num_devices)
                    elif _num_scattered(op) > 1:  # it has no identity: its index is hidden
                        op.operands[1] = hlo.OptimizationBarrierOp([op.operands[1]]).results[0]


def replicate_indices(module: ir.Module) -> None:
    """Replicates the index of each read of whole rows.

    XLA fails to compile a gather whose index and columns are sharded over one axis and whose result
    rows over another ("Slice dim size 8 greater than dynamic slice dimension: 4"; jaxlib 0.10.2,
    both partitioners).
    """
    meshes = mesh_names(module)
    is_manual = manual_parts(module)
    with module.context:
        for op in ops_of(module, "stablehlo.gather"):
            offsets = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"]).offset_dims
            if offsets and not is_manual(op):
                with op.location, ir.InsertionPoint(op):
                    op.operands[1] = replicated(op.operands[1], meshes)


def _num_scattered(op: ir.Operation) -> int:
    """Returns the number of the operand's dims that a scatter indexes, batches included."""
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    return len(numbers.scattered_dims_to_operand_dims) + len(numbers.input_batching_dims)


def _combine_after(op: ir.Operation) -> None:
    """Rewrites a scatter to start from its combiner's identity; the operand is combined with the
    result."""
    operand, result, combiner = (
        op.operands[0],
        op.results[0],
        op.regions[0].blocks[0].operations[0].name,
    )
    if combiner not in _IDENTITIES or len(op.results) > 1 or _num_scattered(op) == 1:
        return
    identity = _IDENTITIES[combiner](result.type.element_type)
    if combiner == "stablehlo.add" and _is_zero(operand):
        return
    op.operands[0] = hlo.broadcast_in_dim(
        result.type, _scalar(result, identity), ir.DenseI64ArrayAttr.get([])
    )
    with ir.InsertionPoint.after(op):
        combined = ir.Operation.create(combiner, [result.type], [result, operand])
    result.replace_all_uses_except(combined.result, combined)


def _bound(kind: Any, *, is_lowest: bool) -> float:
    """Returns the least or the greatest value of an element type."""
    if not isinstance(kind, ir.IntegerType):
        return -math.inf if is_lowest else math.inf
    is_signed = not kind.is_unsigned and kind.width > 1
    lowest = -(2 ** (kind.width - 1)) if is_signed else 0
    return lowest if is_lowest else lowest + 2**kind.width - 1


_IDENTITIES: Mapping[str, Callable[[Any], float]] = {
    "stablehlo.add": lambda kind: 0 if isinstance(kind, ir.IntegerType) else -0.0,
    "stablehlo.multiply": lambda kind: 1,
    "stablehlo.maximum": functools.partial(_bound, is_lowest=True),
    "stablehlo.minimum": functools.partial(_bound, is_lowest=False),
    "stablehlo.or": lambda kind: 0,
    "stablehlo.and": lambda kind: -1 if kind.width > 1 else 1,
}


def _is_zero(value: ir.Value) -> bool:
    """True for a constant filled with zeros, also behind broadcasts and conversions."""
    owner: Any = value.owner
    while getattr(owner, "name", "") in ("stablehlo.broadcast_in_dim", "stablehlo.convert"):
        owner = owner.operands[0].owner
    return getattr(owner, "name", "") == "stablehlo.constant" and str(
        owner.attributes["value"]
    ).startswith("dense<0")


def _pad_rows(op: ir.Operation, multiple: int) -> None:
    """Pads the rows of a scatter to a multiple; the index of a padded row is past the end, so that
    XLA drops it."""
    scatter: Any = op.opview
    numbers = hlo.ScatterDimensionNumbers(scatter.scatter_dimension_numbers)
    index, updates, batching = (
        scatter.scatter_indices,
        list(scatter.updates),
        numbers.scatter_indices_batching_dims,
    )
    index_dims = [dim for dim in range(index.type.rank) if dim != numbers.index_vector_dim]
    update_dims = [
        dim for dim in range(updates[0].type.rank) if dim not in numbers.update_window_dims
    ]
    # Batching dims are split together with the operand's, or not at all.
    rows = [dims for dims in zip(index_dims, update_dims, strict=True) if dims[0] not in batching]
    if all(index.type.shape[dim] % multiple == 0 for dim, _ in rows):
        return
    (first_row_dim, first_update_dim), num_merged = rows[0], len(rows) - 1
    if num_merged and rows[-1] == (first_row_dim + num_merged, first_update_dim + num_merged):
        # Merges them, as padding would be most of a short dim.
        index = _merge(index, first_row_dim, num_merged)
        updates = [_merge(update, first_update_dim, num_merged) for update in updates]
        vector = numbers.index_vector_dim
        numbers = hlo.ScatterDimensionNumbers.get(
            [dim - num_merged * (dim > first_update_dim) for dim in numbers.update_window_dims],
            numbers.inserted_window_dims,
            numbers.input_batching_dims,
            [dim - num_merged * (dim > first_row_dim) for dim in batching],
            numbers.scattered_dims_to_operand_dims,
            vector - num_merged * (vector > first_row_dim),
        )
        rows = rows[:1]
    past_end = max(op.operands[0].type.shape)
    for dim, update_dim in rows:
        index = _pad(_wide(index), dim, multiple, past_end)
        updates = [_pad(update, update_dim, multiple, 0) for update in updates]
    padded = hlo.ScatterOp(
        [result.type for result in op.results],
        list(scatter.inputs),
        index,
        updates,
        numbers,
        indices_are_sorted=False,
        unique_indices=False,
    )
    op.regions[0].blocks[0].append_to(padded.regions[0])
    for result, replacement in zip(op.results, padded.results, strict=True):
        result.replace_all_uses_with(replacement)
    op.erase()


def _merge(value: ir.Value, dim: int, num_merged: int) -> ir.Value:
    """Returns the value with a dim merged with this number of dims behind it."""
    shape, end = value.type.shape, dim + num_merged + 1
    return hlo.reshape(
        _typed(value, [*shape[:dim], math.prod(shape[dim:end]), *shape[end:]]), value
    )


def _pad(value: ir.Value, dim: int, multiple: int, filler: int) -> ir.Value:
    """Returns the value with the end of a dim padded to a multiple."""
    zeros = [0] * value.type.rank
    high = [-size % multiple * (axis == dim) for axis, size in enumerate(value.type.shape)]
    return hlo.pad(value, _scalar(value, filler), zeros, high, zeros)


def _scalar(like: ir.Value, number: float) -> ir.Value:
    """Returns a scalar in the dtype of a value."""
    buffer: Any = np.array(number)  # numpy's own types do not say that it is a buffer
    return hlo.convert(_typed(like, []), hlo.constant(ir.DenseElementsAttr.get(buffer)))


def _wide(index: ir.Value) -> ir.Value:
    """Returns the index in a dtype that has a number past the end."""
    is_narrow = index.type.element_type.width < 32
    return (
        hlo.convert(_typed(index, index.type.shape, ir.IntegerType.get_signless(32)), index)
        if is_narrow
        else index
    )


def _typed(value: ir.Value, shape: Sequence[int], element_type: ir.Type | None = None) -> ir.Type:
    return ir.RankedTensorType.get(shape, element_type or value.type.element_type)
