"""A walk over a graph, forward, backward and forward, from the shardings of inputs and annotations.

The axes of a dim come from an input or an annotation; else from the first operand with axes for it;
else from a result. No array has an axis twice.

Which dims of operands become dims of results is stated in einops' words, by the op's name. An
operand is named as in the op's schema; a dim of it without a word, or an operand that is not
listed, becomes no dim of a result. `...` are the dims before or after, counted from the last.
Shardy's sharding rules state the same of StableHLO (openxla.org/shardy/sharding_representation).
Ops without an entry are elementwise, as far as the sizes of dims are equal, with the dims of an
argument `dim` taken out or put in.
"""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...ops import sharded
from ...ops.sharded import Dims, Factors, Values
from ..graph.graph import DeviceData, Node, TupleElement, Value, results
from ..graph.op import Lowering
from ..loop.loop_op import Loop
from ..lower.lower import known_of
from ..lower.region import Branches, Called, Region, While
from ..record.lowerings import Call
from ..record.overloads import Operand

Shape = Sequence[int]
Word = Hashable | None  # of a dim; None: it becomes no dim
Words = Sequence[Word]
Sized = tuple[Word, int]  # a word and the size of its dim
Owner = Node | DeviceData | TupleElement


class DimWords(NamedTuple):
    """A word for each dim of each operand (by its index) and of each result."""

    operands: Mapping[int, Words]
    results: Sequence[Words]


class OpShapes(NamedTuple):
    """A recorded op: the indices of its operands by name, static arguments by name, and shapes."""

    operand_indices: Mapping[str, Any]
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
    ("aten.convolution_backward"): (
        "grad_output: n o ..., input: n c ..., weight: o c -> n c ..., o c, o"
    ),
    "aten._scaled_dot_product_fused_attention_overrideable": (
        "query: ... s d, key: ... t d, value: ... t e -> ... s e, ... s"
    ),
    "aten._scaled_dot_product_fused_attention_overrideable_backward": (
        "grad_out: ... s e, query: ... s d, key: ... t d, value: ... t e, out: ... s e, "
        "logsumexp: ... s -> ... s d, ... t d, ... t e"
    ),
    "spmd.linear_cross_entropy": "input: ... d, linear_weight: c d, target: ... -> , ...",
    "spmd.linear_cross_entropy_backward": (
        "input: ... d, linear_weight: c d, target: ..., logsumexp: ... -> ... d, c d, c"
    ),
}


def flow_of(name: str, op: OpShapes) -> DimWords:
    """Returns the words of an op's dims: from `WORDS`, else from `FLOWS`, else by their sizes."""
    return _parsed(WORDS[name], op) if name in WORDS else (FLOWS.get(name) or _by_size)(op)


def _parsed(text: str, op: OpShapes) -> DimWords:
    """Returns the words of operands and results from a rule's text, `name: words, ... -> words`."""
    operand_text, result_text = text.split(" -> ")
    operands: dict[int, Words] = {}
    for entry in operand_text.split(", "):
        name, words = entry.split(":")
        index = op.operand_indices.get(name)
        if isinstance(index, int):
            operands[index] = _words(words, op.operands[index])
    return DimWords(operands, list(map(_words, result_text.split(","), op.results)))


def _words(text: str, shape: Shape) -> Words:
    """Returns one word per dim of a shape: `...` stands for dims counted from the last, dims behind
    the words have None."""
    words: list[Word] = list(text.split())
    if "..." in words:
        ellipsis_index, num_dims = words.index("..."), len(shape) - len(words) + 1
        words[ellipsis_index : ellipsis_index + 1] = range(-num_dims, 0)
    return (*words, *(None,) * (len(shape) - len(words)))


