"""Rules of padded dims (see `case`) for elementwise ops, moves of elements, and ops at which
padding begins.

An op that is neither here nor in `sums` or `padded_windows` ends the padding.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ...core import create
from ...core.extend import slices
from .case import (
    RULES,
    Append,
    Case,
    FullBuffer,
    Joined,
    NoRule,
    Pads,
    Rows,
    Rule,
    padded,
    physical,
)

aten = torch.ops.aten

# --- element by element ---------------------------------------------------------------------------


@padded(
    aten._to_copy.default,
    aten.copy.default,
    aten.alias.default,
    aten.detach.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
    aten.where.ScalarSelf,
    aten.where.ScalarOther,
    aten.where.Scalar,
    aten.masked_fill.Tensor,
    aten.rsub.Tensor,
    aten.floor_divide.default,
    aten.floor_divide.Scalar,
    aten.leaky_relu_backward.default,
    aten.elu_backward.default,
    aten.hardtanh_backward.default,
    aten.softplus_backward.default,
    aten.log_sigmoid_forward.default,
    aten.log_sigmoid_backward.default,
    aten.hardswish.default,
    aten._conj.default,
    create.CHECKPOINT_NAME,
    create.TO_HOST,
    create.TO_DEVICE,
    joined=True,
)
def elementwise(case: Case) -> None:
    """Broadcasting, of these ops and of those that torch tags as pointwise (`rule_of`): each dim of
    the result is the same dim, counted from the last, of the operands."""
    words = {i: range(-len(shape), 0) for i, shape in enumerate(case.shapes)}
    case.share(words, [range(-len(shape), 0) for shape in case.results], repeats=True)


def rule_of(overload: OpOverload) -> Rule | None:
    """Returns the rule of an overload; None where it has none."""
    return RULES.get(overload) or (elementwise if torch.Tag.pointwise in overload.tags else None)


# --- shape ----------------------------------------------------------------------------------------


def positive(dim: int, rank: int) -> int:
    """A dim counted from the first."""
    return dim + rank if dim < 0 else dim


@padded(aten.t.default, aten.transpose.int, aten.permute.default, joined=True)
def order(case: Case) -> None:
    (shape,) = case.shapes
    rank = len(shape)
    places = list(range(rank))
    if "dims" in case.arguments:
        places = [positive(dim, rank) for dim in case.arguments["dims"]]
    elif rank > 1:
        first, second_dim = (
            positive(case.arguments.get("dim0", 0), rank),
            positive(case.arguments.get("dim1", 1), rank),
        )
        places[first], places[second_dim] = places[second_dim], places[first]
    case.share({0: range(rank)}, [places])


@padded(
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    joined=True,
)
def reshape(case: Case) -> None:
    """A padded dim stays one, alone or joined to the dims before it, or is taken out of such a dim
    again; dims without padding behind it may join it."""
    old, new = case.shapes[0], case.results[0]
    few = [dim for dim in case.pads[0] if old[dim] < 2]
    place = _place_of(case, few[0]) if len(few) == len(case.pads[0]) == 1 else None
    if place is not None:
        case.result_pads[0][place] = case.pads[0][few[0]]
    for dims, new_dims in _groups(old, new, few) if place is None else ():
        padded = [dim for dim in dims if dim in case.pads[0]]
        if not padded:
            continue
        dim = padded[0]
        padded_dim = (
            _joined(old, new, dims, new_dims, dim, case.pads[0][dim]) if len(padded) == 1 else None
        )
        if padded_dim is None:
            raise NoRule(f"joins or splits the padded dim {dim} of {list(old)}")
        case.result_pads[0] |= padded_dim
    if len(case.result_pads[0]) < len(case.pads[0]):
        raise NoRule(f"reshapes a padded dim of {list(old)}")
    if "size" in case.arguments:
        case.arguments["size"] = list(physical(new, case.result_pads[0]))


def _place_of(case: Case, dim: int) -> int | None:
    """The dim of the result that a padded dim of no or one element is: as many elements are before
    and behind it."""
    old, new = case.shapes[0], case.results[0]
    if case.overload is aten.unsqueeze.default:
        return dim + (dim >= positive(case.arguments["dim"], len(new)))
    around = math.prod(old[:dim]), old[dim], math.prod(old[dim + 1 :])
    places = (
        (math.prod(new[:place]), size, math.prod(new[place + 1 :]))
        for place, size in enumerate(new)
    )
    return next((place for place, there in enumerate(places) if there == around), None)


def _groups(
    old: Sequence[int], new: Sequence[int], few: Sequence[int]
) -> list[tuple[list[int], list[int]]]:
    """Returns the dims longer than 1 that a reshape makes of each other, in the least groups of as
    many elements; with some old dims of one element."""
    groups: list[tuple[list[int], list[int]]] = []
    old_dims = [dim for dim, size in enumerate(old) if size != 1 or dim in few]
    new_dims = [dim for dim, size in enumerate(new) if size != 1]
    if 0 in old:
        return groups
    while old_dims and new_dims:
        group, new_group = [old_dims.pop(0)], [new_dims.pop(0)]
        while (size := math.prod(old[dim] for dim in group)) != (
            result := math.prod(new[dim] for dim in new_group)
        ):
            if size < result:
                group.append(old_dims.pop(0))
            else:
                new_group.append(new_dims.pop(0))
        groups.append((group, new_group))
    return groups


def _joined(
    old: Sequence[int],
    new: Sequence[int],
    dims: Sequence[int],
    new_dims: Sequence[int],
    dim: int,
    size: int,
) -> Pads | None:
    """Returns the padded dim among those that a reshape makes of `dims`, one of which is padded;
    None where none is.

    The elements are runs of one length, each with its padding behind it: so are those of the dims
    behind the new one.
    """
    capacity = size.period if type(size) is Joined else size
    runs = math.prod(old[d] for d in dims if d < dim) * (size // capacity)
    num_behind = math.prod(old[d] for d in dims if d > dim)
    passed = 1
    for index, new_dim in enumerate(new_dims):
        if passed * new[new_dim] > runs:
            num_later = math.prod(new[d] for d in new_dims[index + 1 :])
            joined, is_split = divmod(runs, passed)
            if is_split or new[new_dim] % joined or capacity * num_behind % num_later:
                return None
            if joined == 1 and num_later == num_behind:
                return {new_dim: capacity}
            period = capacity * num_behind // num_later
            if type(size) is FullBuffer:
                return None
            return {new_dim: period if joined == 1 else Joined(joined * period, period)}
        passed *= new[new_dim]
    return None


@padded(aten.expand.default, joined=True)
def expand(case: Case) -> None:
    more = len(case.results[0]) - len(case.shapes[0])
    if any(case.results[0][dim + more] != case.shapes[0][dim] for dim in case.pads[0]):
        raise NoRule("repeats a padded dim of one element")
    case.result_pads[0] |= {dim + more: size for dim, size in case.pads[0].items()}
    case.arguments["size"] = [
        int(case.result_pads[0].get(dim, size)) for dim, size in enumerate(case.results[0])
    ]


@padded(
    aten.view_as_complex.default, aten.view_as_real.default, aten.tril.default, aten.triu.default
)
def same(case: Case) -> None:
    """The dims of the result are the operand's; other dims have no padding."""
    rank = min(len(case.shapes[0]), len(case.results[0]))
    if any(dim >= rank for dim in case.pads[0]):
        raise NoRule(f"takes the padded dim {rank} apart")
    case.result_pads[0] |= case.pads[0]


