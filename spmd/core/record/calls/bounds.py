"""Checks of data on the host: indices in range, and the values that torch's kernels refuse (chances, counts, lengths).

An index out of range raises at the user's line where it is host data, as a batch before its first use. XLA has no such
error: a gather takes the nearest element, a scatter drops the value. Where only the device has the index, the result is
NaN instead, if its rule has NaN to give (see `ops.floats.missing`).
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from ...graph.graph import DeviceData
from ...ops import CHECKS
from ...run.pjrt.transfer import host_array, host_tensor
from ..overloads import Args, Kwargs
from ..resolve import DATA_CHECKS
from ..tensor import XlaTensor
from .copies import strided

DataCheck = Callable[[Args, Kwargs], None]


def on_host(tensor: torch.Tensor) -> np.ndarray | None:
    """The values of a tensor that has not left the host; None where the device made them or has them."""
    if not isinstance(tensor, XlaTensor):
        return host_array(tensor)
    value = tensor._storage.value
    if type(value) is not DeviceData or value.host is None:
        return None
    if tensor._view is None:
        return value.host
    result = strided(tensor, host_tensor(value.host))
    return None if result is None else host_array(result)


def _known(value: object) -> np.ndarray | None:
    """The values of a tensor with elements, where the host has them."""
    values = on_host(value) if isinstance(value, torch.Tensor) else None
    return values if values is not None and values.size else None


def _within(call: str, argument: str, value: object, low: float, high: float = float("inf")) -> None:
    """Raises RuntimeError where an element is not in [low, high]; NaN passes."""
    values = _known(value)
    if values is None:
        return
    outside = values[~((values >= low) & (values <= high))]
    if outside.size:
        span = f"[{low}, {high}]" if high != float("inf") else f"{low} or more"
        raise RuntimeError(f"{call} expects all elements of {argument} to be {span}, but got {outside[0]}")


# --- draws ------------------------------------------------------------------------------------------------------------


def _refuse_negative(value: object, text: str) -> None:
    values = _known(value)
    if values is not None and (values < 0).any():
        raise RuntimeError(f"{text}, but got {values.min()}")


def _normal(args: Args, kwargs: Kwargs) -> None:
    std = args[1] if len(args) > 1 else kwargs.get("std")
    _refuse_negative(std, "normal expects all elements of std >= 0.0")


def _poisson(args: Args, kwargs: Kwargs) -> None:
    _refuse_negative(args[0], "invalid Poisson rate, expected rate to be non-negative")


# Scalar arguments are new at each call, and torch's own checks run once for a shape and dtype.


def _number_of(args: Args, kwargs: Kwargs, index: int, name: str, default: float) -> float:
    value = args[index] if len(args) > index else kwargs.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


def _uniform(args: Args, kwargs: Kwargs) -> None:
    low, high = _number_of(args, kwargs, 1, "from", 0.0), _number_of(args, kwargs, 2, "to", 1.0)
    if low > high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")


def _normal_in_place(args: Args, kwargs: Kwargs) -> None:
    std = _number_of(args, kwargs, 2, "std", 1.0)
    if std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


def _bernoulli(name: str, args: Args, kwargs: Kwargs) -> None:
    chances = args[1] if len(args) > 1 else kwargs.get("p", args[0] if name == "bernoulli" else 0.5)
    if isinstance(chances, torch.Tensor):
        _within(name, "p", chances, 0, 1)
    elif chances is not None and not 0 <= chances <= 1:
        raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={chances}")


def _multinomial(args: Args, kwargs: Kwargs) -> None:
    chances = _known(args[0])
    if chances is None:
        return
    if not (np.isfinite(chances) & (chances >= 0)).all():
        raise RuntimeError("multinomial: probability tensor contains either `inf`, `nan` or element < 0")
    if not (chances.sum(-1) > 0).all():
        raise RuntimeError("multinomial: invalid multinomial distribution (sum of probabilities <= 0)")


# --- counts and lengths -----------------------------------------------------------------------------------------------


def _masked_scatter(args: Args, kwargs: Kwargs) -> None:
    target, mask, source = args
    hits = _known(mask)
    if hits is None or mask.dtype != torch.bool:
        return
    wanted = int(np.count_nonzero(hits)) * (target.numel() // mask.numel())
    if wanted > source.numel():
        raise RuntimeError(
            f"masked_scatter: Number of elements of source < number of ones in mask: {source.numel()} of {wanted}"
        )


def _embedding_bag(args: Args, kwargs: Kwargs) -> None:
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


def _searchsorted(args: Args, kwargs: Kwargs) -> None:
    _within("searchsorted", "sorter", kwargs.get("sorter"), 0, args[0].shape[-1] - 1)


def _repeat_interleave(args: Args, kwargs: Kwargs) -> None:
    repeats, wanted = _known(args[0]), kwargs.get("output_size")
    if repeats is not None and wanted is not None and repeats.sum() != wanted:
        raise RuntimeError(
            f"repeat_interleave: allocated size does not match required size: output_size is {wanted}, the sum of "
            f"repeats {repeats.sum()}"
        )


def _ctc_loss(args: Args, kwargs: Kwargs) -> None:
    if isinstance(args[2], torch.Tensor):
        _within("ctc_loss", "input_lengths", args[2], 0, args[0].shape[0])
        lengths = _known(args[3])
        if lengths is not None:
            CHECKS[torch.ops.aten._ctc_loss.default](*args[:2], [0] * lengths.size, lengths.reshape(-1).tolist())


# --- ranges that are no indices of a dim ------------------------------------------------------------------------------


def _binary_cross_entropy(args: Args, kwargs: Kwargs) -> None:
    for argument, value in zip(("input", "target"), args, strict=False):
        _within("binary_cross_entropy", argument, value, 0, 1)


def _max_unpool(args: Args, kwargs: Kwargs) -> None:
    _within("max_unpool: found an invalid max index: it", "indices", args[1], 0, math.prod(args[2]) - 1)


def _lu_unpack(args: Args, kwargs: Kwargs) -> None:
    if args[3] if len(args) > 3 else kwargs.get("unpack_pivots", True):
        _within("lu_unpack", "pivots", args[1], 1, args[0].shape[-2])


# By the op's name, or by its in-place form's where that checks other arguments.
_VALUES: dict[str, DataCheck] = {
    "normal": _normal,
    "normal_": _normal_in_place,
    "normal_functional": _normal_in_place,
    "uniform": _uniform,
    "bernoulli": partial(_bernoulli, "bernoulli"),
    "bernoulli_": partial(_bernoulli, "bernoulli_"),
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


# --- indices of a dim -------------------------------------------------------------------------------------------------


class _Range(NamedTuple):
    """An index tensor of an op, the range of its values (from lowest, below size), and the value that is ignored."""

    positions: torch.Tensor
    size: int
    lowest: int
    dim: int = 0
    ignored: int | None = None


_Ranges = Callable[[Args], Iterator[_Range]]


def _size(tensor: torch.Tensor, dim: int) -> int:
    return tensor.shape[dim] if tensor.dim() else 1


def _rows(args: Args) -> Iterator[_Range]:
    yield _Range(args[1], args[0].shape[0], 0)


def _along(args: Args) -> Iterator[_Range]:
    yield _Range(args[2], _size(args[0], args[1]), 0, args[1])


def _along_or_from_the_end(args: Args) -> Iterator[_Range]:
    size = _size(args[0], args[1])
    yield _Range(args[2], size, -size, args[1])


def _elements(args: Args) -> Iterator[_Range]:
    size = args[0].numel()
    yield _Range(args[1], size, -size)


def _each(args: Args) -> Iterator[_Range]:
    for dim, index in enumerate(args[1]):
        if index is not None and index.dtype in (torch.int64, torch.int32):
            yield _Range(index, args[0].shape[dim], -args[0].shape[dim], dim)


def _classes(args: Args, ignored: int | None = None) -> Iterator[_Range]:
    if not args[1].is_floating_point():
        dim = 1 if args[0].dim() > 1 else 0
        yield _Range(args[1], _size(args[0], dim), 0, dim, ignored)


def _classes_but_one(args: Args) -> Iterator[_Range]:
    return _classes(args, args[4])


def _classes_of_weight(args: Args) -> Iterator[_Range]:
    yield _Range(args[2], args[1].shape[0], 0, 0, args[6])


# By the op's name, without the `_` of its in-place form: the ranges of its index arguments, and torch's error.
_OPS: dict[str, tuple[_Ranges, type[Exception]]] = {
    "embedding": (_rows, IndexError),
    "_embedding_bag": (_rows, RuntimeError),
    "_embedding_bag_forward_only": (_rows, RuntimeError),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce", "index_add"), (_along, RuntimeError)),
    **dict.fromkeys(("index_select", "index_copy", "index_reduce"), (_along, IndexError)),
    "index_fill": (_along_or_from_the_end, IndexError),
    **dict.fromkeys(("take", "put"), (_elements, IndexError)),
    **dict.fromkeys(("index", "index_put", "_index_put_impl", "_unsafe_index"), (_each, IndexError)),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "cross_entropy"), (_classes_but_one, IndexError)),
    "linear_cross_entropy": (_classes_of_weight, IndexError),
    "multi_margin_loss": (_classes, RuntimeError),
}


def _selects_nothing(name: str, args: Args) -> bool:
    """True if an index selects no element at all: torch does not check it then."""
    sizes = dict(enumerate(args[0].shape))
    if name in ("index_add", "index_copy", "index_fill"):
        sizes.pop(args[1] % args[0].dim() if args[0].dim() else 0, None)
        return 0 in sizes.values()
    if name not in ("index", "index_put", "_index_put_impl", "_unsafe_index"):
        return False
    indices = {dim: index for dim, index in enumerate(args[1]) if index is not None}
    return any(index.numel() == 0 for index in indices.values()) or any(
        size == 0 for dim, size in sizes.items() if dim not in indices
    )


def _check_ranges(name: str, args: Args, kwargs: Kwargs) -> None:
    """Raises torch's error where an index is out of range; then checks the other values."""
    ranges, error = _OPS[name]
    for positions, size, lowest, dim, ignored in ranges(args):
        values = on_host(positions)
        if values is None or not values.size or (values.min() >= lowest and values.max() < size):
            continue
        outside = values[(values < lowest) | (values >= size)]
        outside = outside[outside != ignored] if ignored is not None else outside
        if outside.size and not _selects_nothing(name, args):
            raise error(f"{name}: index {outside[0]} is out of bounds for dim {dim} with size {size}")
    if name in _VALUES:
        _VALUES[name](args, kwargs)


DATA_CHECKS.update(_VALUES)
DATA_CHECKS.update({name: partial(_check_ranges, name) for name in _OPS})
