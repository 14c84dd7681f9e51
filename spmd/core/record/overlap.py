"""Writes that torch refuses because memory would be written twice, or read after it was written."""

from collections.abc import Sequence

import torch

from ..graph.graph import Value
from ..graph.meta import Meta
from .overloads import TorchValue
from .tensor import XlaTensor

# One number in every element is the same however often it is written.
_UNIFORM = frozenset({"zero", "fill"})

# These read their operands while they write, with `out=` or (with the underscore) in place, so that even the very same
# memory is refused.
_READ_LATE = frozenset({
    "bernoulli", "cat", "gather", "index_add", "index_copy", "index_select", "kthvalue", "masked_select", "median",
    "mode", "multinomial", "nanmedian", "put", "scatter", "scatter_add", "scatter_reduce", "take",
    "index_add_", "index_copy_", "index_fill_", "index_reduce_", "put_", "scatter_", "scatter_add_", "scatter_reduce_",
})  # fmt: skip


def check_target(name: str, base: str, target: Meta) -> None:
    """Raises RuntimeError for a write into a tensor with several elements at one place in memory, such as an expanded
    one."""
    repeated = any(stride == 0 and size > 1 for size, stride in zip(target.shape, target.strides, strict=True))
    if not repeated or base in _UNIFORM or not target.numel:
        return
    raise RuntimeError(
        f"{name}: unsupported operation: more than one element of the written-to tensor refers to a single memory "
        f"location (shape {list(target.shape)}, strides {list(target.strides)}). Please clone() the tensor before "
        "performing the operation."
    )


def check_targets(name: str, base: str, targets: Sequence[torch.Tensor]) -> None:
    """`check_target` for those of the tensors that are on the device."""
    for target in targets:
        if isinstance(target, XlaTensor):
            check_target(name, base, target._meta)


def check_operands(name: str, target: XlaTensor, operands: Sequence[TorchValue], *, base: str = "") -> None:
    """Raises RuntimeError for a write into memory that an operand shares in part; for some ops, also in full. base: the
    base name of an op with `out=`, empty for an op in place."""
    for operand in operands:
        if type(operand) in (list, tuple):
            check_operands(name, target, operand, base=base)
        elif (
            isinstance(operand, XlaTensor)
            and operand._storage is target._storage
            and (operand is target or (operand._meta.numel and target._meta.numel))  # empty tensors share no memory
            and _overlap(operand, target, (base or f"{name.split('.')[1].removesuffix('_')}_") in _READ_LATE)
        ):
            raise RuntimeError(
                f"{name}: unsupported operation: some elements of the input tensor and the written-to tensor refer to "
                "a single memory location. Please clone() the tensor before performing the operation."
            )


def elements_meet(operands: Sequence[Value], targets: Sequence[TorchValue], lists: Sequence[TorchValue]) -> bool:
    """True if one element of a list op, which torch computes one after the other, writes memory that a later one reads
    or writes.

    operands: the values of all operands. lists: the lists of tensors (or of something else) in addition to the targets.
    """
    others = [each for each in lists if type(each) in (list, tuple) and each and isinstance(each[0], XlaTensor)]
    if len(set(operands)) == len(operands) and not any([t._view for each in (targets, *others) for t in each]):  # noqa: C419
        return False
    written: dict[object, list[tuple[int, int]]] = {}
    for i, target in enumerate(targets):
        reads = [each[i] for each in others if i < len(each) and isinstance(each[i], XlaTensor)]
        for tensor in (target, *reads):
            begin, end = _reach(tensor._meta)
            if any(begin < stop and start < end for start, stop in written.get(tensor._storage, ())):
                return True
        written.setdefault(target._storage, []).append(_reach(target._meta))
    return False


def _reach(meta: Meta) -> tuple[int, int]:
    """The range of bytes from a tensor's first element to its last."""
    if not meta.numel:
        return 0, 0
    last = meta.offset + sum((size - 1) * stride for size, stride in zip(meta.shape, meta.strides, strict=True))
    return meta.offset * meta.dtype.itemsize, (last + 1) * meta.dtype.itemsize


def _overlap(one: XlaTensor, other: XlaTensor, reads_late: bool) -> bool:
    if one._meta is other._meta:
        return reads_late
    if not fills_memory(one._meta) or not fills_memory(other._meta):
        return False  # torch, too, does not look into tensors with gaps
    (begin, end), (start, stop) = _reach(one._meta), _reach(other._meta)
    if (begin, end) == (start, stop) and one._meta.strides == other._meta.strides:
        return reads_late
    return begin < stop and start < end


def fills_memory(meta: Meta) -> bool:
    """True if a tensor's elements fill a part of memory without gaps or overlaps; one without elements does."""
    step = 1
    for stride, size in sorted((s, d) for s, d in zip(meta.strides, meta.shape, strict=True) if d != 1):
        if stride != step and meta.numel:
            return False
        step *= size
    return True
