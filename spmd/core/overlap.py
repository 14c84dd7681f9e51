"""Writes that torch refuses because memory would be written twice, or read after it was written."""

from typing import Any

from .ir import Meta
from .tensor import XlaTensor

# One number in every element is the same however often it is written.
_UNIFORM = frozenset({"zero", "fill"})

# With `out=` these read their operands while they write, so that even the very same memory is refused.
_READ_LATE = frozenset({
    "bernoulli", "cat", "gather", "index_add", "index_copy", "index_select", "kthvalue", "masked_select", "median",
    "mode", "multinomial", "nanmedian", "put", "scatter", "scatter_add", "scatter_reduce", "take",
})  # fmt: skip


def check_target(name: str, base: str, target: Meta) -> None:
    """Refuses a write into a tensor some of whose elements are one place in memory, such as an expanded one."""
    if base in _UNIFORM or not any(
        stride == 0 and size > 1 for size, stride in zip(target.shape, target.strides, strict=True)
    ):
        return
    raise RuntimeError(
        f"{name}: unsupported operation: more than one element of the written-to tensor refers to a single memory "
        f"location (shape {list(target.shape)}, strides {list(target.strides)}). Please clone() the tensor before "
        "performing the operation."
    )


def check_targets(name: str, base: str, targets: Any) -> None:
    """`check_target` of one tensor or a list of them."""
    for target in targets if isinstance(targets, (list, tuple)) else [targets]:
        if type(target) is XlaTensor:
            check_target(name, base, target._meta)


def check_operands(name: str, target: XlaTensor, operands: Any, *, base: str = "") -> None:
    """Refuses a write into memory that an operand shares in part; for some ops with `out=`, in whole."""
    for operand in operands:
        if type(operand) in (list, tuple):
            check_operands(name, target, operand, base=base)
        elif type(operand) is XlaTensor and operand._cell is target._cell and _overlap(operand, target, base):
            raise RuntimeError(
                f"{name}: unsupported operation: some elements of the input tensor and the written-to tensor refer to "
                "a single memory location. Please clone() the tensor before performing the operation."
            )


def _overlap(one: XlaTensor, other: XlaTensor, base: str) -> bool:
    if one._meta is other._meta:
        return base in _READ_LATE
    spans = [_span(tensor._meta) for tensor in (one, other)]
    if None in spans:
        return False  # torch, too, does not look into tensors with gaps
    (begin, end), (start, stop) = spans  # type: ignore[misc]
    if (begin, end) == (start, stop) and one._meta.strides == other._meta.strides:
        return base in _READ_LATE
    return begin < stop and start < end


def _span(meta: Meta) -> tuple[int, int] | None:
    """The bytes that a tensor without gaps and overlaps fills; None for others."""
    step = 1
    for stride, size in sorted((s, d) for s, d in zip(meta.strides, meta.shape, strict=True) if d != 1):
        if stride != step:
            return None
        step *= size
    begin = meta.offset * meta.dtype.itemsize
    return (begin, begin + meta.nbytes) if meta.numel else None
