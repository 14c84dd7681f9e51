"""Checks of data on the host: ranges of indices, chances, counts and lengths, as torch's kernels
check them.

An index out of range raises at the user's line where it is host data, as a batch before its first
use. XLA has no such error: a gather takes the nearest element, a scatter drops the value. Where
only the device has the index, the result is NaN instead, if its rule has NaN to give (see
`ops.floats.missing`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....ops import CHECKS
from ...graph.graph import DeviceData
from ...run.pjrt.transfer import host_array, host_tensor
from ..overloads import Plan, TorchValue
from ..tensor import XlaTensor
from .copies import strided

_Ranges = Callable[..., Iterable["Range"]]
_INF = math.inf
_LEAST = math.ulp(0.0)  # the least number above 0


def on_host(tensor: torch.Tensor) -> np.ndarray | None:
    """The values of a tensor on the host, before its upload; else None."""
    if not isinstance(tensor, XlaTensor):
        return host_array(tensor)
    value = tensor._storage.value
    if type(value) is not DeviceData or value.host is None:
        return None
    if tensor._view is None:
        return value.host
    result = strided(tensor, host_tensor(value.host))
    return None if result is None else host_array(result)


def _host_values(value: TorchValue) -> np.ndarray | None:
    """The values of a number, an array or a tensor; None without elements, or not on the host."""
    if isinstance(value, Tensor):
        value = on_host(value)
    elif not isinstance(value, (int, float, np.ndarray, np.generic)):
        return None
    values = np.asarray(value)
    return values if value is not None and values.size else None


class Range(NamedTuple):
    """Bounds of a number or of a tensor's elements, and torch's error: `{0}` is a value outside,
    `{op}` the op's name.

    ignored: a value outside the bounds that is allowed.
    """

    value: TorchValue
    low: float
    high: float
    text: str
    error: type[Exception] = RuntimeError
    ignored: int | None = None


def check_ranges(op: str, ranges: Iterable[Range]) -> None:
    """Raises a range's error where the host knows a value outside of it, or NaN."""
    for value, low, high, text, error, ignored in ranges:
        if isinstance(value, (int, float)) and low <= value <= high:
            continue  # without numpy: each draw comes here
        values = _host_values(value)
        if values is None or (values.min() >= low and values.max() <= high):
            continue
        outside = values[~((values >= low) & (values <= high))]
        outside = outside[outside != ignored] if ignored is not None else outside
        if outside.size:
            raise error(text.format(outside[0], op=op))


# --- indices of a dim -----------------------------------------------------------------------------


def _index_range(
    index: Tensor,
    size: int,
    dim: int = 0,
    *,
    lowest: int = 0,
    error: type[Exception] = IndexError,
    ignored: int | None = None,
) -> Range:
    """The range of an index into a dim of this size."""
    text = f"{{op}}: index {{0}} is out of bounds for dim {dim} with size {size}"
    return Range(index, lowest, size - 1, text, error, ignored)


def _dim_size(tensor: Tensor, dim: int) -> int:
    return tensor.shape[dim] if tensor.dim() else 1


def _index_along_dim(
    error: type[Exception], self: Tensor, dim: int, index: Tensor, *_: object, **__: object
) -> list[Range]:
    """The range of an index along `dim`, without negative indices."""
    return [_index_range(index, _dim_size(self, dim), dim, error=error)]


def _unless_empty(
    ranges: _Ranges, self: Tensor, dim: int, *args: object, **kwargs: object
) -> Iterable[Range]:
    """The ranges of an index along `dim`; none if another dim of the tensor is empty, as torch then
    reads no index."""
    other_sizes = [size for i, size in enumerate(self.shape) if i != dim % self.dim()]
    return () if 0 in other_sizes else ranges(self, dim, *args, **kwargs)


def _indices_by_dim(
    self: Tensor, indices: Sequence[Tensor | None], *_: object, **__: object
) -> Iterator[Range]:
    """The ranges of indices of several dims, with None for dims that are not indexed."""
    indexed = {dim: index for dim, index in enumerate(indices) if index is not None}
    unindexed = [size for dim, size in enumerate(self.shape) if dim not in indexed]
    if 0 in unindexed or not all(index.numel() for index in indexed.values()):
        return  # torch reads no index that selects no element
    for dim, index in indexed.items():
        if index.dtype in (torch.int64, torch.int32):
            yield _index_range(index, self.shape[dim], dim, lowest=-self.shape[dim])