def _by_size(op: OpShapes) -> DimWords:
    """Returns equal words for dims at one index counted from the last; the dims of the argument
    `dim`, which the op reduces or adds, have none."""
    if not op.results:
        return DimWords({}, [])
    rank = len(op.results[0])
    dims = op.arguments.get("dim", ())
    axes = [
        dim for dim in (dims if isinstance(dims, (list, tuple)) else [dims]) if isinstance(dim, int)
    ]
    operands: dict[int, Words] = {}
    for index, shape in enumerate(op.operands):
        if len(shape) == rank or (op.is_elementwise and len(shape) < rank):
            operands[index] = range(-len(shape), 0)
        # The op removes the dims `axes` of this operand.
        elif len(shape) - len(axes) == rank and axes:
            operands[index] = _with_holes(len(shape), axes, rank)
    # The op adds the dims `axes` to the result.
    if not operands and axes and all(len(shape) + len(axes) == rank for shape in op.operands):
        holes = {axis % rank for axis in axes}
        result_dims = [dim - rank for dim in range(rank) if dim not in holes]
        operands = dict.fromkeys(range(len(op.operands)), result_dims)
    return DimWords(
        operands, [range(-rank, 0) if len(shape) == rank else () for shape in op.results]
    )


def _with_holes(rank: int, axes: Sequence[int], result_rank: int) -> Words:
    """Returns the words of an operand's dims: None for dims in `axes`, else the result's dims,
    counted from the last."""
    holes = {axis % rank for axis in axes}
    words = iter(range(-result_rank, 0))
    return [None if dim in holes else next(words, None) for dim in range(rank)]


def _permuted(op: OpShapes) -> DimWords:
    """Returns the words of a transposition: the operand's are numbers, the result has these in the
    new order."""
    rank = len(op.operands[0])
    order = list(range(rank))
    if "dims" in op.arguments:
        order = [dim % rank for dim in op.arguments["dims"]]
    elif "dim0" in op.arguments:
        dim0, dim1 = op.arguments["dim0"] % rank, op.arguments["dim1"] % rank
        order[dim0], order[dim1] = dim1, dim0
    else:
        order.reverse()
    return DimWords({0: range(rank)}, [order])


def _indexed(op: OpShapes) -> DimWords:
    """Returns the words of indexing by one array of any rank, whose dims replace the indexed dim;
    none for several arrays."""
    indices = op.operand_indices["indices"]
    indexed = [(dim, operand) for dim, operand in enumerate(indices) if operand is not None]
    if len(indexed) != 1 or op.operand_indices["self"] != 0:
        return DimWords({}, [])
    ((dim, operand),) = indexed
    rank, index_words = (
        len(op.operands[0]),
        [("index", i) for i in range(len(op.operands[operand]))],
    )
    return DimWords(
        {0: range(rank), operand: index_words}, [[*range(dim), *index_words, *range(dim + 1, rank)]]
    )


def _paired(op: OpShapes) -> DimWords:
    """Returns the words of an op whose result i has the dims of operand i."""
    words = [[(index, dim) for dim in range(len(shape))] for index, shape in enumerate(op.operands)]
    return DimWords(dict(enumerate(words)), words[: len(op.results)])


def _of_rows(op: OpShapes) -> DimWords:
    """Returns the words of an op that stacks or takes rows, along dim 0 unless it says so."""
    return _by_size(op._replace(arguments={"dim": op.arguments.get("dim", 0)}))


_GROUPED = {
    (2, 3): "self: n k, mat2: g k m -> n m",
    (3, 2): "self: g m k, mat2: k n -> m n",
    (2, 2): "self: m n, mat2: n k -> g m k",
    (3, 3): "self: b m k, mat2: b k n -> b m n",
}


def _grouped(op: OpShapes) -> DimWords:
    ranks = (
        len(op.operands[op.operand_indices["self"]]),
        len(op.operands[op.operand_indices["mat2"]]),
    )
    return _parsed(_GROUPED[ranks], op)


FLOWS: dict[str, Callable[[OpShapes], DimWords]] = {
    **dict.fromkeys(("aten.t", "aten.transpose.int", "aten.permute"), _permuted),
    "aten.expand": lambda op: _by_size(op._replace(is_elementwise=True)),
    "aten.index.Tensor": _indexed,
    "aten._grouped_mm": _grouped,
    **dict.fromkeys(("aten.stack", "aten.unbind.int", "spmd.rows"), _of_rows),
    **dict.fromkeys(("spmd.gather", "spmd.renew", "spmd.unmarked", "spmd.wait"), _paired),
}