@padded(aten.select.int, aten.slice.Tensor, joined=True)
def take(case: Case) -> None:
    (shape,) = case.shapes
    dim = positive(case.arguments.get("dim", 0), len(shape))
    is_select = case.overload is aten.select.int
    case.result_pads[0] |= {
        d - (is_select and d > dim): size for d, size in case.pads[0].items() if d != dim
    }
    if dim not in case.pads[0]:
        return
    case.length(0, dim)  # it is no joined one
    run_and_start = slices.run_of(case.overload, shape, case.arguments)
    if run_and_start is None:  # all of it
        if case.results[0] != shape:
            raise NoRule("takes nothing")
        case.result_pads[0][dim] = case.pads[0][dim]
        case.arguments |= {"start": 0, "end": int(case.pads[0][dim]), "step": 1}
        return
    run, start = run_and_start
    size, left_out = case.pads[0][dim], _left_out(case.arguments)
    if is_select or left_out is None or (case.arguments.get("start") or 0) < 0:
        case.do(slices.TakeRun(run), start)
        return
    if run.step != 1 or case.results[0][dim] == 1:
        raise NoRule("takes some of the elements after a place in a padded dim")
    case.result_pads[0][dim] = type(size)(size - start - left_out)
    case.arguments |= {"start": start, "end": int(size - left_out)}


def _left_out(arguments: Mapping[str, Any]) -> int | None:
    """Returns the number of elements that a slice leaves out at the end of its dim; None where its
    end is a place counted from the first one."""
    end = arguments.get("end")
    if end is None or end == torch.iinfo(torch.int64).max:
        return 0
    return -end if end < 0 else None