def _flat_index(self: Tensor, index: Tensor, *_: object, **__: object) -> list[Range]:
    """The range of an index into the flattened tensor."""
    return [_index_range(index, self.numel(), lowest=-self.numel())]


def _classes(
    error: type[Exception], self: Tensor, target: Tensor, ignored: int | None = None
) -> list[Range]:
    """The range of class indices; none for a target of probabilities."""
    dim = 1 if self.dim() > 1 else 0
    return (
        []
        if target.is_floating_point()
        else [_index_range(target, _dim_size(self, dim), dim, error=error, ignored=ignored)]
    )


# --- chances, counts and lengths ------------------------------------------------------------------


def _multinomial(self: Tensor, *_: object, **__: object) -> Iterator[Range]:
    """The chances are finite and not below 0, and their sum is above 0."""
    chances = _host_values(self)
    if chances is not None:
        text = "{op}: probability tensor contains either `inf`, `nan` or element < 0"
        # Booleans, all within [True, True].
        yield Range(np.isfinite(chances) & (chances >= 0), True, True, text)
        text = "{op}: invalid multinomial distribution (sum of probabilities <= 0)"
        yield Range(chances.sum(-1) > 0, True, True, text)


def _masked_scatter(self: Tensor, mask: Tensor, source: Tensor, **_: object) -> Iterator[Range]:
    """The source has an element for each True of the mask."""
    selected = _host_values(mask) if mask.dtype == torch.bool else None
    if selected is not None:
        count = int(np.count_nonzero(selected)) * (self.numel() // mask.numel())
        text = f"{{op}}: Number of elements of source < number of ones in mask: {{0}} of {count}"
        yield Range(source.numel(), count, _INF, text)


def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, *_: object, **__: object
) -> Iterator[Range]:
    """The ranges of the indices, of the first offset and of the last."""
    yield _index_range(indices, weight.shape[0], error=RuntimeError)
    starts, count = _host_values(offsets), indices.shape[0]
    if starts is not None:
        text = (
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            "position 0. However, got {0}"
        )
        yield Range(starts[0], 0, 0, text)
        text = (
            f"offsets[-1] can not be greater than input's length {count} but got offsets[-1] of "
            "{0}"
        )
        yield Range(starts[-1], -_INF, count, text)


def _repeat_interleave(
    repeats: Tensor, *operands: object, output_size: int | None = None, **_: object
) -> Iterator[Range]:
    """The sum of the repeats is `output_size`, if the caller passes it. The overloads with a tensor
    to repeat decompose into this one."""
    counts = _host_values(repeats) if output_size is not None and not operands else None
    if counts is not None:
        text = (
            f"{{op}}: allocated size does not match required size: output_size is {output_size}, "
            "the sum of repeats {0}"
        )
        yield Range(counts.sum(), output_size, output_size, text)  # type: ignore[arg-type]  # not None


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: TorchValue,
    target_lengths: TorchValue,
    *_: object,
    **__: object,
) -> Iterator[Range]:
    """The range of input lengths in a tensor. The check of the overload for lists raises for the
    target lengths."""
    if isinstance(input_lengths, Tensor):
        yield _element_range("ctc_loss", "input_lengths", input_lengths, 0, log_probs.shape[0])
        lengths = _host_values(target_lengths)
        if lengths is not None:
            CHECKS[torch.ops.aten._ctc_loss.default](
                log_probs, targets, [0] * lengths.size, lengths.reshape(-1).tolist()
            )


def _element_range(call: str, argument: str, value: TorchValue, low: float, high: float) -> Range:
    """The range of an argument's elements, with the error of torch's call."""
    text = f"{call} expects all elements of {argument} to be [{low}, {high}], but got {{0}}"
    return Range(value, low, high, text)


# --- the table ------------------------------------------------------------------------------------

_STD = "normal expects all elements of std >= 0.0, but got {0}"
_CHANCE = "bernoulli_ expects p to be in [0, 1], but got p={0}"
_UNPOOLED = "max_unpool: found an invalid max index: it"

