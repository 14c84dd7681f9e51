"""Checks of indices: one out of range raises at the user's line where it is host data, as a batch before its first use.

XLA has no such error: a gather takes the nearest element, a scatter drops the value. Where only the device has the
index, the result is NaN instead, if its rule has NaN to give (see `ops.floats.missing`). Indices are checked here,
other arguments in `values`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..record.overloads import Kwargs
from ..record.resolve import DATA_CHECKS
from .values import VALUES, on_host


class _Range(NamedTuple):
    """An index tensor of an op, the range of its values (from lowest, below size), and the value that is ignored."""

    index: Any
    size: int
    lowest: int
    dim: int = 0
    ignored: int | None = None


_Ranges = Callable[[Sequence[Any]], Iterator[_Range]]


def _size(tensor: torch.Tensor, dim: int) -> int:
    return tensor.shape[dim] if tensor.dim() else 1


def _rows(args: Sequence[Any]) -> Iterator[_Range]:
    yield _Range(args[1], args[0].shape[0], 0)


def _along(args: Sequence[Any]) -> Iterator[_Range]:
    yield _Range(args[2], _size(args[0], args[1]), 0, args[1])


def _along_or_from_the_end(args: Sequence[Any]) -> Iterator[_Range]:
    size = _size(args[0], args[1])
    yield _Range(args[2], size, -size, args[1])


def _elements(args: Sequence[Any]) -> Iterator[_Range]:
    size = args[0].numel()
    yield _Range(args[1], size, -size)


def _each(args: Sequence[Any]) -> Iterator[_Range]:
    for dim, index in enumerate(args[1]):
        if index is not None and index.dtype in (torch.int64, torch.int32):
            yield _Range(index, args[0].shape[dim], -args[0].shape[dim], dim)


def _classes(args: Sequence[Any], ignored: int | None = None) -> Iterator[_Range]:
    if not args[1].is_floating_point():
        dim = 1 if args[0].dim() > 1 else 0
        yield _Range(args[1], _size(args[0], dim), 0, dim, ignored)


def _classes_but_one(args: Sequence[Any]) -> Iterator[_Range]:
    return _classes(args, args[4])


def _classes_of_weight(args: Sequence[Any]) -> Iterator[_Range]:
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


Check = Callable[[Sequence[Any], dict[str, Any]], None]


def check_of(name: str, in_place: bool = False) -> Check | None:
    """The check of the data among the arguments of the op of this name; None for an op that takes any data."""
    of_values = VALUES.get(f"{name}_" if in_place and f"{name}_" in VALUES else name)
    if name not in _OPS:
        return of_values
    ranges, error = _OPS[name]

    def check(args: Sequence[Any], kwargs: Kwargs) -> None:
        for given in ranges(args):
            values = on_host(given.index)
            if values is None or not values.size or (values.min() >= given.lowest and values.max() < given.size):
                continue
            outside = values[(values < given.lowest) | (values >= given.size)]
            outside = outside[outside != given.ignored] if given.ignored is not None else outside
            if outside.size and not _selects_nothing(name, args):
                raise error(f"{name}: index {outside[0]} is out of bounds for dim {given.dim} with size {given.size}")
        if of_values is not None:
            of_values(args, kwargs)

    return check


def _selects_nothing(name: str, args: Sequence[Any]) -> bool:
    """True if an index selects no element at all: torch does not check it then."""
    sizes = dict(enumerate(args[0].shape))
    if name in ("index_add", "index_copy", "index_fill"):
        sizes.pop(args[1] % args[0].dim() if args[0].dim() else 0, None)
        return 0 in sizes.values()
    if name not in ("index", "index_put", "_index_put_impl", "_unsafe_index"):
        return False
    given = {dim: index for dim, index in enumerate(args[1]) if index is not None}
    return any(index.numel() == 0 for index in given.values()) or any(
        size == 0 for dim, size in sizes.items() if dim not in given
    )


DATA_CHECKS.append(check_of)
