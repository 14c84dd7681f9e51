"""What each op that may meet a padded dim makes of it (see `padding`); an op that is not here ends the padding."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from .loss import CROSS_ENTROPY
from .moving import run_of
from .padding import HIGH, LOW, RULES, Append, Case, FromBehind, MaskKeys, Mean, NoRule, Pads, Take, Whole, is_whole, padded
from .registry import RULES as LOWERINGS

aten = torch.ops.aten

# --- element by element -----------------------------------------------------------------------------------------------


@padded(
    *(overload for overload in LOWERINGS if torch.Tag.pointwise in overload.tags and not LOWERINGS[overload].wants_draw),
    aten._to_copy.default, aten.copy.default, aten.alias.default, aten.detach.default, aten.lift_fresh.default,
    aten.lift_fresh_copy.default, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar,
    aten.masked_fill.Tensor, aten.rsub.Tensor, aten.floor_divide.default, aten.floor_divide.Scalar,
    aten.leaky_relu_backward.default, aten.elu_backward.default, aten.hardtanh_backward.default,
    aten.softplus_backward.default, aten.hardswish.default, aten._conj.default,
)  # fmt: skip
def elementwise(case: Case) -> None:
    """Broadcasting: each dim of the result is the same dim, from behind, of the operands."""
    for result, shape in enumerate(case.results):
        for dim in range(len(shape)):
            behind = dim - len(shape)
            places = [(i, len(s) + behind) for i, s in enumerate(case.shapes) if len(s) + behind >= 0]
            size = case.level(places)
            if size is not None:
                case.made[result][dim] = size


# --- shape ------------------------------------------------------------------------------------------------------------


def _dim(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


@padded(aten.t.default, aten.transpose.int, aten.permute.default)
def order(case: Case) -> None:
    (shape,) = case.shapes
    rank = len(shape)
    places = list(range(rank))
    if "dims" in case.given:
        places = [_dim(dim, rank) for dim in case.given["dims"]]
    elif rank > 1:
        one, other = _dim(case.given.get("dim0", 0), rank), _dim(case.given.get("dim1", 1), rank)
        places[one], places[other] = places[other], places[one]
    case.made[0] |= {to: case.pads[0][dim] for to, dim in enumerate(places) if dim in case.pads[0]}


@padded(
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.unsqueeze.default,
)  # fmt: skip
def reshape(case: Case) -> None:
    """A padded dim stays one of its own: only dims of size 1 come and go beside it."""
    old, new = case.shapes[0], case.results[0]
    places = {} if 0 in old else _same_dims(old, new)
    for dim, size in case.pads[0].items():
        if dim not in places:
            raise NoRule(f"joins or splits the padded dim {dim} of {list(old)}")
        case.made[0][places[dim]] = size
    if "size" in case.given:
        case.given["size"] = [int(case.made[0].get(dim, size)) for dim, size in enumerate(new)]


def _same_dims(old: Sequence[int], new: Sequence[int]) -> dict[int, int]:
    """Which dims longer than 1 a reshape leaves as they are: where each is afterwards."""
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
    """The dims of the result are the operand's; what is beside them is whole."""
    rank = min(len(case.shapes[0]), len(case.results[0]))
    if any(dim >= rank for dim in case.pads[0]):
        raise NoRule(f"takes the padded dim {rank} apart")
    case.made[0] |= case.pads[0]


@padded(aten.select.int, aten.slice.Tensor)
def take(case: Case) -> None:
    (shape,) = case.shapes
    dim = _dim(case.given.get("dim", 0), len(shape))
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
        raise NoRule("takes what follows a place in a padded dim")
    case.do(Take(run), start)


@padded(aten.cat.default)
def cat(case: Case) -> None:
    given = [int(operand) for operand in case.given["tensors"]]
    rank = len(case.results[0])
    dim = _dim(case.given.get("dim", 0), rank)
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
    capacity = Whole(size + more) if is_whole(size) else capacity_of(length + more, size)
    case.made[0][dim] = capacity
    case.do(Append(dim, int(capacity)), length)


