"""Ops as kernels of torch's on the CPU, for small values computed on the host: rows of
`graph.op.host_kernels`."""

from collections.abc import Sequence

import torch

from ....ops.random import permutation_on_host
from ...base.dtypes import is_exact
from ...graph.op import OnHost, OpSpec, host_kernels
from ...passes.dynamic import Unpad
from ..lowerings import Call, Fill
from ..overloads import fill, makes_tensors


@host_kernels.register
def _kernel(lowering: Call, op: OpSpec, *, rounds: bool = False) -> OnHost | None:
    """torch's own CPU kernel, for integers, booleans and ops without rounding: equal bits on every
    device. rounds: also for others of matchers."""
    overload = lowering.overload
    if rounds and overload is torch.ops.aten.randperm.default:
        return lambda operands, numbers: [
            torch.from_numpy(permutation_on_host(op.metas[0].numel, *map(int, numbers[-2:])))
        ]
    # A float that the host rounds may differ from the device's in the last bit.
    has_equal_bits = _is_exact(op) or overload.overloadpacket in _EXACT_OF_FLOATS
    fits = has_equal_bits or (rounds and lowering.rule.function.__module__ in _OF_MATCHERS)
    if overload.namespace != "aten" or lowering.rule.wants_draw or not fits:
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
def _filled(lowering: Fill, op: OpSpec, *, rounds: bool = False) -> OnHost | None:
    """The host's fill of an exact dtype; None for others, unless the host may round."""
    if not (rounds or _is_exact(op)):
        return None
    (meta,), constant = op.metas, op.constant

    def run(operands: list[torch.Tensor], numbers: Sequence[float | int]) -> list[torch.Tensor]:
        value = numbers[0] if constant == "lifted" else constant
        return [torch.full(meta.shape, value, dtype=meta.dtype, device="cpu")]

    return run


@host_kernels.register
def _unpad(lowering: Unpad, op: OpSpec, *, rounds: bool = False) -> OnHost:
    """The rows of padded data before its length."""
    return lambda operands, numbers: [operands[0][tuple(map(slice, op.metas[0].shape))]]


# The rules of ops that match boxes: torch has a kernel of them on the CPU for each dtype.
_OF_MATCHERS = frozenset(
    f"spmd.ops.{family}" for family in ("pointwise", "reduce", "shape", "index", "order", "create")
)
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
