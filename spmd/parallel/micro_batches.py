"""A region on a part of the batch: the dim of each of its values that holds the batch, and its ops
with the shapes of one part.

The batch enters with inputs whose batch dim is known. Along the region each op computes row by row,
sums over the rows, as the gradient of a weight does, or reads none of them; any other op makes the
region one that cannot be divided (`NotDividedError`). A reshape may merge the batch with dims
behind it: the rows are then parts of the merged dim, one after the other. Source: GPipe (Huang et
al. 2019, arXiv:1811.06965).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ..core import DeviceData, Meta, Sharding, dense_meta, topology
from ..core.extend import (
    Arrays,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Region,
    Spec,
    Value,
    annotations,
    lowerings,
    propagation,
    random,
    rules,
    walks,
)

SUM = "sum"  # a value that is the sum over the rows of the batch
ADDED = "added"  # such a sum, added to an input of the region: a gradient that accumulates
State = int | str | None  # the dim that holds the batch, SUM, or None: the same for all rows
Shape = Sequence[int]


class NotDividedError(Exception):
    """A region that cannot run on a part of the batch, with the op that is to blame."""

    def __init__(self, node: Node | None, why: str):
        super().__init__(why)
        self.node = node


class Divided(NamedTuple):
    """A region with the shapes of one part of the batch, and the states of its inputs and roots.

    added: by the index of a root that is a sum over the batch, the index of the input to which it
    is to be added. casts: by the index of an input that the region reads in a narrower dtype alone,
    its type there: it is to be cast before it is gathered.
    """

    region: Region
    inputs: list[State]
    roots: list[State]
    added: dict[int, int]
    casts: dict[int, Meta]


class RowOperands(NamedTuple):
    """The operands of an op that hold the batch, as the outermost part of their first dim, and the
    results that are sums over it; all other results hold it so. resized: the op's lowering for
    results of other shapes."""

    operands: Collection[int]
    sums: Collection[int]
    resized: Callable[[Sequence[Shape]], Lowering]


# By the kind of their lowering, ops that compute row by row and say so.
ROW_OPERANDS: dict[type[Lowering], Callable[[Any], RowOperands]] = {}
# Row by row, but for torch's tag of pointwise ops.
_ALIKE = frozenset({
    "aten._to_copy", "aten.alias", "aten.clone", "aten.copy", "aten.detach", "aten.lift_fresh",
    "aten.lift_fresh_copy", "aten.masked_fill.Tensor", "aten.where.ScalarOther",
    "aten.where.ScalarSelf", "aten.where.Scalar", "aten.rsub.Tensor", "aten.rsub.Scalar",
    "aten.elu_backward", "aten.hardtanh_backward", "aten.leaky_relu_backward",
    "aten.log_sigmoid_backward", "aten.log_sigmoid_forward", "aten.softplus_backward",
    "aten.hardswish", "aten.fill.Scalar", "aten.native_dropout", "aten.native_dropout_backward",
    "aten.bernoulli.p", "aten.bernoulli", "aten.expand", "aten.t", "aten.permute",
    "aten.index.Tensor", "aten.transpose.int", "aten.native_layer_norm",
    "aten.native_layer_norm_backward",
    "aten._fused_rms_norm", "aten._fused_rms_norm_backward", "aten.embedding", "aten.sum",
    "spmd.checkpoint_name", "spmd.wait", *propagation.WORDS,
})  # fmt: skip
# Along the dims of their argument; row by row where the batch is none of these.
_ALONG = frozenset({
    "aten._log_softmax", "aten._log_softmax_backward_data", "aten._softmax",
    "aten._softmax_backward_data", "aten.all.dim", "aten.amax", "aten.amin", "aten.any.dim",
    "aten.argmax", "aten.argmin", "aten.cat", "aten.cumsum", "aten.flip", "aten.gather",
    "aten.index_select", "aten.roll", "aten.linalg_vector_norm", "aten.logsumexp", "aten.mean.dim",
    "aten.scatter.src", "aten.scatter.value", "aten.scatter_add", "aten.select.int",
    "aten.select_backward", "aten.slice.Tensor", "aten.slice_backward", "aten.sort", "aten.stack",
    "aten.sum.dim_IntList", "aten.topk", "aten.tril", "aten.triu", "aten.unbind.int",
    "aten.var.correction", "aten.var_mean.correction",
})  # fmt: skip
# An element's number depends on its place alone (`ops.random`).
_DRAWS = frozenset({"aten.native_dropout", "aten.bernoulli", "aten.bernoulli.p"})
# Without dims they flatten their argument.
_OF_ALL = frozenset({"aten.argmax", "aten.argmin", "aten.roll"})
_SUMS_OVER = frozenset({"aten.sum.dim_IntList", "aten.sum"})
# Linear ops of a value that is a sum over the rows: of each of its summands they are a summand.
_LINEAR = frozenset({
    "aten._to_copy", "aten.add.Tensor", "aten.alias", "aten.clone", "aten.copy", "aten.detach",
    "aten.div.Scalar", "aten.div.Tensor", "aten.expand", "aten.mul.Scalar", "aten.mul.Tensor",
    "aten.neg", "aten.permute", "aten.select.int", "aten.slice.Tensor", "aten.sub.Tensor",
    "aten.sum", "aten.sum.dim_IntList", "aten.t", "aten.transpose.int",
    *propagation.RESHAPES,
})  # fmt: skip
# Values as they are: annotations, and what recomputation waits for (no barrier is in a body).
_SAME = frozenset(
    {"mark_sharding", "spmd.gather", "spmd.loops.recompute", "spmd.renew", "spmd.unmarked"}
)


@dataclass(slots=True)
class _Rows:
    """The search for the dims that hold the batch. needed: values that have to hold it, as others
    that they are combined with do."""

    body: Region
    states: dict[Any, State]
    needed: dict[Any, int]

    def state(self, value: Value) -> State:
        return self.states.get(walks.value_name(value))

    def need(self, value: Value, dim: int) -> None:
        self.needed.setdefault(walks.value_name(value), dim)

    def run(self) -> None:
        """Finds the states of all values; again while more values turn out to hold the batch."""
        entered = dict(self.states)
        while True:
            count = len(self.needed)
            self.states = {**entered}
            for data in self.body.inputs:
                if data in self.needed:
                    self.states.setdefault(data, self.needed[data])
            for node in self.body.nodes:
                states = self.of(node)
                self.states |= zip(map(walks.value_name, walks.results(node)), states, strict=True)
            if len(self.needed) == count:
                return

    def of(self, node: Node) -> Sequence[State]:
        """Returns the state of each result of an op."""
        states = list(map(self.state, node.operands))
        name = _name(node)
        if name in _SAME:
            return [
                self._passed(operand, state, result)
                for operand, state, result in zip(
                    node.operands, states, walks.results(node), strict=False
                )
            ]
        if all(state is None for state in states):
            return self._made(node)
        if SUM in states or ADDED in states:
            return self._summed(node, states)
        if type(node.op.lowering) in ROW_OPERANDS:
            return self._in_rows(node, states)
        if name in propagation.RESHAPES:
            return [self._reshaped(node, states[0])]
        return self._by_words(node, states)

    def _passed(self, operand: Value, state: State, result: Value) -> State:
        """The state of a value that an op passes on."""
        wanted = self.needed.get(walks.value_name(result))
        if state is not None or wanted is None:
            return state
        self.need(operand, wanted)
        return wanted

    def _made(self, node: Node) -> Sequence[State]:
        """The states of results that no operand with rows makes: one that has to hold the batch
        repeats a number or an operand in each row, or takes it from its operands."""
        names = list(map(walks.value_name, walks.results(node)))
        wanted = [self.needed.get(name) for name in names]
        if all(dim is None for dim in wanted):
            return wanted
        if isinstance(node.op.lowering, lowerings.Fill):
            return wanted
        index, dim = next((i, dim) for i, dim in enumerate(wanted) if dim is not None)
        meta = node.op.metas[index]
        if node.op.name in propagation.RESHAPES:
            (operand,) = node.operands
            place = _place(meta.shape, dim, operand.meta.shape)
            if place is None:
                raise NotDividedError(node, "merges the batch with dims before it")
            self.need(operand, place)
            return wanted
        flow = self._flow(node)
        word = flow.results[index][dim] if index < len(flow.results) else None
        for operand_index, words in flow.operands.items():
            operand = node.operands[operand_index]
            for place, operand_word in enumerate(words):
                if operand_word == word and operand.meta.shape[place] == meta.shape[dim]:
                    self.need(operand, place)
        if node.op.name != "aten.expand" and not any(
            walks.value_name(operand) in self.needed for operand in node.operands
        ):
            raise NotDividedError(node, "makes a value of the whole batch")
        return wanted

    def _summed(self, node: Node, states: Sequence[State]) -> Sequence[State]:
        name = _name(node)
        if name == "aten.copy":
            states = states[1:]  # what is overwritten does not matter
        if name == "aten.add.Tensor" and set(states) == {SUM, None}:
            return [ADDED]
        is_product = name in ("aten.mul.Tensor", "aten.div.Tensor")
        fits = (
            states.count(SUM) == 1 and states[0 if "div" in name else states.index(SUM)]
            if is_product
            else all(state == SUM for state in states)
        )
        if ADDED in states:
            raise NotDividedError(node, "reads a gradient that is being accumulated")
        if name not in _LINEAR or not fits or set(states) - {SUM, None}:
            raise NotDividedError(node, "reads a sum over the batch, and is not linear")
        return [SUM] * len(node.op.metas)

    def _in_rows(self, node: Node, states: Sequence[State]) -> Sequence[State]:
        """The states of the results of an op in `ROW_OPERANDS`."""
        rows = ROW_OPERANDS[type(node.op.lowering)](node.op.lowering)
        for index, (operand, state) in enumerate(zip(node.operands, states, strict=True)):
            if state != (0 if index in rows.operands else None) and state is not None:
                raise NotDividedError(node, "combines rows of the batch with each other")
            if index in rows.operands:
                self.need(operand, 0)
        return [SUM if index in rows.sums else 0 for index in range(len(node.op.metas))]

    def _reshaped(self, node: Node, state: State) -> State:
        assert isinstance(state, int), "the operand holds the batch"
        place = _place(node.operands[0].meta.shape, state, node.meta.shape)
        if place is None:
            raise NotDividedError(node, "merges the batch with dims before it, or splits it")
        return place

    def _by_words(self, node: Node, states: Sequence[State]) -> Sequence[State]:
        """The states of the results of an op by the words of its dims."""
        name, flow = _name(node), self._flow(node)
        self._check_known(node, states)
        words, sizes = set[Any](), set[int]()
        for index, state in enumerate(states):
            if isinstance(state, int):
                of_operand = flow.operands.get(index, ())
                words.add(of_operand[state] if state < len(of_operand) else None)
                sizes.add(node.operands[index].meta.shape[state])
        if len(words) != 1 or len(sizes) != 1:
            raise NotDividedError(node, "combines rows of the batch with each other")
        (word,), (size,) = words, sizes
        if word is None and name not in _SUMS_OVER and name not in rules.sharded.SUMS:
            raise NotDividedError(node, "computes over the rows of the batch")
        for index, of_operand in flow.operands.items():
            operand = node.operands[index]
            for dim, operand_word in enumerate(of_operand):
                is_batch = word is not None and operand_word == word
                if is_batch and operand.meta.shape[dim] == size and states[index] is None:
                    self.need(operand, dim)
        sums = (0,) if name in _SUMS_OVER else rules.sharded.SUMS.get(name, ())
        return [
            self._of_result(node, index, meta, flow, word, size, sums)
            for index, meta in enumerate(node.op.metas)
        ]

    def _of_result(
        self,
        node: Node,
        index: int,
        meta: Meta,
        flow: Any,
        word: Any,
        size: int,
        sums: Sequence[int],
    ) -> State:
        words = flow.results[index] if index < len(flow.results) else ()
        dims = [
            dim
            for dim, result_word in enumerate(words)
            if word is not None and result_word == word and meta.shape[dim] == size
        ]
        if dims:
            return dims[0]
        if index in sums:
            return SUM
        if index >= len(flow.results) or not meta.shape or meta.numel == 0:
            return None  # the state of a kernel's random numbers, say
        raise NotDividedError(node, "computes over the rows of the batch")

    def _check_known(self, node: Node, states: Sequence[State]) -> None:
        """Raises NotDividedError for an op that may combine rows: along the batch dim, or in a way
        that is not known."""
        name, lowering = _name(node), node.op.lowering
        arguments = dict(getattr(lowering, "arguments", ()))
        overload = getattr(lowering, "overload", None)
        if name in _ALONG:
            dims = arguments.get("dim", arguments.get("dims", None if name in _OF_ALL else -1))
            if not isinstance(dims, int) and not dims and name not in _SUMS_OVER:
                raise NotDividedError(node, "computes along all dims, the batch among them")
            along = [dims] if isinstance(dims, int) else list(dims or ())
            for operand, state in zip(node.operands, states, strict=True):
                rank = len(operand.meta.shape) + (name == "aten.stack")
                if name not in _SUMS_OVER and state in [dim % max(rank, 1) for dim in along]:
                    raise NotDividedError(node, "computes along the batch")
        elif name in _PLACED:
            if any(isinstance(state, int) and state in _PLACED[name](node) for state in states):
                raise NotDividedError(node, "computes along the batch")
        elif name not in _ALIKE and not (
            overload is not None and torch.Tag.pointwise in overload.tags
        ):
            raise NotDividedError(node, "has no rule for a part of the batch")
        if name not in _DRAWS and node.op.draws and arguments.get("dropout_p", _default_of(node)):
            raise NotDividedError(node, "draws random numbers for the batch")

    def _flow(self, node: Node) -> Any:
        shapes = propagation.shapes_of(node)
        flow = propagation.flow_of(_name(node), shapes)
        bias, query = map(shapes.operand_indices.get, ("attn_bias", "query"))
        if isinstance(bias, int) and isinstance(query, int):
            # A mask has the dims of the scores; those in front are those of the queries.
            words = [*flow.operands[query][:-2], None, None]
            rank = len(shapes.operands[bias])
            flow = flow._replace(operands={**flow.operands, bias: words[len(words) - rank :]})
        return flow


def _padded(node: Node) -> set[int]:
    """The dims that are padded, or cut."""
    pads, rank = list(dict(node.op.lowering.arguments)["pad"]), len(node.meta.shape)  # type: ignore[attr-defined]
    return {rank - 1 - index // 2 for index, pad in enumerate(pads) if pad}


def _indexed(node: Node) -> set[int]:
    """The dims of the array that are indexed: one, by a vector; all of them otherwise."""
    shapes = propagation.shapes_of(node)
    operands = dict(enumerate(shapes.operand_indices["indices"]))
    indexed = {dim: operand for dim, operand in operands.items() if operand is not None}
    is_one = [len(shapes.operands[operand]) for operand in indexed.values()] == [1]
    return set(indexed) if is_one else set(range(len(node.meta.shape)))


# Ops that compute along dims by arguments of their own.
_PLACED: dict[str, Callable[[Node], set[int]]] = {
    "aten.constant_pad_nd": _padded,
    "aten.index_put": _indexed,
}


def _default_of(node: Node) -> float:
    """The dropout of an attention that does not state it; 1 for other draws."""
    overload = getattr(node.op.lowering, "overload", None)
    schema = () if overload is None else overload._schema.arguments
    return next((float(a.default_value) for a in schema if a.name == "dropout_p"), 1.0)


def _name(node: Node) -> str:
    """The name of an op, in place or not: as a value the result is the same."""
    return node.op.name.replace("_.", ".").rstrip("_")


def _place(old: Shape, dim: int, new: Shape) -> int | None:
    """The dim of a reshape that holds the batch, which `dim` of the operand holds as its outermost
    part; None where none does."""
    before, size = math.prod(old[:dim]), old[dim]
    for place, of_dim in enumerate(new):
        is_start = math.prod(new[:place]) == before
        if is_start and of_dim > 1 and (of_dim % size == 0 or size % of_dim == 0):
            return place
    return None


# --- the ops of one part --------------------------------------------------------------------------


# XLA's partitioner ends the process at some of these along a dim that is split over an axis that is
# left to it, inside of a manual computation (jaxlib 0.10.2).
_WHOLE = frozenset({
    "aten.gather", "aten.index.Tensor", "aten.index_put", "aten.index_select", "aten.scatter.src",
    "aten.scatter.value", "aten.scatter_add",
})  # fmt: skip


def divide(
    body: Region,
    batch_dims: Mapping[int, int],
    parts: int,
    manual: frozenset[str],
    mesh: Sharding | None = None,
) -> Divided:
    """Returns a region for one of `parts` equal parts of the batch.

    batch_dims: the dims of its inputs, by index, that are known to hold the batch. manual: the mesh
    axes over which the region runs on shards; its annotations name the others alone. mesh: of axes
    that are left to the partitioner, None where none are. Raises NotDividedError for an op that
    combines rows, and where the parts do not divide the batch.
    """
    states: dict[Any, State] = {body.inputs[index]: dim for index, dim in batch_dims.items()}
    rows = _Rows(body, states, {})
    rows.run()

    def part_of(value: Value, node: Node | None) -> Meta:
        meta, state = value.meta, rows.state(value)
        if not isinstance(state, int):
            return meta
        if meta.shape[state] % parts:
            raise NotDividedError(node, f"has {meta.shape[state]} rows, not {parts} equal parts")
        shape = list(meta.shape)
        shape[state] //= parts
        return dense_meta(shape, meta.dtype)

    casts = _casts(body, rows)
    metas_of_inputs = [
        casts[data][0].meta if data in casts else part_of(data, None) for data in body.inputs
    ]
    inputs = [DeviceData(meta, is_abstract=True) for meta in metas_of_inputs]
    cast_nodes = {node for nodes in casts.values() for node in nodes}
    new: dict[Any, Value] = dict(zip(body.inputs, inputs, strict=True))
    nodes: list[Node] = []
    to_input: dict[Any, DeviceData] = {}
    for node in body.nodes:
        operands = [new[walks.value_name(operand)] for operand in node.operands]
        results = walks.results(node)
        if node in cast_nodes:
            new[node] = operands[0]
            continue
        if node.op.name in _SAME and (marked := _marked(node.op, manual)) is None:
            new |= zip(map(walks.value_name, results), operands, strict=False)
            to_input |= {
                walks.value_name(result): to_input[walks.value_name(operand)]
                for result, operand in zip(results, node.operands, strict=False)
                if walks.value_name(operand) in to_input
            }
            continue
        if rows.states.get(node) == ADDED:
            new[node], to_input[node] = _parts_of_sum(node, rows, new)
            continue
        metas = tuple(part_of(value, node) for value in results)
        op = node.op
        if node.op.name in _SAME:
            op = annotations.mark_op(metas[0], marked)
        elif metas != op.metas or any(
            value.meta is not operand.meta
            for value, operand in zip(operands, node.operands, strict=True)
        ):
            op = _op_of_part(op, metas, tuple(value.meta for value in operands))
        if op.draws and isinstance(dim := rows.state(results[0]), int) and _name(node) in _DRAWS:
            count = results[0].meta.shape[dim]
            op = replace(op, lowering=DrawOfPart(op.lowering, dim, count, parts))
        is_whole = mesh is not None and _name(node) in _WHOLE
        copy = node.with_operands(
            [_whole(value, node, mesh, nodes) for value in operands] if is_whole else operands
        )
        copy.op = op
        nodes.append(copy)
        made = [*walks.results(copy)]
        if is_whole:
            made = [_whole(value, node, mesh, nodes) for value in made]
        new |= zip(map(walks.value_name, results), made, strict=True)
    roots = [new[walks.value_name(root)] for root in body.roots]
    added = {
        index: body.inputs.index(to_input[walks.value_name(root)])
        for index, root in enumerate(body.roots)
        if walks.value_name(root) in to_input
    }
    return Divided(
        Region(nodes, inputs, roots),
        list(map(rows.state, body.inputs)),
        [SUM if state == ADDED else state for state in map(rows.state, body.roots)],
        added,
        {index: casts[data][0].meta for index, data in enumerate(body.inputs) if data in casts},
    )


def _whole(value: Value, like: Node, mesh: Sharding | None, nodes: list[Node]) -> Value:
    """Adds an annotation of a value as whole on the axes that are left to the partitioner."""
    assert mesh is not None
    mark = like.with_operands([value])
    mark.op, mark.numbers = annotations.mark_op(value.meta, mesh), ()
    nodes.append(mark)
    return mark


def _casts(body: Region, rows: _Rows) -> dict[DeviceData, list[Node]]:
    """Returns the casts of each input that is the same for all rows, and is read by casts to one
    narrower dtype alone."""
    readers: dict[Any, list[Node]] = {}
    for node in body.nodes:
        for operand in node.operands:
            readers.setdefault(walks.value_name(operand), []).append(node)
    casts: dict[DeviceData, list[Node]] = {}
    for data in body.inputs:
        nodes = readers.get(data, [])
        dtypes = {node.meta.dtype for node in nodes if node.op.name == "aten._to_copy"}
        is_cast = len(dtypes) == 1 and all(node.op.name == "aten._to_copy" for node in nodes)
        if is_cast and rows.state(data) is None and data not in body.roots:
            (dtype,) = dtypes
            is_narrower = dtype.is_floating_point and dtype.itemsize < data.meta.dtype.itemsize
            casts |= {data: nodes} if is_narrower else {}
    return casts


def _parts_of_sum(node: Node, rows: _Rows, new: dict[Any, Value]) -> tuple[Value, DeviceData]:
    """Returns the sum that an accumulation adds, and the input that it adds it to."""
    total, start = sorted(node.operands, key=lambda operand: rows.state(operand) != SUM)
    while (maker := walks.origin(start)) is not None and maker.op.name in _SAME:
        start = maker.operands[0]
    if not isinstance(start, DeviceData):
        raise NotDividedError(node, "adds a sum over the batch to a computed value")
    return new[walks.value_name(total)], start


@dataclass(frozen=True, slots=True)
class DrawOfPart(Lowering):
    """A draw for the rows of one part; its numbers are those that a draw for the whole batch has
    there. dim: of `count` rows."""

    lowering: Lowering
    dim: int
    count: int
    parts: int

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        first = topology.program.shard * np.int32(self.count // self.parts)
        with random.drawing(random.Rows(self.dim, self.count, first)):
            return self.lowering.lower(op, operands, numbers, layouts)


def _marked(op: OpSpec, manual: frozenset[str]) -> Sharding | None:
    """Returns the sharding of an annotation over the axes that are not manual; None where it names
    none of them."""
    if op.name != "mark_sharding" or op.sharding is None:
        return None
    spec = op.sharding.spec
    dims = tuple(
        dim._replace(axes=tuple(axis for axis in dim.axes if axis not in manual))
        for dim in spec.dims
    )
    left = any(dim.axes or dim.is_open for dim in dims)
    return op.sharding.with_spec(Spec(dims)) if left else None


def _op_of_part(op: OpSpec, metas: tuple[Meta, ...], operands: tuple[Meta, ...]) -> OpSpec:
    """Returns an op for the shapes of one part."""
    lowering = op.lowering
    if type(lowering) in ROW_OPERANDS:
        lowering = ROW_OPERANDS[type(lowering)](lowering).resized([meta.shape for meta in metas])
    elif isinstance(lowering, lowerings.Call):
        sized = {"size": metas[0].shape, "input_sizes": metas[0].shape, "sizes": None}
        arguments = tuple(
            (name, list(sized[name]) if sized.get(name) is not None else value)  # type: ignore[arg-type]
            for name, value in lowering.arguments
        )
        lowering = replace(lowering, arguments=arguments)
    return OpSpec.of(
        op.name,
        lowering,
        metas,
        operands,
        numbers=op.numbers,
        statics=op.statics,
        sharding=op.sharding,
        constant=op.constant,
        layout=op.layout,
    )