@padded(aten.slice_backward.default, aten.select_backward.default, joined=True)
def give_back(case: Case) -> None:
    """The gradient of a select or slice; along a padded dim it is zero after the length."""
    shape = tuple(case.arguments["input_sizes"])
    dim = positive(case.arguments["dim"], len(shape))
    is_select = case.overload is aten.select_backward.default
    run_and_start = slices.run_of(case.overload, shape, case.arguments)
    if run_and_start is None:
        raise NoRule("is of all of a dim")
    run, start = run_and_start
    for d, size in case.pads[0].items():
        if d != dim or is_select:
            case.result_pads[0][d + (is_select and d >= dim)] = size
            continue
        if run.step != 1 or type(size) is Joined or case.arguments["start"] < 0:
            raise NoRule("is of some of the elements of a padded dim")
        case.fill(0, d, 0)
        run = dataclasses.replace(run, count=int(size))
        left_out = _left_out(case.arguments)
        if left_out is not None:
            case.result_pads[0][d] = type(size)(size + start + left_out)
        elif start + size > shape[d]:
            raise NoRule("is of a slice with padding behind the end of its dim")
    case.arguments["input_sizes"] = list(physical(shape, case.result_pads[0]))
    case.do(slices.Gradient(run, tuple(case.arguments["input_sizes"])), start)


@padded(aten.cat.default)
def cat(case: Case) -> None:
    operands = [int(operand) for operand in case.arguments["tensors"]]
    rank = len(case.results[0])
    dim = positive(case.arguments.get("dim", 0), rank)
    if any(len(case.shapes[i]) != rank for i in operands):
        raise NoRule("joins an empty tensor")
    dims = range(rank)
    case.share({i: [*dims[:dim], f"part {i}", *dims[dim + 1 :]] for i in operands}, [dims])
    if not any(dim in case.pads[i] for i in operands):
        return
    if operands != list(range(len(operands))):
        raise NoRule("joins a value with itself")
    starts = [0, *itertools.accumulate(case.length(i, dim) for i in operands)]
    sizes = [case.pads[i].get(dim, case.shapes[i][dim]) for i in operands]
    if type(sizes[0]) is FullBuffer or any(dim in case.pads[i] for i in operands[1:]):
        capacity = type(sizes[0])(sum(sizes))
    else:
        capacity = capacity_of(starts[-1], sizes[0])
    case.result_pads[0][dim] = capacity
    case.do(Append(dim, int(capacity)), *starts[1:-1])


@padded(aten.stack.default)
def stack(case: Case) -> None:
    dims = range(len(case.shapes[0]))
    dim = positive(case.arguments.get("dim", 0), len(dims) + 1)
    case.share(
        dict.fromkeys(range(len(case.shapes)), dims), [[*dims[:dim], "stacked", *dims[dim:]]]
    )


# --- sources --------------------------------------------------------------------------------------

# The least capacity of a dynamic dim without a bound.
LEAST = 64


def capacity_of(length: int, least: int = LEAST) -> int:
    """The capacity of a dynamic dim: it doubles."""
    size = least or LEAST
    while size < length:
        size *= 2
    return size


def begins(case: Case, dims: Pads) -> None:
    """An op without padded operands whose result has dynamic dims of these capacities: gives it its
    padding."""
    shape, result = case.results[0], case.result_pads[0]
    result |= dims
    if case.overload is not aten.expand.default and any(
        type(size) is Joined for size in dims.values()
    ):
        raise NoRule("has no rule for a padded dim that a reshape has joined to others")
    if case.overload is aten.slice.Tensor:
        dim = positive(case.arguments.get("dim", 0), len(shape))
        start = case.arguments.get("start") or 0
        if dim in case.pads[0] and case.arguments.get("step", 1) == 1 and start >= 0:
            # as many rows of a padded dim as others have
            case.length(0, dim)
            case.result_pads[0] |= case.pads[0] | dims
            case.do(Rows(dim, int(dims[dim])), start)
            return
        if (
            (case.arguments.get("start") or 0) != 0
            or case.arguments.get("step", 1) != 1
            or list(dims) != [dim]
        ):
            raise NoRule("does not begin at 0")
        result[dim] = min(dims[dim], case.shapes[0][dim])
        case.arguments["end"] = int(result[dim])
    elif case.overload in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        if (
            type(case.arguments["end"]) is not int
            or case.arguments.get("start", 0) != 0
            or case.arguments.get("step", 1) != 1
        ):
            raise NoRule("does not count up from 0")
        case.arguments["end"] = int(result[0])
    elif case.overload in (aten.slice_backward.default, aten.select_backward.default):
        run_and_start = slices.run_of(case.overload, shape, case.arguments)
        if run_and_start is None:
            raise NoRule("is of all of a dim")
        case.do(slices.Gradient(run_and_start[0], physical(shape, result)), run_and_start[1])
    elif case.overload is aten.expand.default:
        case.arguments["size"] = list(physical(shape, result))
    else:
        raise NoRule("makes a value with a dynamic dim")