@padded(aten.stack.default)
def stack(case: Case) -> None:
    rank = len(case.results[0])
    dim = _dim(case.given.get("dim", 0), rank)
    _level_all(case, [int(operand) for operand in case.given["tensors"]], but=None)
    case.made[0] = {d + (d >= dim): size for d, size in case.made[0].items()}


def _level_all(case: Case, operands: Sequence[int], *, but: int | None) -> None:
    for dim in range(len(case.shapes[operands[0]])):
        size = None if dim == but else case.level([(i, dim) for i in operands])
        if size is not None:
            case.made[0][dim] = size


# --- sources ----------------------------------------------------------------------------------------------------------

# The least capacity of what grows without a bound.
LEAST = 64


def capacity_of(length: int, least: int = LEAST) -> int:
    """The capacity of what grows: it doubles."""
    size = max(least, LEAST)
    while size < length:
        size *= 2
    return size


def begins(case: Case, dims: Sequence[int]) -> None:
    """An op that no padding reaches and whose result grows in these dims: takes the padded result from the start."""
    shape = case.results[0]
    if case.overload is aten.slice.Tensor:
        dim = _dim(case.given.get("dim", 0), len(shape))
        size = case.shapes[0][dim]
        if (case.given.get("start") or 0) != 0 or case.given.get("step", 1) != 1 or list(dims) != [dim]:
            raise NoRule("does not begin at 0")
        case.given["end"] = size
        case.made[0][dim] = Whole(size)
    elif case.overload in (aten.arange.default, aten.arange.start, aten.arange.start_step):
        size = capacity_of(shape[0])
        if type(case.given["end"]) is not int or case.given.get("start", 0) != 0 or case.given.get("step", 1) != 1:
            raise NoRule("does not count up from 0")
        case.given["end"] = size
        case.made[0][0] = size
    elif case.overload is aten.expand.default:
        case.made[0] |= {dim: capacity_of(shape[dim]) for dim in dims}
        case.given["size"] = [int(case.made[0].get(dim, size)) for dim, size in enumerate(shape)]
    else:
        raise NoRule("makes a value that grows")


# --- reductions -------------------------------------------------------------------------------------------------------


def _reduced(case: Case) -> list[int]:
    rank = len(case.shapes[0])
    given = case.given.get("dim")
    listed = [given] if isinstance(given, int) else list(given or range(rank))
    return [_dim(dim, rank) for dim in listed] if rank else []


def _keep_others(case: Case, dims: Sequence[int]) -> None:
    keepdim = bool(case.given.get("keepdim", False))
    for made in case.made:
        for dim, size in case.pads[0].items():
            if dim not in dims:
                made[dim if keepdim else dim - sum(other < dim for other in dims)] = size


def reduction(case: Case, neutral: float | str) -> None:
    """Over a padded dim what does not count is the op's neutral element."""
    dims = _reduced(case)
    _keep_others(case, dims)
    for dim in dims:
        case.fill(0, dim, neutral)


_NEUTRAL: dict[Any, float | str] = {
    aten.sum.default: 0, aten.sum.dim_IntList: 0, aten.nansum.default: 0, aten.count_nonzero.default: 0,
    aten.count_nonzero.dim_IntList: 0, aten.prod.default: 1, aten.prod.dim_int: 1, aten.any.default: 0, aten.any.dim: 0,
    aten.any.dims: 0, aten.all.default: 1, aten.all.dim: 1, aten.all.dims: 1, aten.amax.default: LOW,
    aten.max.default: LOW, aten.max.dim: LOW, aten.argmax.default: LOW, aten.amin.default: HIGH, aten.min.default: HIGH,
    aten.min.dim: HIGH, aten.argmin.default: HIGH, aten.logsumexp.default: LOW,
}  # fmt: skip
for _overload, _value in _NEUTRAL.items():
    RULES[_overload] = partial(reduction, neutral=_value)


