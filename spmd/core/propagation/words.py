"""Dims of an op's operands that become dims of its results, in einops' words, by the op's name.

An operand is named as in the op's schema; a dim of it without a word, or an operand that is not listed, becomes no dim
of a result. `...` are the dims before or after, counted from the last. Shardy's sharding rules state the same of
StableHLO (openxla.org/shardy/sharding_representation). Ops without an entry are elementwise, as far as the sizes of
dims are equal, with the dims of an argument `dim` taken out or put in.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

Shape = Sequence[int]
Word = Hashable | None  # of a dim; None: it becomes no dim
Words = Sequence[Word]


class Flow(NamedTuple):
    """The words of each dim of the operands, by their places, and of the results."""

    operands: Mapping[int, Words]
    results: Sequence[Words]


class OpShapes(NamedTuple):
    """A recorded op: the places of its operands by name, static arguments by name, and shapes."""

    places: Mapping[str, Any]
    arguments: Mapping[str, Any]
    operands: Sequence[Shape]
    results: Sequence[Shape]
    is_elementwise: bool


WORDS: dict[str, str] = {
    "aten.addmm": "mat1: m k, mat2: k n -> m n",
    "aten.baddbmm": "batch1: b m k, batch2: b k n -> b m n",
    "aten.bmm": "self: b m k, mat2: b k n -> b m n",
    "aten.mm": "self: m k, mat2: k n -> m n",
    "aten.mv": "self: m k, vec: k -> m",
    "aten.linear": "input: ... k, weight: n k, bias: n -> ... n",
    "aten.linear_backward": "self: ... k, grad_output: ... n, weight: n k -> ... k, n k, n",
    "aten.embedding": "weight: v d, indices: ... -> ... d",
    "aten.embedding_dense_backward": "grad_output: ... d, indices: ... -> v d",
    "aten.convolution": "input: n c ..., weight: o c, bias: o -> n o ...",
    "aten.convolution_backward": "grad_output: n o ..., input: n c ..., weight: o c -> n c ..., o c, o",
    "aten._scaled_dot_product_fused_attention_overrideable": (
        "query: ... s d, key: ... t d, value: ... t e -> ... s e, ... s"
    ),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": (
        "grad_out: ... s e, query: ... s d, key: ... t d, value: ... t e, out: ... s e, logsumexp: ... s"
        " -> ... s d, ... t d, ... t e"
    ),
    "spmd.linear_cross_entropy": "input: ... d, linear_weight: c d, target: ... -> , ...",
    "spmd.linear_cross_entropy_backward": (
        "input: ... d, linear_weight: c d, target: ..., logsumexp: ... -> ... d, c d, c"
    ),
}


def flow_of(name: str, op: OpShapes) -> Flow:
    """Returns the words of an op's dims."""
    return _parsed(WORDS[name], op) if name in WORDS else (FLOWS.get(name) or _by_size)(op)


def _parsed(text: str, op: OpShapes) -> Flow:
    named, results = text.split(" -> ")
    operands: dict[int, Words] = {}
    for entry in named.split(", "):
        name, words = entry.split(":")
        place = op.places.get(name)
        if isinstance(place, int):
            operands[place] = _words(words, op.operands[place])
    return Flow(operands, list(map(_words, results.split(","), op.results)))


def _words(text: str, shape: Shape) -> Words:
    words: list[Word] = list(text.split())
    if "..." in words:
        at, rest = words.index("..."), len(shape) - len(words) + 1
        words[at : at + 1] = range(-rest, 0)
    return (*words, *(None,) * (len(shape) - len(words)))