# Ops that keep the order of all elements: their dims are merged and split.
RESHAPES = frozenset({
    "aten.view", "aten._unsafe_view", "aten._reshape_alias", "aten.reshape", "aten.squeeze",
    "aten.squeeze.dim", "aten.squeeze.dims", "aten.unsqueeze", "aten.unflatten.int",
    "aten.flatten.using_ints",
})  # fmt: skip


def walk(nodes: Sequence[Node], inputs: Mapping[DeviceData, Dims | None]) -> Values:
    """Returns the known dims of every value of a graph or a region, from those of its inputs (None:
    unknown)."""
    walker = _Walk(Values({}, {}), fixed=set(inputs))
    for data, dims in inputs.items():
        if dims is not None:
            walker.values.dims[data, 0] = dims
    walker.forward(nodes)
    walker.backward(nodes)
    walker.forward(nodes)
    return walker.values


class _Step(NamedTuple):
    """A value outside of a region, and its counterpart inside. num_rows: the number of leading dims
    that only the outer value has: 1 for a stack."""

    region: int
    outside: Value
    inside: Value
    num_rows: int = 0


@dataclass(slots=True)
class _Walk:
    """A walk over one graph or region. fixed: inputs, and annotations that leave no dim open;
    nothing is learned of them."""

    values: Values
    flows: dict[Node, DimWords] = field(default_factory=dict)
    fixed: set[Owner] = field(default_factory=set)

    def dims(self, value: Value) -> Dims | None:
        """Returns the dims of a value as known so far."""
        return self.values.dims.get(_owner(value))

    def learn_value(self, value: Value, dims: Dims | None) -> None:
        """Adds known dims of a value."""
        self.learn(*_owner(value), dims)

    def learn(self, owner: Owner, index: int, dims: Dims | None) -> None:
        """Adds known axes to the dims of a value that have none yet; axes that the value has
        already are left out."""
        if dims is None or owner in self.fixed:
            return
        dims_so_far = self.values.dims.get((owner, index), ((),) * len(dims))
        used_axes = {axis for factors in dims_so_far for _, axes in factors for axis in axes}
        new_dims = list(dims_so_far)
        for dim, factors in enumerate(dims):
            axes = [axis for _, factor_axes in factors for axis in factor_axes]
            if not new_dims[dim] and used_axes.isdisjoint(axes):
                new_dims[dim] = factors
                used_axes.update(axes)
        self.values.dims[owner, index] = tuple(new_dims)

    def forward(self, nodes: Sequence[Node]) -> None:
        """Learns the dims of results from those of operands, op by op."""
        for node in nodes:
            op = node.op
            if type(op.lowering) in STEPS:
                self._walk_regions(node, is_forward=True)
                continue
            # An annotation states its dims, and ends the search if it leaves none open.
            if op.sharding is not None and not op.lowering.regions and node not in self.fixed:
                for index, meta in enumerate(op.metas):
                    self.learn(node, index, sharded.dims_in(op.sharding.in_program(), meta.shape))
                if not op.sharding.is_open:
                    self.fixed.add(node)
            if node in self.fixed:
                continue
            if op.name in RESHAPES:
                self.learn(node, 0, self._reshaped(node.operands[0], op.metas[0].shape))
            elif node.operands:
                self._forward(node)

    def _reshaped(self, source: Value, shape: Sequence[int]) -> Dims | None:
        dims = self.dims(source)
        return None if dims is None else sharded.reshaped_dims(dims, source.meta.shape, shape)

    def _forward(self, node: Node) -> None:
        """Learns one op's result dims from its operands' dims by their common words."""
        sources: dict[Sized, Factors] = {}
        for operand_index, operand in enumerate(node.operands):
            dims = self.dims(operand)
            if dims is not None:
                _collect_dims(
                    sources,
                    self._flow(node).operands.get(operand_index, ()),
                    node.op.operands[operand_index].shape,
                    dims,
                )
        if sources:
            for index, (words, meta) in enumerate(
                zip(self._flow(node).results, node.op.metas, strict=False)
            ):
                self.learn(node, index, _dims_of_words(sources, words, meta.shape))

    def backward(self, nodes: Sequence[Node]) -> None:
        """Learns the dims of operands from those of results, the last op first."""
        for node in reversed(nodes):
            if type(node.op.lowering) in STEPS:
                self._walk_regions(node, is_forward=False)
            elif node.op.name in RESHAPES:
                self.learn_value(
                    node.operands[0], self._reshaped(node, node.operands[0].meta.shape)
                )
            elif node.operands:
                self._backward(node)

    def _backward(self, node: Node) -> None:
        """Learns one op's operand dims from its results' dims by their common words."""
        sources: dict[Sized, Factors] = {}
        for index, meta in enumerate(node.op.metas):
            dims = self.values.dims.get((node, index))
            if dims is not None and index < len(self._flow(node).results):
                _collect_dims(sources, self._flow(node).results[index], meta.shape, dims)
        if sources:
            for operand_index, words in self._flow(node).operands.items():
                self.learn_value(
                    node.operands[operand_index],
                    _dims_of_words(sources, words, node.op.operands[operand_index].shape),
                )

    def _flow(self, node: Node) -> DimWords:
        if node not in self.flows:
            self.flows[node] = flow_of(node.op.name, shapes_of(node))
        return self.flows[node]

    def _walk_regions(self, node: Node, *, is_forward: bool) -> None:
        """Learns dims through an op's regions: into them, through their ops in one direction, from
        the next carry to the carry, and out to the results (forward) or operands (backward)."""
        walkers = [
            _Walk(self.values.regions.setdefault((node, index), Values({}, {})), self.flows)
            for index in range(len(node.op.lowering.regions))
        ]
        # Into the regions, through their ops, from the next carry to the carry, and out again.
        entering, leaving, carried = STEPS[type(node.op.lowering)](node)
        for region, outer_value, inner_value, num_rows in (
            entering if is_forward else [*entering, *leaving]
        ):
            dims = self.dims(outer_value)
            walkers[region].learn_value(inner_value, dims and dims[num_rows:])
            if outer_value in self.fixed:
                walkers[region].fixed.add(inner_value)
        for region, walker in zip(node.op.lowering.regions, walkers, strict=True):
            (walker.forward if is_forward else walker.backward)(region.nodes)
        for region, root, inner_value in carried:
            walkers[region].learn_value(inner_value, walkers[region].dims(root))
        for region, outer_value, inner_value, num_rows in leaving if is_forward else entering:
            dims = walkers[region].dims(inner_value)
            self.learn_value(outer_value, dims and ((),) * num_rows + dims)