@padded(aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(case: Case) -> None:
    power = case.given.get("ord", case.given.get("p", 2))
    if power is not None and power <= 0:
        raise NoRule(f"is of order {power}")
    reduction(case, 0)


@padded(aten.mean.default, aten.mean.dim)
def mean(case: Case) -> None:
    dims = _reduced(case)
    _keep_others(case, dims)
    over = [dim for dim in dims if dim in case.pads[0]]
    if not over:
        return
    if len(over) > 1:
        raise NoRule("is over several padded dims")
    case.fill(0, over[0], 0)
    others = math.prod(case.shapes[0][dim] for dim in dims if dim != over[0])
    keepdim = bool(case.given.get("keepdim", False))
    case.do(Mean(tuple(dims), keepdim, others, case.dtypes[0]), case.length(0, over[0]))


@padded(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default)
def softmax(case: Case) -> None:
    case.fill(0, _dim(case.given["dim"], len(case.shapes[0])), LOW)
    case.made[0] |= case.pads[0]


@padded(aten.cumsum.default, aten.cumprod.default)
def cumulative(case: Case) -> None:
    case.made[0] |= case.pads[0]  # what comes before the length does not see what comes behind it


@padded(aten.native_layer_norm.default, aten._fused_rms_norm.default)
def layer_norm(case: Case) -> None:
    first = len(case.shapes[0]) - len(case.given["normalized_shape"])
    if any(dim >= first for dim in case.pads[0]) or any(case.pads[1:]):
        raise NoRule("is over a padded dim")
    for made in case.made:
        made |= case.pads[0]


# --- products ---------------------------------------------------------------------------------------------------------


def product(case: Case, equation: str) -> None:
    """A product of dims by name: one that the result does not have is summed, and must be zero behind its length."""
    inputs, output = equation.split("->")
    names = [name[len(name) - len(shape) :] for name, shape in zip(inputs.split(","), case.shapes, strict=True)]
    for letter in dict.fromkeys("".join(names)):
        places = [(i, name.index(letter)) for i, name in enumerate(names) if letter in name]
        size = case.level(places)
        if size is None:
            continue
        if letter in output:
            case.made[0][output.index(letter)] = size
        else:
            for place in places:
                case.fill(*place, 0)


for _overload, _equation in {
    aten.bmm.default: "bnm,bmp->bnp", aten.mm.default: "nm,mp->np", aten.mv.default: "nm,m->n",
    aten.dot.default: "m,m->", aten.baddbmm.default: "bnp,bnm,bmp->bnp",
}.items():  # fmt: skip
    RULES[_overload] = partial(product, equation=_equation)


@padded(aten.addmm.default)
def addmm(case: Case) -> None:
    _refuse_most(case)
    product(case, "np,nm,mp->np")


@padded(aten.linear.default)
def linear(case: Case) -> None:
    _refuse_most(case)
    before = "abcdefgh"[: len(case.shapes[0]) - 1]
    if any(case.pads[1:]):
        raise NoRule("has a padded weight")
    case.made[0] |= case.pads[0]
    if len(before) in case.pads[0]:
        raise NoRule("has a padded weight")


def _refuse_most(case: Case) -> None:
    if case.whole():
        raise NoRule("would compute what the buffer has behind the slice, too")


# --- attention --------------------------------------------------------------------------------------------------------


@padded(aten._scaled_dot_product_fused_attention_overrideable.default)
def attention(case: Case) -> None:
    query, key, value = case.shapes[:3]
    if len(query) != 4:
        raise NoRule("has no batch of heads")
    if case.given.get("dropout_p", 0.0):
        raise NoRule("drops weights")
    bias = case.operand("attn_bias")
    behind = {} if bias is None else {"bsl"[i]: (bias, len(case.shapes[bias]) - n) for i, n in enumerate((4, 2, 1))}
    behind = {name: place for name, place in behind.items() if place[1] >= 0}
    for name, places in (("b", [(0, 0), (1, 0), (2, 0)]), ("s", [(0, 2)]), ("l", [(1, 2), (2, 2)])):
        size = case.level([*places, *([behind[name]] if name in behind else [])])
        if size is not None and name != "l":
            dim = places[0][1]
            case.made[0][dim] = case.made[1][dim] = size
    if any(set(pads) - {0, 2} for pads in case.pads[:3]):
        raise NoRule("has padded heads")
    if 2 in case.pads[1]:
        case.first(MaskKeys(bias is not None), case.length(1, 2))
        case.given["attn_bias"] = type(case.given["query"])(3)


# --- rows by their numbers --------------------------------------------------------------------------------------------


@padded(aten.embedding.default)
def embedding(case: Case) -> None:
    _refuse_padded(case, 0)
    case.made[0] |= case.pads[1]


def _refuse_padded(case: Case, operand: int) -> None:
    if case.pads[operand]:
        raise NoRule("looks up in a padded table")


@padded(aten.gather.default)
def gather(case: Case) -> None:
    dim = _dim(case.given["dim"], len(case.shapes[0]))
    index = case.operand("index")
    assert index is not None
    for d in range(len(case.shapes[index])):
        if d in case.pads[index]:
            size = case.level([(0, d), (index, d)]) if d != dim and d in case.pads[0] else case.pads[index][d]
            case.made[0][d] = size
        elif d != dim and d in case.pads[0] and case.length(index, d) == case.length(0, d):
            raise NoRule("has an index without padding")


@padded(aten.index_select.default)
def index_select(case: Case) -> None:
    dim = _dim(case.given["dim"], len(case.shapes[0]))
    case.made[0] |= {d: size for d, size in case.pads[0].items() if d != dim}
    case.made[0] |= {dim: size for size in case.pads[1].values()}


@padded(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(case: Case) -> None:
    """Indices into dims side by side; those that count from behind begin at the length."""
    given = [None if value is None else int(value) for value in case.given["indices"]]
    dims = [dim for dim, operand in enumerate(given) if operand is not None]
    operands = [operand for operand in given if operand is not None]
    rank = max(len(case.shapes[operand]) for operand in operands)
    if dims != list(range(dims[0], dims[0] + len(dims))):
        raise NoRule("indexes dims that do not stand side by side")
    made: Pads = {}
    for place in range(rank):
        behind = place - rank
        size = case.level([(i, len(case.shapes[i]) + behind) for i in operands if len(case.shapes[i]) + behind >= 0])
        if size is not None:
            made[dims[0] + place] = size
    for dim, size in case.pads[0].items():
        if dim in dims:
            case.first(FromBehind(operands[dims.index(dim)]), case.length(0, dim))
        else:
            made[dim if dim < dims[0] else dim - len(dims) + rank] = size
    case.made[0] |= made


# --- losses -----------------------------------------------------------------------------------------------------------


@padded(CROSS_ENTROPY, aten.nll_loss_forward.default)
def cross_entropy(case: Case) -> None:
    """Rows behind the length are ignored, as targets of `ignore_index` are."""
    if len(case.shapes[0]) != 2 or any(dim != 0 for dim in case.pads[0]):
        raise NoRule("has padded classes")
    size = case.level([(0, 0), (1, 0)])
    if size is None:
        raise NoRule("has padded weights")
    if case.given["reduction"] == 0:
        case.made[0][0] = size
    elif case.given.get("label_smoothing", 0.0):
        raise NoRule("smooths labels")
    if case.overload is CROSS_ENTROPY:
        case.made[1][0] = size
    case.fill(1, 0, case.given["ignore_index"])
