"""Rules of padded dims (see `case`) for convolutions and pools: the same after the length as
outside the border."""

from collections.abc import Sequence

import torch

from ...core.extend import windows
from .case import LOW, Case, NoRule, padded
from .sums import refuse_most

aten = torch.ops.aten


@padded(aten.convolution.default)
def convolution(case: Case) -> None:
    """A window reads zeros after the length, as it does outside the border."""
    refuse_most(case)
    _refuse_padded_kernel(case, 0, 1)
    for dim, size in case.pads[0].items():
        case.fill(0, dim, 0)
        settings = (
            case.shapes[1][2:],
            *(case.arguments[name] for name in ("stride", "padding", "dilation")),
        )
        case.result_pads[0][dim] = (
            size if dim == 0 else _num_windows(size, dim - 2, len(case.shapes[0]) - 2, *settings)
        )


@padded(aten.convolution_backward.default)
def convolution_backward(case: Case) -> None:
    """The result's gradient is zero after the length, and so is the part of the input's gradient
    that it leads to."""
    refuse_most(case)
    _refuse_padded_kernel(case, 1, 2)
    case.level([(0, 0), (1, 0)])
    for operand in (0, 1):
        for dim in case.pads[operand]:
            case.fill(operand, dim, 0)
    if case.arguments["output_mask"][0]:
        case.result_pads[0] |= case.pads[1]


def _refuse_padded_kernel(case: Case, operand: int, kernel: int) -> None:
    if case.pads[kernel] or 1 in case.pads[operand]:
        raise NoRule("has padded channels")
    if case.arguments["transposed"]:
        raise NoRule("is transposed")


def _num_windows(size: int, dim: int, rank: int, *settings: int | Sequence[int]) -> int:
    """The number of windows in a spatial dim of this size. settings: kernel, stride, padding,
    dilation."""
    kernel, stride, padding, dilation = (windows.per_dim(values, rank)[dim] for values in settings)
    return int((size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)


@padded(aten.max_pool2d_with_indices.default)
def max_pool(case: Case) -> None:
    """The indices are positions in the padded plane; only the gradient reads them."""
    if case.arguments.get("ceil_mode", False):
        raise NoRule("has windows that reach over the border")
    first, kernel, argument = (
        len(case.shapes[0]) - 2,
        case.arguments["kernel_size"],
        case.arguments.get,
    )
    settings = kernel, argument("stride") or kernel, argument("padding", 0), argument("dilation", 1)
    for dim, size in case.pads[0].items():
        case.fill(0, dim, LOW)
        result = size if dim < first else _num_windows(size, dim - first, 2, *settings)
        case.result_pads[0][dim] = case.result_pads[1][dim] = result


@padded(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(case: Case) -> None:
    rank = len(case.shapes[0])
    for dim in range(rank):
        case.level([(0, dim), (2, dim)] if dim >= rank - 2 else [(0, dim), (1, dim), (2, dim)])
        case.fill(0, dim, 0)
    case.result_pads[0] |= case.pads[1]
