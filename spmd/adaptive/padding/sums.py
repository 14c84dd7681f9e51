"""Rules of padded dims (see `case`) for reductions, products, attention, lookups and losses."""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...core.extend import partitioning
from .case import (
    HIGH,
    JOINED,
    LOW,
    RULES,
    Case,
    FromBehind,
    FullBuffer,
    MaskKeys,
    Mean,
    NoRule,
    Words,
    padded,
    physical,
)
from .shapes import elementwise, positive

aten = torch.ops.aten

# --- reductions -----------------------------------------------------------------------------------


def _reduced(case: Case) -> list[int]:
    rank = len(case.shapes[0])
    dims = case.arguments.get("dim")
    listed = [dims] if isinstance(dims, int) else list(dims or range(rank))
    return [positive(dim, rank) for dim in listed] if rank else []


def _keep_others(case: Case, dims: Sequence[int]) -> None:
    keepdim = bool(case.arguments.get("keepdim", False))
    for result in case.result_pads:
        for dim, size in case.pads[0].items():
            if dim not in dims:
                result[dim if keepdim else dim - sum(reduced_dim < dim for reduced_dim in dims)] = (
                    size
                )


def reduction(case: Case, neutral: float | str) -> None:
    """A reduction over a padded dim: elements after the length are filled with the op's neutral
    element."""
    dims = _reduced(case)
    _keep_others(case, dims)
    for dim in dims:
        case.fill(0, dim, neutral)


_NEUTRAL: dict[Any, float | str] = {
    aten.sum.default: 0, aten.sum.dim_IntList: 0, aten.prod.default: 1, aten.prod.dim_int: 1,
    aten.any.default: 0, aten.any.dim: 0, aten.any.dims: 0, aten.all.default: 1, aten.all.dim: 1,
    aten.all.dims: 1, aten.amax.default: LOW, aten.max.default: LOW, aten.max.dim: LOW,
    aten.argmax.default: LOW, aten.amin.default: HIGH, aten.min.default: HIGH, aten.min.dim: HIGH,
    aten.argmin.default: HIGH, aten.logsumexp.default: LOW,
}  # fmt: skip
for _overload, _value in _NEUTRAL.items():
    RULES[_overload] = partial(reduction, neutral=_value)
# The others return places in a dim.
JOINED.update(
    _NEUTRAL.keys() - {aten.max.dim, aten.argmax.default, aten.min.dim, aten.argmin.default}
)


@padded(aten.linalg_vector_norm.default, aten.norm.Scalar, aten.norm.ScalarOpt_dim, joined=True)
def norm(case: Case) -> None:
    power = case.arguments.get("ord", case.arguments.get("p", 2))
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
    for dim in over:
        case.fill(0, dim, 0)
    num_unpadded = math.prod(case.shapes[0][dim] for dim in dims if dim not in over)
    keepdim = bool(case.arguments.get("keepdim", False))
    case.do(
        Mean(tuple(dims), keepdim, num_unpadded, case.dtypes[0]),
        math.prod(case.length(0, dim) for dim in over),
    )


@padded(aten._softmax.default, aten._log_softmax.default, aten._safe_softmax.default, joined=True)
def softmax(case: Case) -> None:
    case.fill(0, positive(case.arguments["dim"], len(case.shapes[0])), LOW)
    case.result_pads[0] |= case.pads[0]


@padded(aten.cumsum.default, aten.cumprod.default)
def cumulative(case: Case) -> None:
    # elements before the length do not depend on those after it
    case.result_pads[0] |= case.pads[0]


@padded(aten.native_layer_norm.default, aten._fused_rms_norm.default, joined=True)
def layer_norm(case: Case) -> None:
    first = len(case.shapes[0]) - len(case.arguments["normalized_shape"])
    if any(dim >= first for dim in case.pads[0]) or any(case.pads[1:]):
        raise NoRule("is over a padded dim")
    for result in case.result_pads:
        result |= case.pads[0]


@padded(aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default, joined=True)
def layer_norm_backward(case: Case) -> None:
    """Rows after the length are zeros in the gradients of the weight and the bias."""
    first = len(case.shapes[0]) - len(case.arguments["normalized_shape"])
    rows = [
        operand for operand, shape in enumerate(case.shapes) if len(shape) == len(case.shapes[0])
    ]
    if any(dim >= first for pads in case.pads for dim in pads):
        raise NoRule("is over a padded dim")
    for dim in range(first):
        case.level(
            [(operand, dim) for operand in rows],
            *[(0, dim)] * case.arguments["output_mask"][0],
            fill=0,
        )


# --- products -------------------------------------------------------------------------------------