def _by_size(op: OpShapes) -> Flow:
    """Dims of equal place and size, counted from the last; or all but those of `dim`, which are taken out or put in."""
    if not op.results:
        return Flow({}, [])
    rank = len(op.results[0])
    dims = op.arguments.get("dim", ())
    axes = [dim for dim in (dims if isinstance(dims, (list, tuple)) else [dims]) if isinstance(dim, int)]
    operands: dict[int, Words] = {}
    for place, shape in enumerate(op.operands):
        if len(shape) == rank or (op.is_elementwise and len(shape) < rank):
            operands[place] = range(-len(shape), 0)
        elif len(shape) - len(axes) == rank and axes:
            operands[place] = _with_holes(len(shape), axes, rank)
    if not operands and axes and all(len(shape) + len(axes) == rank for shape in op.operands):
        holes = {axis % rank for axis in axes}
        kept = [dim - rank for dim in range(rank) if dim not in holes]
        operands = dict.fromkeys(range(len(op.operands)), kept)
    return Flow(operands, [range(-rank, 0) if len(shape) == rank else () for shape in op.results])


def _with_holes(rank: int, axes: Sequence[int], kept: int) -> Words:
    """Words for an operand's dims, those of `axes` None, the others counted from the last."""
    holes = {axis % rank for axis in axes}
    left = iter(range(-kept, 0))
    return [None if dim in holes else next(left, None) for dim in range(rank)]


def _permuted(op: OpShapes) -> Flow:
    rank = len(op.operands[0])
    order = list(range(rank))
    if "dims" in op.arguments:
        order = [dim % rank for dim in op.arguments["dims"]]
    elif "dim0" in op.arguments:
        first, second = op.arguments["dim0"] % rank, op.arguments["dim1"] % rank
        order[first], order[second] = second, first
    else:
        order.reverse()
    return Flow({0: range(rank)}, [order])


def _indexed(op: OpShapes) -> Flow:
    """One array of indices, of any dims: these take the place of the dim that it indexes."""
    indices = op.places["indices"]
    tensors = [place for place in indices if place is not None]
    if len(tensors) != 1 or op.places["self"] != 0:
        return Flow({}, [])
    dim, (index,) = next(i for i, place in enumerate(indices) if place is not None), tensors
    rank, inner = len(op.operands[0]), [("index", i) for i in range(len(op.operands[index]))]
    return Flow({0: range(rank), index: inner}, [[*range(dim), *inner, *range(dim + 1, rank)]])


def _expanded(op: OpShapes) -> Flow:
    return _by_size(op._replace(is_elementwise=True))


def _paired(op: OpShapes) -> Flow:
    """Each result is the operand of its place."""
    words = [[(place, dim) for dim in range(len(shape))] for place, shape in enumerate(op.operands)]
    return Flow(dict(enumerate(words)), words[: len(op.results)])


def _of_rows(op: OpShapes) -> Flow:
    return _by_size(op._replace(arguments={"dim": op.arguments.get("dim", 0)}))


_GROUPED = {
    (2, 3): "self: n k, mat2: g k m -> n m",
    (3, 2): "self: g m k, mat2: k n -> m n",
    (2, 2): "self: m n, mat2: n k -> g m k",
    (3, 3): "self: b m k, mat2: b k n -> b m n",
}


def _grouped(op: OpShapes) -> Flow:
    ranks = len(op.operands[op.places["self"]]), len(op.operands[op.places["mat2"]])
    return _parsed(_GROUPED[ranks], op)


FLOWS: dict[str, Callable[[OpShapes], Flow]] = {
    **dict.fromkeys(("aten.t", "aten.transpose.int", "aten.permute"), _permuted),
    "aten.expand": _expanded,
    "aten.index.Tensor": _indexed,
    "aten._grouped_mm": _grouped,
    **dict.fromkeys(("aten.stack", "aten.unbind.int", "spmd.rows"), _of_rows),
    **dict.fromkeys(("spmd.gather", "spmd.renew", "spmd.unmarked", "spmd.wait"), _paired),
}

# Ops that keep the order of all elements: their dims are merged and split.
RESHAPES = frozenset({
    "aten.view", "aten._unsafe_view", "aten._reshape_alias", "aten.reshape", "aten.squeeze", "aten.squeeze.dim",
    "aten.squeeze.dims", "aten.unsqueeze", "aten.unflatten.int", "aten.flatten.using_ints",
})  # fmt: skip
