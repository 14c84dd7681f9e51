"""Ops as kernels of torch's on the CPU, for small values computed on the host: rows of
`graph.op.host_kernels`."""

from collections.abc import Sequence

import torch

from ...base.dtypes import is_exact
from ...graph.op import OnHost, OpSpec, host_kernels
from ..lowerings import Call, Fill
from ..overloads import fill, makes_tensors


@host_kernels.register
def _kernel(lowering: Call, op: OpSpec) -> OnHost | None:
    """torch's own CPU kernel, for integers, booleans and ops without rounding: equal bits on every
    device."""
    overload = lowering.overload
    # A float that the host rounds may differ from the device's in the last bit.
    has_equal_bits = _is_exact(op) or overload.overloadpacket in _EXACT_OF_FLOATS
    if overload.namespace != "aten" or lowering.rule.wants_draw or not has_equal_bits:
        return None
    # The bound arguments have no device: a factory gets the host's.
    device = {"device": torch.device("cpu")} if makes_tensors(overload) else {}

    def run(operands: list[torch.Tensor], numbers: Sequence[float | int]) -> list[torch.Tensor]:
        arguments = {
            name: fill(value, operands.__getitem__, numbers.__getitem__)
            for name, value in lowering.arguments
        }
        result = overload(**arguments, **device)
        result = result if isinstance(result, (tuple, list)) else [result]
        return [item for item in result if isinstance(item, torch.Tensor)]

    return run


@host_kernels.register
def _filled(lowering: Fill, op: OpSpec) -> OnHost | None:
    """The host's fill of an exact dtype; None for others."""
    if not _is_exact(op):
        return None
    (meta,), constant = op.metas, op.constant

    def run(operands: list[torch.Tensor], numbers: Sequence[float | int]) -> list[torch.Tensor]:
        value = numbers[0] if constant == "lifted" else constant
        return [torch.full(meta.shape, value, dtype=meta.dtype, device="cpu")]

    return run


# Ops that compare or move floats, and round none: their results are the same wherever they are
# computed.
_EXACT_OF_FLOATS = frozenset(
    getattr(torch.ops.aten, name)
    for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "any", "all",
        "_is_all_true", "_is_any_true", "max", "min", "amax", "amin", "abs", "neg", "where",
        "clone", "detach", "alias", "select", "slice", "view", "_unsafe_view", "unsqueeze",
        "squeeze", "expand", "permute", "transpose", "t", "diagonal",
    )
)  # fmt: skip


def _is_exact(op: OpSpec) -> bool:
    """True if all operands and results are integers or booleans."""
    return all(is_exact(meta.dtype) for meta in (*op.metas, *op.operands))