_FROM_WALK = "mm mv bmm linear linear_backward embedding embedding_dense_backward"
# The dims of operands, by their names in the schema, and of results, as the walk over shardings has
# them. A word that a result lacks is summed there, or looked up. `...`: the dims before those
# behind it.
_WORDS: dict[Any, str] = {
    **{
        getattr(aten, name).default: partitioning.WORDS[f"aten.{name}"]
        for name in _FROM_WALK.split()
    },
    aten.dot.default: "self: m, tensor: m -> ",
    aten.addmm.default: "self: n p, mat1: n m, mat2: m p -> n p",
    aten.baddbmm.default: "self: b n p, batch1: b n m, batch2: b m p -> b n p",
}


@padded(*_WORDS, joined=True)
def product(case: Case) -> None:
    """A product, or rows that are looked up: operands are zero after the length of a dim that a
    result lacks."""
    if case.overload in (aten.addmm.default, aten.linear.default):
        refuse_most(case)
    _by_words(case, _WORDS[case.overload])


def _by_words(case: Case, text: str, fill: float | None = 0) -> None:
    named, of_results = text.split(" -> ")
    mask = case.arguments.get("output_mask") or case.arguments.get("grad_input_mask")
    result_words = itertools.compress(of_results.split(","), mask or itertools.repeat(True))
    results = [
        _dims(words, len(shape)) for words, shape in zip(result_words, case.results, strict=False)
    ]
    operands: dict[int, Words] = {}
    for name, words in (entry.split(":") for entry in named.split(", ")):
        if (operand := case.operand(name)) is not None:
            operands[operand] = _dims(words, len(case.shapes[operand]))
    case.share(operands, results, fill)


def _dims(text: str, rank: int) -> Words:
    words: list[str | int] = [*text.split()]
    if "..." in words:
        words[:1] = range(len(words) - 1 - rank, 0)
    return words[len(words) - rank :]


def refuse_most(case: Case) -> None:
    """Refuses the full buffer in place of a slice."""
    if any(type(size) is FullBuffer for pads in case.pads for size in pads.values()):
        raise NoRule("would compute on the buffer after the slice, too")


# --- attention ------------------------------------------------------------------------------------


@padded(aten._scaled_dot_product_fused_attention_overrideable.default)
def attention(case: Case) -> None:
    if len(case.shapes[0]) != 4:
        raise NoRule("has no batch of heads")
    if case.arguments.get("dropout_p", 0.0):
        raise NoRule("drops weights")
    if any(set(pads) - {0, 2} for pads in case.pads[:3]):
        raise NoRule("has padded heads")
    text = "query: b h s d, key: b h t d, value: b h t e, attn_bias: b h s t -> b h s e, b h s"
    _by_words(case, text, fill=None)  # keys after the length are masked
    if 2 in case.pads[1]:
        case.first(MaskKeys(1, case.operand("attn_bias"), 2), case.length(1, 2))
        case.arguments["attn_bias"] = type(case.arguments["query"])(3)


@padded(aten._scaled_dot_product_fused_attention_overrideable_backward.default)
def attention_backward(case: Case) -> None:
    """Queries and keys after the length are zero; the keys are masked, too, as the weight of a zero
    key is none."""
    if len(case.shapes[1]) != 4 or case.arguments["dropout_p"]:
        raise NoRule("has no batch of heads" if len(case.shapes[1]) != 4 else "drops weights")
    query, key = int(case.arguments["query"]), int(case.arguments["key"])
    bias = case.operand("attn_bias")
    if bias is not None and (case.arguments["grad_input_mask"][3] or case.pads[bias]):
        raise NoRule("has a padded bias")
    if any(set(pads) - {0, 2} for pads in case.pads):
        raise NoRule("has padded heads")
    _by_words(
        case, partitioning.WORDS["aten._scaled_dot_product_fused_attention_overrideable_backward"]
    )
    for name, operand in (("max_q", query), ("max_k", key)):
        case.arguments[name] = physical(case.shapes[operand], case.pads[operand])[2]
    if 2 in case.pads[key]:
        case.first(MaskKeys(key, bias, None), case.length(key, 2))
        case.arguments["attn_bias"] = type(case.arguments["query"])(
            len(case.shapes) if bias is None else bias
        )


# --- rows by their numbers ------------------------------------------------------------------------


@padded(aten.gather.default)
def gather(case: Case) -> None:
    dim = positive(case.arguments["dim"], len(case.shapes[0]))
    index = int(case.arguments["index"])
    for d in range(len(case.shapes[index])):
        if d in case.pads[index]:
            if d != dim and d in case.pads[0]:
                case.level([(0, d), (index, d)])
            case.result_pads[0][d] = case.pads[index][d]
        elif d != dim and d in case.pads[0] and case.length(index, d) == case.length(0, d):
            raise NoRule("has an index without padding")


@padded(aten.index_select.default)
def index_select(case: Case) -> None:
    dims = range(len(case.shapes[0]))
    dim = positive(case.arguments["dim"], len(dims))
    case.share({0: dims, 1: ["index"]}, [[*dims[:dim], "index", *dims[dim + 1 :]]])