_shape = operator.attrgetter("shape")


def _owner(value: Value) -> tuple[Owner, int]:
    """Returns (the op that computes a value, or the data itself; the index of the result)."""
    return (value.node, value.index) if type(value) is TupleElement else (value, 0)


def _collect_dims(
    sources: dict[Sized, Factors], words: Words, shape: Sequence[int], dims: Dims
) -> None:
    """Adds the known dims of a value to `sources`, by word and size; earlier entries stay."""
    for word, size, factors in zip(words, shape, dims, strict=False):
        if word is not None and factors:
            sources.setdefault((word, size), factors)


def _dims_of_words(
    sources: Mapping[Sized, Factors], words: Words, shape: Sequence[int]
) -> Dims | None:
    """Returns the dims of a value with these words; None if no dim has axes. An axis of two dims is
    that of the earlier source: a gradient of an input is sharded as this is, before its rows."""
    sized = list(zip(words, shape, strict=False))
    known: dict[Sized, Factors] = {}
    used_axes: set[str] = set()
    for word, factors in sources.items():
        axes = [axis for _, factor_axes in factors for axis in factor_axes]
        if word in sized and used_axes.isdisjoint(axes):
            known[word] = factors
            used_axes.update(axes)
    dims = tuple(known.get(word, ()) for word in sized)
    return dims if known and len(dims) == len(shape) else None


