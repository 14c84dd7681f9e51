"""Rules of padded dims (see `padding`) for elementwise ops, moves of elements, and ops at which padding begins.

An op that is neither here nor in `padding_sums` or `padding_windows` ends the padding.
"""

from collections.abc import Sequence

import torch

from .dynamic_start import run_of
from .padding import Append, Case, FullBuffer, NoRule, Put, Take, is_full_buffer, padded, physical
from .registry import RULES as LOWERINGS

aten = torch.ops.aten

# --- element by element -----------------------------------------------------------------------------------------------


@padded(
    *(op for op, rule in LOWERINGS.items() if torch.Tag.pointwise in op.tags and not rule.wants_draw),
    aten._to_copy.default, aten.copy.default, aten.alias.default, aten.detach.default, aten.lift_fresh.default,
    aten.lift_fresh_copy.default, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar,
    aten.masked_fill.Tensor, aten.rsub.Tensor, aten.floor_divide.default, aten.floor_divide.Scalar,
    aten.leaky_relu_backward.default, aten.elu_backward.default, aten.hardtanh_backward.default,
    aten.softplus_backward.default, aten.hardswish.default, aten._conj.default,
)  # fmt: skip
def elementwise(case: Case) -> None:
    """Broadcasting: each dim of the result is the same dim, counted from the last, of the operands."""
    for result, shape in enumerate(case.results):
        for dim in range(len(shape)):
            behind = dim - len(shape)
            places = [(i, len(s) + behind) for i, s in enumerate(case.shapes) if len(s) + behind >= 0]
            size = case.level(places)
            if size is not None:
                case.made[result][dim] = size


# --- shape ------------------------------------------------------------------------------------------------------------


def positive(dim: int, rank: int) -> int:
    """A dim counted from the first."""
    return dim + rank if dim < 0 else dim


@padded(aten.t.default, aten.transpose.int, aten.permute.default)
def order(case: Case) -> None:
    (shape,) = case.shapes
    rank = len(shape)
    places = list(range(rank))
    if "dims" in case.given:
        places = [positive(dim, rank) for dim in case.given["dims"]]
    elif rank > 1:
        one, other = positive(case.given.get("dim0", 0), rank), positive(case.given.get("dim1", 1), rank)
        places[one], places[other] = places[other], places[one]
    case.made[0] |= {to: case.pads[0][dim] for to, dim in enumerate(places) if dim in case.pads[0]}


@padded(
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default,
)  # fmt: skip
def reshape(case: Case) -> None:
    """A padded dim stays a dim of its own: only dims of size 1 are inserted or removed next to it."""
    old, new = case.shapes[0], case.results[0]
    places = {} if 0 in old else _same_dims(old, new)
    for dim, size in case.pads[0].items():
        if dim not in places:
            raise NoRule(f"joins or splits the padded dim {dim} of {list(old)}")
        case.made[0][places[dim]] = size
    if "size" in case.given:
        case.given["size"] = [int(case.made[0].get(dim, size)) for dim, size in enumerate(new)]


def _same_dims(old: Sequence[int], new: Sequence[int]) -> dict[int, int]:
    """The dims longer than 1 that a reshape leaves as they are, with the new index of each."""
    found: dict[int, int] = {}
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == 1 or new[j] == 1:
            i, j = i + (old[i] == 1), j + (new[j] == 1)
            continue
        size, other = old[i], new[j]
        if size == other:
            found[i] = j
        while size != other:
            if size < other:
                i += 1
                size *= old[i]
            else:
                j += 1
                other *= new[j]
        i, j = i + 1, j + 1
    return found


@padded(aten.expand.default)
def expand(case: Case) -> None:
    more = len(case.results[0]) - len(case.shapes[0])
    case.made[0] |= {dim + more: size for dim, size in case.pads[0].items()}
    case.given["size"] = [int(case.made[0].get(dim, size)) for dim, size in enumerate(case.results[0])]


@padded(aten.view_as_complex.default, aten.view_as_real.default, aten.tril.default, aten.triu.default)
def same(case: Case) -> None:
    """The dims of the result are the operand's; other dims have no padding."""
    rank = min(len(case.shapes[0]), len(case.results[0]))
    if any(dim >= rank for dim in case.pads[0]):
        raise NoRule(f"takes the padded dim {rank} apart")
    case.made[0] |= case.pads[0]