@padded(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(case: Case) -> None:
    words, indexed = _indexed(case)
    case.share(words, [indexed])


@padded(aten.scatter_add.default)
def scatter_add(case: Case) -> None:
    """Elements after the length of an index add zeros to the first place."""
    self, index, src = (int(case.arguments[name]) for name in ("self", "index", "src"))
    dim = positive(case.arguments["dim"], len(case.shapes[self]))
    for d in range(len(case.shapes[index])):
        is_along = d == dim or case.length(self, d) != case.length(index, d)
        places = [(index, d), (src, d)] if is_along else [(self, d), (index, d), (src, d)]
        if case.length(src, d) != case.length(index, d):
            raise NoRule("reads a part of what it adds")
        case.level(places)
        case.fill(index, d, 0)
        case.fill(src, d, 0)
    case.result_pads[0] |= case.pads[self]


@padded(aten.index_add.default)
def index_add(case: Case) -> None:
    """Added values after the length are zeros, and go to the first place."""
    self, index, source = (int(case.arguments[name]) for name in ("self", "index", "source"))
    if not case.shapes[index]:
        raise NoRule("has an index without dims")
    dims = range(len(case.shapes[self]))
    dim = positive(case.arguments["dim"], len(dims))
    case.share(
        {self: dims, index: ["index"], source: [*dims[:dim], "index", *dims[dim + 1 :]]},
        [dims],
        fill=0,
    )


@padded(aten.index_put.default)
def index_put(case: Case) -> None:
    """The padding of indices is outside, where nothing is written or added."""
    values = int(case.arguments["values"])
    indices = [i for i in case.arguments["indices"] if i is not None]
    if any(case.kinds[i] is torch.bool for i in indices):
        if any(case.shapes[i] != case.shapes[0] for i in indices):
            raise NoRule("writes through a mask of some dims")
        return elementwise(case)  # one value, where a mask is true
    words, indexed = _indexed(case)
    words[values] = indexed[len(indexed) - len(case.shapes[values]) :]
    case.share(words, [words[0]])
    outside = physical(case.shapes[0], case.pads[0])
    for place, operand in enumerate(case.arguments["indices"]):
        for dim in case.pads[operand] if operand is not None else ():
            case.fill(operand, dim, outside[place])


def _indexed(case: Case) -> tuple[dict[int, Words], Words]:
    """The words of the first operand and of indices into adjacent dims of it, and of the elements
    there; indices that count from the end count from the length."""
    indices = {
        dim: int(operand)
        for dim, operand in enumerate(case.arguments["indices"])
        if operand is not None
    }
    first, rank = min(indices), len(case.shapes[0])
    end = first + len(indices)
    if [*indices] != [*range(first, end)]:
        raise NoRule("indexes dims that are not adjacent")
    for dim, operand in indices.items():
        if dim in case.pads[0]:
            case.first(FromBehind(operand), case.length(0, dim))
    of_indices: dict[int, Words] = {i: range(-len(case.shapes[i]), 0) for i in indices.values()}
    joined = max(of_indices.values(), key=len)
    return {0: range(rank), **of_indices}, [*range(first), *joined, *range(end, rank)]


# --- losses ---------------------------------------------------------------------------------------


@padded(torch.ops.spmd.cross_entropy.default, aten.nll_loss_forward.default, joined=True)
def cross_entropy(case: Case) -> None:
    """Rows after the length are ignored, as targets of `ignore_index` are."""
    if len(case.shapes[0]) != 2 or any(dim != 0 for dim in case.pads[0]):
        raise NoRule("has padded classes")
    size = case.level([(0, 0), (1, 0)])
    if size is None:
        raise NoRule("has padded weights")
    if case.arguments["reduction"] == 0:
        case.result_pads[0][0] = size
    elif case.arguments.get("label_smoothing", 0.0):
        raise NoRule("smooths labels")
    if case.overload is torch.ops.spmd.cross_entropy.default:
        case.result_pads[1][0] = size
    case.fill(1, 0, case.arguments["ignore_index"])


# --- gradients ------------------------------------------------------------------------------------


@padded(torch.ops.spmd.cross_entropy_backward.default, joined=True)
def cross_entropy_backward(case: Case) -> None:
    logsumexp = int(case.arguments["logsumexp"])
    if case.arguments["label_smoothing"] and case.arguments["reduction"] == 1:
        raise NoRule("smooths labels")
    places = [(1, 0), (2, 0), (logsumexp, 0), *([(0, 0)] if case.shapes[0] else [])]
    if len(case.shapes[1]) != 2 or any(dim != 0 for dim in case.pads[1]):
        raise NoRule("has padded classes")
    size = case.level(places)
    assert size is not None, "one of these is padded"
    case.result_pads[0][0] = size
    case.fill(2, 0, case.arguments["ignore_index"])


@padded(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default, joined=True)
def softmax_backward(case: Case) -> None:
    dim = positive(case.arguments["dim"], len(case.shapes[0]))
    elementwise(case)
    for operand in (0, 1):
        case.fill(operand, dim, 0)