def shapes_of(node: Node) -> OpShapes:
    """Returns a node as `OpShapes`; without named arguments unless a `Call` lowers it."""
    operands, results = list(map(_shape, node.op.operands)), list(map(_shape, node.op.metas))
    lowering: Lowering = node.op.lowering
    call = getattr(lowering, "call", lowering)  # of an op on padded operands
    if not isinstance(call, Call):
        return OpShapes({}, {}, operands, results, False)
    operand_indices, static = dict[str, Any](), dict[str, Any]()
    for name, value in call.arguments:
        if _has_operand(value):
            operand_indices[name] = value
        else:
            static[name] = value
    return OpShapes(operand_indices, static, operands, results, call.rule.promote is not None)


def _has_operand(value: object) -> bool:
    return type(value) is Operand or (type(value) is list and any(map(_has_operand, value)))


# --- regions --------------------------------------------------------------------------------------

_Steps = tuple[list[_Step], list[_Step], list[tuple[int, Value, Value]]]


def of_loop(node: Node, loop: Loop) -> _Steps:
    """Returns the steps into and out of the body of a loop, and those from the next carry to the
    carry."""
    body, num_single = loop.body, loop.num_carried + loop.num_last
    entering = [
        _Step(0, *pair)
        for pair in zip(node.operands[: loop.num_before_xs], body.inputs, strict=False)
    ]
    for run, inside, is_stack in zip(
        loop.operand_runs(), body.inputs[loop.num_before_xs :], loop.xs, strict=True
    ):
        entering += [_Step(0, node.operands[index], inside, int(is_stack)) for index in run]
    loop_results = results(node)
    leaving = [
        _Step(0, *pair)
        for pair in zip(loop_results[:num_single], body.roots[:num_single], strict=True)
    ]
    for run, root, y in zip(loop.result_runs(), body.roots[num_single:], loop.ys, strict=True):
        leaving += [_Step(0, loop_results[index], root, int(y.is_stack)) for index in run]
    return entering, leaving, _carried(0, body, loop.num_constants, loop.num_carried)


def _of_while(node: Node) -> _Steps:
    loop = node.op.lowering
    assert isinstance(loop, While)
    leaving = [_Step(1, *pair) for pair in zip(results(node), loop.body.roots, strict=True)]
    return (
        _entering(node),
        leaving,
        _carried(1, loop.body, loop.num_constants, len(loop.body.roots)),
    )


def _carried(
    index: int, body: Region, num_constants: int, num_carried: int
) -> list[tuple[int, Value, Value]]:
    """Returns (region index, next carry, carry) for each carried value."""
    return [
        (index, *pair)
        for pair in zip(body.roots[:num_carried], body.inputs[num_constants:], strict=False)
    ]


def _of_regions(node: Node) -> _Steps:
    regions = enumerate(node.op.lowering.regions)
    leaving = [
        _Step(i, *pair)
        for i, region in regions
        for pair in zip(results(node), region.roots, strict=True)
    ]
    return _entering(node), leaving, []


def _entering(node: Node) -> list[_Step]:
    """Returns the steps into an op's regions. Each region takes the last operands of the op: all of
    them, or those behind the condition of a branch."""
    return [
        _Step(index, *pair)
        for index, region in enumerate(node.op.lowering.regions)
        for pair in zip(
            node.operands[len(node.operands) - len(region.inputs) :], region.inputs, strict=True
        )
    ]


# A region of another op, a manual computation, is walked when it is lowered, with nothing known:
# its values are shards.
STEPS: dict[type, Callable[[Node], _Steps]] = {
    Loop: lambda node: of_loop(node, node.op.lowering),  # type: ignore[arg-type]
    While: _of_while,
    Branches: _of_regions,
    Called: _of_regions,
}

known_of.append(walk)
