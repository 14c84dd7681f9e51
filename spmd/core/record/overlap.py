"""Refused writes: memory written twice, or read after its write."""

import functools
from collections.abc import Sequence

import torch

from ..graph.graph import Value
from ..graph.meta import Meta
from .overloads import TorchValue
from .tensor import XlaTensor

# One number in every element is the same however often it is written.
_UNIFORM = frozenset({"zero", "fill"})

# These read their operands while they write, with `out=` or (with the underscore) in place, so that
# even the very same memory is refused.
_READ_LATE = frozenset({
    "bernoulli", "cat", "gather", "index_add", "index_copy", "index_select", "kthvalue",
    "masked_select", "median", "mode", "multinomial", "nanmedian", "put", "scatter", "scatter_add",
    "scatter_reduce", "take", "index_add_", "index_copy_", "index_fill_", "index_reduce_", "put_",
    "scatter_", "scatter_add_", "scatter_reduce_",
})  # fmt: skip


def check_targets(name: str, base: str, targets: Sequence[torch.Tensor]) -> None:
    """Raises RuntimeError for writes into tensors with several elements at one place in memory,
    such as expanded ones."""
    for meta in [target._meta for target in targets if isinstance(target, XlaTensor)]:
        is_repeated = any(
            stride == 0 and size > 1 for size, stride in zip(meta.shape, meta.strides, strict=True)
        )
        if is_repeated and meta.numel and base not in _UNIFORM:
            raise RuntimeError(
                f"{name}: unsupported operation: more than one element of the written-to tensor "
                f"refers to a single memory location (shape {list(meta.shape)}, strides "
                f"{list(meta.strides)}). Please clone() the tensor before performing the "
                "operation."
            )


def check_operands(
    name: str, target: XlaTensor, operands: Sequence[TorchValue], *, base: str = ""
) -> None:
    """Raises RuntimeError for a write into memory shared in part with an operand; for some ops,
    also in full.

    base: the base name of an op with `out=`, empty for an op in place.
    """
    for operand in operands:
        if type(operand) in (list, tuple):
            check_operands(name, target, operand, base=base)
        elif (
            isinstance(operand, XlaTensor)
            and operand._storage is target._storage
            # empty tensors share no memory
            and (operand is target or (operand._meta.numel and target._meta.numel))
            and _overlap(
                # an op in place is listed with an underscore
                operand,
                target,
                reads_late=(base or f"{name.split('.')[1].removesuffix('_')}_") in _READ_LATE,
            )
        ):
            raise RuntimeError(
                f"{name}: unsupported operation: some elements of the input tensor and the "
                "written-to tensor refer to a single memory location. Please clone() the tensor "
                "before performing the operation."
            )


def elements_overlap(
    operands: Sequence[Value], targets: Sequence[TorchValue], lists: Sequence[TorchValue]
) -> bool:
    """True if an element of a list op writes memory of a later element: torch computes one after
    the other.

    operands: the values of all operands. lists: the arguments after the targets, lists of tensors
    among them.
    """
    operand_lists = [
        value
        for value in lists
        if type(value) in (list, tuple) and value and isinstance(value[0], XlaTensor)
    ]
    # Different values without views are in different memory.
    if len(set(operands)) == len(operands) and not any(
        [tensor._view for tensors in (targets, *operand_lists) for tensor in tensors]  # noqa: C419
    ):
        return False
    written: dict[object, list[tuple[int, int]]] = {}
    for i, target in enumerate(targets):
        reads = [
            tensors[i]
            for tensors in operand_lists
            if i < len(tensors) and isinstance(tensors[i], XlaTensor)
        ]
        for tensor in (target, *reads):
            begin, end = byte_range(tensor._meta)
            if any(
                begin < written_end and written_begin < end
                for written_begin, written_end in written.get(tensor._storage, ())
            ):
                return True
        written.setdefault(target._storage, []).append(byte_range(target._meta))
    return False


@functools.lru_cache(4096)
def byte_range(meta: Meta) -> tuple[int, int]:
    """The range of bytes from a tensor's first element to its last."""
    if not meta.numel:
        return 0, 0
    return meta.offset * meta.dtype.itemsize, meta.make().untyped_storage().nbytes()


def _overlap(operand: XlaTensor, target: XlaTensor, *, reads_late: bool) -> bool:
    """True if a write to `target` would change `operand` in part. reads_late: the op reads while it
    writes, so that equal memory counts, too."""
    if operand._meta is target._meta:
        return reads_late
    if not fills_memory(operand._meta) or not fills_memory(target._meta):
        return False  # torch, too, does not look into tensors with gaps
    (begin, end), (target_begin, target_end) = map(byte_range, (operand._meta, target._meta))
    if (begin, end) == (target_begin, target_end) and operand._meta.strides == target._meta.strides:
        return reads_late
    return begin < target_end and target_begin < end


@functools.lru_cache(4096)
def fills_memory(meta: Meta) -> bool:
    """True if a tensor's elements fill a part of memory without gaps or overlaps; true for a tensor
    without elements."""
    memory = torch.empty_strided(meta.shape, meta.strides, device="meta")
    return not meta.numel or torch.ops.aten.is_non_overlapping_and_dense(memory)
