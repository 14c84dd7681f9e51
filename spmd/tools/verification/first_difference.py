"""The first recorded op whose values differ between one device and a mesh."""

from difflib import SequenceMatcher

import torch

from .one_run import Outcome
from .rounding import tolerance


def distance(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    """The largest absolute difference of two values; infinite where only one is there, is a NaN, or has this shape."""
    if one is None or other is None or one.shape != other.shape:
        return float("inf")
    if not one.numel():
        return 0.0
    wide, other = _wide(one), _wide(other)
    same = (wide == other) | (wide.isnan() & other.isnan())
    return float((wide - other).abs().nan_to_num(nan=float("inf"), posinf=float("inf")).where(~same, 0.0).max())


def magnitude(value: torch.Tensor) -> float:
    """The largest finite absolute value."""
    wide = _wide(value).abs()
    finite = wide[wide.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def first_difference(reference: Outcome, narrow: Outcome, other: Outcome) -> str:
    """The text of the first op, in the order of recording, that differs by more than its tolerance; "" for none.

    reference, narrow: on one device in float64 and in a narrow dtype. other: on the mesh, in float64. All with ops.
    """
    ours, theirs = [op.key for op in reference.ops], [op.key for op in other.ops]
    measured = {op_number: narrow.ops[op_number] for op_number in range(min(len(narrow.ops), len(reference.ops)))}
    for block in SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            first, second = reference.ops[block.a + step], other.ops[block.b + step]
            sample = measured.get(block.a + step)
            if sample is None or sample.key != first.key:
                sample = first
            allowed = tolerance(first.path, magnitude(first.value), distance(sample.value, first.value), sample.path)
            off = distance(first.value, second.value)
            if off > allowed:
                return f"{first.text}: differs by {off:.3g} where {allowed:.3g} is allowed"
    return ""
