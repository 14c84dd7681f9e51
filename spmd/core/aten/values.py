"""Checks of the values that torch's kernels refuse (probabilities, counts, lengths), where they are host data."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..graph.graph import DeviceData
from ..ops import CHECKS
from ..record.overloads import Kwargs
from ..record.tensor import XlaTensor
from ..run.pjrt.transfer import host_array, host_tensor
from .copies import strided


def on_host(tensor: torch.Tensor) -> np.ndarray | None:
    """The values of a tensor that has not left the host; None where the device made them or has them."""
    if type(tensor) is not XlaTensor:
        return host_array(tensor)
    value = tensor._storage.value
    if type(value) is not DeviceData or value.host is None:
        return None
    if tensor._view is None:
        return value.host
    result = strided(tensor, host_tensor(value.host))
    return None if result is None else result.numpy()


def _known(value: torch.Tensor | None) -> np.ndarray | None:
    """The values of a tensor with elements, where the host has them."""
    found = on_host(value) if isinstance(value, torch.Tensor) else None
    return found if found is not None and found.size else None


def _within(name: str, what: str, value: torch.Tensor | None, low: float, high: float = float("inf")) -> None:
    """Raises RuntimeError where an element is not in [low, high]; NaN passes."""
    values = _known(value)
    if values is None:
        return
    outside = values[~((values >= low) & (values <= high))]
    if outside.size:
        span = f"[{low}, {high}]" if high != float("inf") else f"{low} or more"
        raise RuntimeError(f"{name} expects all elements of {what} to be {span}, but got {outside[0]}")


# --- draws ------------------------------------------------------------------------------------------------------------


def _normal(args: Sequence[Any], kwargs: Kwargs) -> None:
    std = args[1] if len(args) > 1 else kwargs.get("std")
    values = _known(std)
    if values is not None and (values < 0).any():
        raise RuntimeError(f"normal expects all elements of std >= 0.0, but got {values.min()}")


# Scalar arguments are new at each call, and torch's own checks run once for a shape and dtype.


def _number_of(args: Sequence[Any], kwargs: Kwargs, place: int, name: str, default: float) -> float:
    value = args[place] if len(args) > place else kwargs.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


def _uniform(args: Sequence[Any], kwargs: Kwargs) -> None:
    low, high = _number_of(args, kwargs, 1, "from", 0.0), _number_of(args, kwargs, 2, "to", 1.0)
    if low > high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")


def _normal_in_place(args: Sequence[Any], kwargs: Kwargs) -> None:
    std = _number_of(args, kwargs, 2, "std", 1.0)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


def _bernoulli(args: Sequence[Any], kwargs: Kwargs) -> None:
    if len(args) == 1 and "p" not in kwargs:
        _within("bernoulli", "p", args[0], 0, 1)


def _bernoulli_in_place(args: Sequence[Any], kwargs: Kwargs) -> None:
    chances = args[1] if len(args) > 1 else kwargs.get("p")
    if isinstance(chances, torch.Tensor):
        _within("bernoulli_", "p", chances, 0, 1)
    elif chances is not None and not 0 <= chances <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={chances}")


def _multinomial(args: Sequence[Any], kwargs: Kwargs) -> None:
    chances = _known(args[0])
    if chances is None:
        return
    if not (np.isfinite(chances) & (chances >= 0)).all():
        raise RuntimeError("multinomial: probability tensor contains either `inf`, `nan` or element < 0")
    if not (chances.sum(-1) > 0).all():
        raise RuntimeError("multinomial: invalid multinomial distribution (sum of probabilities <= 0)")


def _poisson(args: Sequence[Any], kwargs: Kwargs) -> None:
    rates = _known(args[0])
    if rates is not None and (rates < 0).any():
        raise RuntimeError(f"invalid Poisson rate, expected rate to be non-negative, but got {rates.min()}")


# --- counts and lengths -----------------------------------------------------------------------------------------------


def _masked_scatter(args: Sequence[Any], kwargs: Kwargs) -> None:
    target, mask, source = args
    hits = _known(mask)
    if hits is None or mask.dtype != torch.bool:
        return
    wanted = int(np.count_nonzero(hits)) * (target.numel() // mask.numel())
    if wanted > source.numel():
        raise RuntimeError(
            f"masked_scatter: Number of elements of source < number of ones in mask: {source.numel()} of {wanted}"
        )


def _embedding_bag(args: Sequence[Any], kwargs: Kwargs) -> None:
    offsets = _known(args[2])
    if offsets is None:
        return
    count = args[1].shape[0]
    if offsets[0] != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. However, "
            f"got {offsets[0]}"
        )
    if offsets[-1] > count:
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of {offsets[-1]}"
        )


def _searchsorted(args: Sequence[Any], kwargs: Kwargs) -> None:
    _within("searchsorted", "sorter", kwargs.get("sorter"), 0, args[0].shape[-1] - 1)


def _repeat_interleave(args: Sequence[Any], kwargs: Kwargs) -> None:
    repeats, wanted = _known(args[0]), kwargs.get("output_size")
    if repeats is not None and wanted is not None and repeats.sum() != wanted:
        raise RuntimeError(
            f"repeat_interleave: allocated size does not match required size: output_size is {wanted}, the sum of "
            f"repeats {repeats.sum()}"
        )


def _ctc_loss(args: Sequence[Any], kwargs: Kwargs) -> None:
    if isinstance(args[2], torch.Tensor):
        _within("ctc_loss", "input_lengths", args[2], 0, args[0].shape[0])
        lengths = _known(args[3])
        if lengths is not None:
            CHECKS[torch.ops.aten._ctc_loss.default](*args[:2], [0] * lengths.size, lengths.reshape(-1).tolist())


# --- ranges that are no indices of a dim ------------------------------------------------------------------------------


def _binary_cross_entropy(args: Sequence[Any], kwargs: Kwargs) -> None:
    for what, value in zip(("input", "target"), args, strict=False):
        _within("binary_cross_entropy", what, value, 0, 1)


def _max_unpool(args: Sequence[Any], kwargs: Kwargs) -> None:
    size = 1
    for length in args[2]:
        size *= length
    _within("max_unpool: found an invalid max index: it", "indices", args[1], 0, size - 1)


def _lu_unpack(args: Sequence[Any], kwargs: Kwargs) -> None:
    if args[3] if len(args) > 3 else kwargs.get("unpack_pivots", True):
        _within("lu_unpack", "pivots", args[1], 1, args[0].shape[-2])


# By the op's name, or by its in-place form's where that checks other arguments.
VALUES: dict[str, Callable[[Sequence[Any], dict[str, Any]], None]] = {
    "normal": _normal,
    "normal_": _normal_in_place,
    "normal_functional": _normal_in_place,
    "uniform": _uniform,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli_in_place,
    "multinomial": _multinomial,
    "poisson": _poisson,
    "masked_scatter": _masked_scatter,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "searchsorted": _searchsorted,
    "repeat_interleave": _repeat_interleave,
    "_ctc_loss": _ctc_loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "max_unpool2d": _max_unpool,
    "max_unpool3d": _max_unpool,
    "lu_unpack": _lu_unpack,
}