@padded(aten.select.int, aten.slice.Tensor)
def take(case: Case) -> None:
    (shape,) = case.shapes
    dim = positive(case.given.get("dim", 0), len(shape))
    is_select = case.overload is aten.select.int
    case.made[0] |= {d - (is_select and d > dim): size for d, size in case.pads[0].items() if d != dim}
    if dim not in case.pads[0]:
        return
    found = run_of(case.overload, shape, case.given)
    if found is None:  # all of it
        if case.results[0] != shape:
            raise NoRule("takes nothing")
        case.made[0][dim] = case.pads[0][dim]
        case.given |= {"start": 0, "end": int(case.pads[0][dim])}
        return
    run, start = found
    is_to_the_end = case.given.get("end") in (None, torch.iinfo(torch.int64).max)
    if not is_select and is_to_the_end and (case.given.get("start") or 0) >= 0:
        raise NoRule("takes the elements after a place in a padded dim")
    case.do(Take(run), start)


@padded(aten.slice_backward.default, aten.select_backward.default)
def give_back(case: Case) -> None:
    """The gradient of a select or slice along other dims than the padded ones."""
    shape = tuple(case.given["input_sizes"])
    dim = positive(case.given["dim"], len(shape))
    is_select = case.overload is aten.select_backward.default
    for d, size in case.pads[0].items():
        if d == dim and not is_select:
            raise NoRule("is of a slice of a padded dim")
        case.made[0][d + (is_select and d >= dim)] = size
    case.given["input_sizes"] = list(physical(shape, case.made[0]))
    found = run_of(case.overload, shape, case.given)
    if found is None:
        raise NoRule("is of all of a dim")
    case.do(Put(found[0], tuple(case.given["input_sizes"])), found[1])


@padded(aten.cat.default)
def cat(case: Case) -> None:
    given = [int(operand) for operand in case.given["tensors"]]
    rank = len(case.results[0])
    dim = positive(case.given.get("dim", 0), rank)
    if any(len(case.shapes[i]) != rank for i in given):
        raise NoRule("joins an empty tensor")
    _level_all(case, given, but=dim)
    if not any(dim in case.pads[i] for i in given):
        return
    first, *others = given
    if given != list(range(len(given))) or not others or any(dim in case.pads[i] for i in others):
        raise NoRule("has a padded operand before others")
    length, size = case.length(first, dim), case.pads[first][dim]
    more = case.results[0][dim] - length
    capacity = FullBuffer(size + more) if is_full_buffer(size) else capacity_of(length + more, size)
    case.made[0][dim] = capacity
    case.do(Append(dim, int(capacity)), length)


@padded(aten.stack.default)
def stack(case: Case) -> None:
    rank = len(case.results[0])
    dim = positive(case.given.get("dim", 0), rank)
    _level_all(case, [int(operand) for operand in case.given["tensors"]], but=None)
    case.made[0] = {d + (d >= dim): size for d, size in case.made[0].items()}


def _level_all(case: Case, operands: Sequence[int], *, but: int | None) -> None:
    for dim in range(len(case.shapes[operands[0]])):
        size = None if dim == but else case.level([(i, dim) for i in operands])
        if size is not None:
            case.made[0][dim] = size


# --- sources ----------------------------------------------------------------------------------------------------------

# The least capacity of a dynamic dim without a bound, and of a number of iterations.
LEAST = 64
LEAST_ITERATIONS = 32


def capacity_of(length: int, least: int = LEAST) -> int:
    """The capacity of a dynamic dim: it doubles."""
    size = least
    while size < length:
        size *= 2
    return size


def begins(case: Case, dims: Sequence[int]) -> None:
    """An op without padded operands whose result has these dynamic dims: gives it its padding."""
    shape = case.results[0]
    if case.overload is aten.slice.Tensor:
        dim = positive(case.given.get("dim", 0), len(shape))
        size = case.shapes[0][dim]
        if (case.given.get("start") or 0) != 0 or case.given.get("step", 1) != 1 or list(dims) != [dim]:
            raise NoRule("does not begin at 0")
        case.given["end"] = size
        case.made[0][dim] = FullBuffer(size)
    elif case.overload in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        size = capacity_of(shape[0])
        if type(case.given["end"]) is not int or case.given.get("start", 0) != 0 or case.given.get("step", 1) != 1:
            raise NoRule("does not count up from 0")
        case.given["end"] = size
        case.made[0][0] = size
    elif case.overload in (aten.slice_backward.default, aten.select_backward.default):
        found = run_of(case.overload, shape, case.given)
        if found is None:
            raise NoRule("is of all of a dim")
        case.made[0] |= {dim: capacity_of(shape[dim], LEAST_ITERATIONS) for dim in dims}
        case.do(Put(found[0], physical(shape, case.made[0])), found[1])
    elif case.overload is aten.expand.default:
        case.made[0] |= {dim: capacity_of(shape[dim], LEAST_ITERATIONS) for dim in dims}
        case.given["size"] = [int(case.made[0].get(dim, size)) for dim, size in enumerate(shape)]
    else:
        raise NoRule("makes a value with a dynamic dim")