# The ranges of an op's arguments, by the op's name, or by its in-place form's where that checks
# other arguments.
_RANGES: dict[str, _Ranges] = {
    "embedding": lambda weight, indices, *_, **__: [_index_range(indices, weight.shape[0])],
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _embedding_bag),
    **dict.fromkeys(
        ("gather", "scatter", "scatter_add", "scatter_reduce"),
        partial(_index_along_dim, RuntimeError),
    ),
    **dict.fromkeys(("index_select", "index_reduce"), partial(_index_along_dim, IndexError)),
    "index_add": partial(_unless_empty, partial(_index_along_dim, RuntimeError)),
    "index_copy": partial(_unless_empty, partial(_index_along_dim, IndexError)),
    "index_fill": partial(
        _unless_empty,
        lambda self, dim, index, *_, **__: [
            _index_range(index, _dim_size(self, dim), dim, lowest=-_dim_size(self, dim))
        ],
    ),
    **dict.fromkeys(("take", "put"), _flat_index),
    **dict.fromkeys(("index", "index_put", "_index_put_impl", "_unsafe_index"), _indices_by_dim),
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward", "cross_entropy"),
        lambda self, target, weight, reduction, ignored, *_, **__: _classes(
            IndexError, self, target, ignored
        ),
    ),
    "linear_cross_entropy": (
        lambda input, weight, target, bias, class_weight, reduction, ignored, *_, **__: [
            _index_range(target, weight.shape[0], ignored=ignored)
        ]
    ),
    "multi_margin_loss": lambda self, target, *_, **__: _classes(RuntimeError, self, target),
    "normal": lambda mean, std=1.0, *_, **__: [Range(std, 0, _INF, _STD)],
    **dict.fromkeys(
        ("normal_", "normal_functional"),
        lambda self, mean=0.0, std=1.0, **_: [Range(std, 0, _INF, _STD)],
    ),
    "log_normal": lambda self, mean=1.0, std=2.0, **_: [
        Range(std, _LEAST, _INF, "log_normal_ expects std > 0.0, but found std={0}")
    ],
    "cauchy": lambda self, median=0.0, sigma=1.0, **_: [
        Range(sigma, _LEAST, _INF, "cauchy_ expects sigma > 0.0, but found sigma={0}")
    ],
    # The difference of symbolic numbers is not compared: it is no number.
    "uniform": lambda self, low=0.0, high=1.0, **_: [
        Range(
            high - low,
            0,
            _INF,
            f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}",
        )
    ],
    "bernoulli": lambda self, p=None, **_: [Range(self if p is None else p, 0, 1, _CHANCE)],
    "bernoulli_": lambda self, p=0.5, **_: [Range(p, 0, 1, _CHANCE)],
    "multinomial": _multinomial,
    "poisson": lambda self, *_, **__: [
        Range(self, 0, _INF, "invalid Poisson rate, expected rate to be non-negative, but got {0}")
    ],
    "masked_scatter": _masked_scatter,
    "searchsorted": lambda sequence, self, *, sorter=None, **_: [
        _element_range("searchsorted", "sorter", sorter, 0, sequence.shape[-1] - 1)
    ],
    "repeat_interleave": _repeat_interleave,
    "_ctc_loss": _ctc_loss,
    "binary_cross_entropy": lambda self, target, *_, **__: [
        _element_range("binary_cross_entropy", argument, value, 0, 1)
        for argument, value in (("input", self), ("target", target))
    ],
    **dict.fromkeys(
        ("max_unpool2d", "max_unpool3d"),
        lambda self, indices, size, *_, **__: [
            _element_range(_UNPOOLED, "indices", indices, 0, math.prod(size) - 1)
        ],
    ),
    "lu_unpack": lambda packed, pivots, data=True, unpack_pivots=True, **_: (
        [_element_range("lu_unpack", "pivots", pivots, 1, packed.shape[-2])]
        if unpack_pivots
        else []
    ),
}


def check_of(plan: Plan) -> Callable[..., None] | None:
    """The check of the host data among an op's arguments, or None."""
    in_place = f"{plan.base}_" if plan.overload._schema.name.endswith("_") else plan.base
    ranges = _RANGES.get(in_place) or _RANGES.get(plan.base)
    return (
        None
        if ranges is None
        else lambda *args, **kwargs: check_ranges(plan.base, ranges(*args, **kwargs))
    )
