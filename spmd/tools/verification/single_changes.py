"""One change of one collective in the body of a `shard_map` that makes a step equal to one device.

A change is tried: the step runs with it, and all of its values must be equal. The varying axes of
the body's values (see `spmd/loops/body_calls.py`) only give the order of trials: a reduction over
axes along which its operand is equal on all shards, and a result that differs between shards behind
a contraction, come first.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...loops.body_calls import BodyCall, BodyCalls, BodyValue, CallSite, Change
from ...loops.manual_lowering import Axes
from ...manual import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    collective_permute,
    reduce_scatter,
)

SECONDS = 60  # of trials, at most

# Functions that sum over a dim, which the shards may have split.
_CONTRACTIONS = frozenset({
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "linear",
    "bilinear", "einsum", "tensordot", "inner", "conv1d", "conv2d", "conv3d", "sum", "mean",
    "nansum", "norm", "vector_norm", "var", "std", "var_mean", "logsumexp", "cumsum", "scatter_add",
    "index_add", "scatter_reduce", "bincount", "grad", "cross_entropy", "nll_loss", "mse_loss",
    "l1_loss", "smooth_l1_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "kl_div",
})  # fmt: skip


@dataclass(frozen=True)
class SingleChange:
    """A change of the calls of one site. text: the sentence about it. rank: the lowest is tried
    first."""

    site: CallSite
    change: Change
    text: str
    rank: int


def single_changes(calls: BodyCalls) -> list[SingleChange]:
    """The changes that are worth a trial, in the order of trials."""
    changes = [change for call in calls.calls.values() for change in _changes_of(call, calls.axes)]
    return sorted(changes, key=lambda change: change.rank)


def repair(calls: BodyCalls, is_equal: Callable[[BodyCalls], bool]) -> str:
    """The sentence about the first change with which the step is equal to one device; "" where
    there is none.

    calls: those of the run that differs. is_equal: runs the step, and says whether all of its
    values are equal.
    """
    started = time.monotonic()
    for number, change in enumerate(tried := single_changes(calls)):
        if time.monotonic() - started > SECONDS:
            return (
                f"none of {number} changes of one collective makes it equal; "
                f"{len(tried) - number} were not tried"
            )
        if is_equal(BodyCalls(change.site, change.change)):
            return change.text
    return ""


def _changes_of(call: BodyCall, sizes: dict[str, int]) -> Iterator[SingleChange]:
    if call.is_collective:
        yield from _other_arguments(call, sizes)
    if call.result is not None and call.result.is_float:
        yield from _added(call.site, call.result, sizes)


def _other_arguments(call: BodyCall, sizes: dict[str, int]) -> Iterator[SingleChange]:
    """The collective left out, over other axes, and with a mean in place of a sum."""
    assert call.operand is not None
    site, arguments, differs = call.site, call.arguments, set(call.operand.over)
    axes = _axes(arguments["axis"], sizes)
    is_useless = not differs & set(axes)
    shown = f"{_shown(site.name, arguments)} at {site}"
    yield SingleChange(
        site,
        lambda call, x, call_arguments: x,
        f"{shown} is one too many: without it the step is equal to one device",
        0 if is_useless else 3,
    )
    for subset in _subsets(tuple(sizes), sizes):
        if set(subset) != set(axes):
            rank = (
                0
                if not set(axes) <= differs and set(subset) <= differs
                else 3
                if set(subset) <= differs
                else 8
            )
            name = ", ".join(map(repr, subset))
            yield SingleChange(
                site,
                _with(axis=subset),
                f"{shown}: over {name} the step is equal to one device",
                rank,
            )
    if arguments.get("op") in _SWAPPED:
        op = _SWAPPED[arguments["op"]]
        yield SingleChange(
            site, _with(op=op), f"{shown}: with {op!r} the step is equal to one device", 1
        )


_SWAPPED = {"sum": "mean", "mean": "sum", "avg": "sum"}


def _added(site: CallSite, value: BodyValue, sizes: dict[str, int]) -> Iterator[SingleChange]:
    """A collective of the result of a call."""
    is_argument, is_contraction = not site.name, site.name in _CONTRACTIONS
    for axes in _subsets(value.over, sizes):
        count = math.prod(sizes[axis] for axis in axes)
        dims = range(len(value.shape))
        split = [dim for dim in dims if value.shape[dim] % count == 0 and value.shape[dim]]
        rows: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = [
            (2 if is_contraction else 4, all_reduce, ("sum", axes)),
            (3 if is_contraction else 5, all_reduce, ("mean", axes)),
            (6, all_reduce, ("max", axes)),
            *((4 if is_argument else 5, all_gather, (dim, axes)) for dim in dims),
            *((6, reduce_scatter, ("sum", dim, axes)) for dim in split),
            *((7, reduce_scatter, ("mean", dim, axes)) for dim in split),
            *(
                (7, all_to_all, (split_dim, concat_dim, axes))
                for split_dim, concat_dim in itertools.permutations(dims, 2)
                if split_dim in split
            ),
            *((7, collective_permute, (_shift(count, by), axes)) for by in (1, -1)),
            (8, broadcast, (0, axes)),
        ]
        for rank, function, operands in rows:
            of = str(site) if is_argument else f"the result of {site.name} at {site}"
            shown = f"{function.__name__}(x, {', '.join(map(_shown_value, operands))})"
            text = f"{shown} of {of} is missing: with it the step is equal to one device"
            yield SingleChange(site, _after(function, operands), text, rank)


def _after(function: Callable[..., Any], operands: tuple[Any, ...]) -> Change:
    return lambda call, tensor, arguments: function(
        call(tensor, **arguments) if arguments or tensor is not None else call(), *operands
    )


def _with(**changes: Any) -> Change:
    return lambda call, tensor, arguments: call(tensor, **{**arguments, **changes})


def _shift(count: int, by: int) -> tuple[tuple[int, int], ...]:
    return tuple((source, (source + by) % count) for source in range(count))


def _subsets(axes: Sequence[str], sizes: dict[str, int]) -> list[Axes]:
    """The sets of these axes that have several shards, the smallest first."""
    several = [axis for axis in axes if sizes[axis] > 1]
    return [
        subset
        for count in range(1, len(several) + 1)
        for subset in itertools.combinations(several, count)
    ]


def _axes(axis: Any, sizes: dict[str, int]) -> Axes:
    """The names of an `axis` argument."""
    names = (axis,) if isinstance(axis, (str, int)) else tuple(axis)
    return tuple(entry if isinstance(entry, str) else tuple(sizes)[entry] for entry in names)


def _shown(name: str, arguments: Any) -> str:
    """A collective as the user wrote it, of a tensor x."""
    values = [value for key, value in arguments.items() if not (key == "tiled" and value)]
    return f"{name}(x, {', '.join(map(_shown_value, values))})"


def _shown_value(value: Any) -> str:
    return (
        repr(value[0])
        if isinstance(value, tuple) and len(value) == 1 and isinstance(value[0], str)
        else repr(value)
    )
