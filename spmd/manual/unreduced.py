"""Gradients that are not reduced over mesh axes yet: stacks of summands, one on the devices of each place along them.

A gradient is a sum over the rows of the batch. The op that sums is recorded again, once for each block of rows, and so
are the linear ops between it and the gradient, once for each summand. The stack's sum is the gradient, whatever the
ops before it do with the batch: they stay those of the whole batch.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ..core import LOCK, DeviceData, Dim, Meta, Sharding, Spec, Storage, XlaTensor, annotations, dense_meta, wrap
from ..core.extend import (
    OPEN,
    Arrays,
    Call,
    Layouts,
    Lowering,
    Node,
    Operand,
    OpSpec,
    Place,
    Slot,
    Value,
    body,
    partitioning,
    record_calls,
    rules,
    user_lines,
    walks,
)

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """The axes that shard the rows of the batch, the outermost first, and those among them that are not reduced."""

    mesh: Sharding
    axes: Axes
    over: Axes

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes, as far as the last one that is not reduced."""
        last = max(self.axes.index(axis) for axis in self.over)
        sizes = self.mesh.mesh_axes()
        return tuple(sizes[axis] for axis in self.axes[: last + 1])

    @property
    def kept(self) -> tuple[int, ...]:
        """The places of the axes that are not reduced among `axes`, in their order."""
        return tuple(index for index, axis in enumerate(self.axes) if axis in self.over)

    @property
    def ways(self) -> int:
        """The number of devices among which the rows are divided."""
        return math.prod(self.mesh.mesh_axes()[axis] for axis in self.axes)

    @property
    def count(self) -> int:
        """The number of summands."""
        return math.prod(self.mesh.mesh_axes()[axis] for axis in self.over)

    def stacked(self, rank: int) -> Sharding:
        """The sharding of a stack: summands over the axes, their own dims as the partitioner chooses."""
        in_order = tuple(axis for axis in self.axes if axis in self.over)
        return self.mesh.with_spec(Spec((Dim(in_order), *[OPEN] * rank)))


class NotSeparableError(NotImplementedError):
    """Raised for a gradient whose summands are not known, with the op and its line."""


_NAME = "spmd.unreduced"
_STACK = -1  # in `_Each.cuts`: the operand is a stack already


@dataclass(frozen=True, slots=True)
class _Each(Lowering):
    """One result of an op, for each block of rows or each summand of its operands, as a stack.

    inner: the op on one of them. cuts: for each operand the dim that is cut into blocks, _STACK, or None for an operand
    that is the same for all. is_mean: the op is a mean over the rows, of which a block's is a part. on_shards: the op
    runs on the rows of each device, as a partitioner has no way to split it for several blocks: `inner` is on those.
    """

    inner: OpSpec
    index: int
    cuts: tuple[int | None, ...]
    rows: Rows
    is_mean: bool = False
    on_shards: bool = False

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        mesh, spelled = self.rows.mesh.by_axis()
        names = tuple(name for axis in self.rows.axes if axis in self.rows.over for name in spelled[axis])
        if self.on_shards:
            every = tuple(name for axis in self.rows.axes for name in spelled[axis])
            return (self._on_shards(operands, mesh, every, names),)

        def apart(array: jax.Array, cut: int | None) -> jax.Array:
            if cut is None:
                return array
            stack = array if cut == _STACK else rules.blocks(array, cut, self.rows.sizes, self.rows.kept)
            return partitioning.in_front(stack, mesh, names)

        def one(*arrays: jax.Array) -> jax.Array:
            result = self.inner.lower(arrays, numbers, [None] * len(arrays))[self.index]
            return result / self.rows.count if self.is_mean else result

        given = list(map(apart, operands, self.cuts))
        return (jax.vmap(one, in_axes=[None if cut is None else 0 for cut in self.cuts])(*given),)

    def _on_shards(self, operands: Arrays, mesh: Any, every: Axes, names: Axes) -> jax.Array:
        others = tuple(name for name in every if name not in names)

        def one(*arrays: jax.Array) -> jax.Array:
            result = self.inner.lower(arrays, (), [None] * len(arrays))[self.index]
            return (jax.lax.psum(result, others) if others else result)[None]

        specs = [
            PartitionSpec(*[None] * cut, every) if cut is not None else PartitionSpec() for cut in self.cuts
        ]  # fmt: skip
        mapped = jax.shard_map(
            one, mesh=mesh, in_specs=tuple(specs), out_specs=PartitionSpec(names), check_vma=False
        )  # fmt: skip
        return mapped(*operands)


@dataclass(frozen=True, slots=True)
class _First(Lowering):
    """A stack whose first summand is the operand; the others are zero."""

    rows: Rows

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        (array,) = operands
        place = jax.lax.broadcasted_iota(jnp.int32, (self.rows.count, *[1] * array.ndim), 0)
        return (jnp.where(place == 0, array[None], jnp.zeros((), array.dtype)),)


def unreduced(gradients: Sequence[XlaTensor], rows: Rows) -> list[XlaTensor | NotSeparableError]:
    """Returns for each gradient the stack of its summands, [count, *shape], or why there is none."""
    found: list[XlaTensor | NotSeparableError] = []
    with LOCK:
        values = [record_calls.read(gradient) for gradient in gradients]
        ways = _Ways(rows, walks.depending(values, _is_of_batch))
        for value in values:
            try:
                stack = ways.stack(_before_narrowing(value))
            except NotSeparableError as error:
                found.append(error)
            else:
                found.append(wrap(stack.meta, Storage(stack, stack.meta)))
    return found


def _before_narrowing(value: Value) -> Value:
    """The value before a cast to a narrower dtype, which is left to be done after the summands are added up."""
    node = walks.origin(value)
    name = "" if node is None else node.op.name
    if node is not None and name in SAME:
        inner = _before_narrowing(node.operands[walks.result_index(value)])
        return inner if inner.meta.dtype is not value.meta.dtype else value
    if node is not None and name == "aten._to_copy" and value.meta.dtype.is_floating_point:
        (inner,) = node.operands
        is_wider = inner.meta.dtype.is_floating_point and inner.meta.dtype.itemsize > value.meta.dtype.itemsize
        return inner if is_wider else value
    return value


def _is_of_batch(node: Node) -> bool:
    """True if an op differs between the rows of the batch: in the body of a loop, where it stands for a slice of the
    xs; elsewhere where it reads data that is no module's state; and where it draws."""
    if node.op.name == "spmd.stand_in" or node.op.lowering.draws(node.op):
        return True
    return any(map(_is_data_of_batch, node.operands))


def _is_data_of_batch(value: Value) -> bool:
    return type(value) is DeviceData and not value.is_state and not body.names()


class _Ways:
    """The ways back from gradients to the ops that sum them, over one graph. of_batch: the ops that depend on the
    batch."""

    def __init__(self, rows: Rows, of_batch: Mapping[Node, None]):
        self.rows = rows
        self.of_batch = of_batch
        self.made: dict[Any, Value] = {}

    def stack(self, value: Value) -> Value:
        """The summands of a value, as a stack."""
        found = self.made.get(walks.value_name(value))
        if found is None:
            found = self.made[walks.value_name(value)] = self._stack(value)
        return found

    def _stack(self, value: Value) -> Value:
        node = walks.origin(value)
        if node is None or node not in self.of_batch:
            return self._first(value)  # also the batch itself: a gradient of data is no sum over rows
        name = node.op.name.partition(":")[0]
        if name in SAME:
            return self.stack(node.operands[walks.result_index(value)])
        if name == "aten.sum.dim_IntList" and (before := self._reduced(node)) is not None:
            return before
        lowering = node.op.lowering
        if isinstance(lowering, Call) and not lowering.opaque:
            cuts = self._cuts(node, name, walks.result_index(value))
            if cuts is not None:
                return self._of_rows(node, name, walks.result_index(value), cuts)
            if name in LINEAR or (name in _MULTILINEAR and self._is_linear(node, _MULTILINEAR[name])):
                return self._again(node, walks.result_index(value), is_sum=name in LINEAR)
        raise NotSeparableError(
            f"it is made by {name} at {user_lines.node_line(node)}, which is not known as a sum over dim 0 of the "
            "batch, or as linear in such sums"
        )

    def _depends(self, value: Value) -> bool:
        return walks.origin(value) in self.of_batch or _is_data_of_batch(value)

    def _reduced(self, node: Node) -> Value | None:
        """The stack that an op sums, if it sums one that was made here over its summands."""
        (stack,) = node.operands
        result = walks.origin(stack)
        each = walks.origin(result.operands[0]) if result is not None and result.op.name == "mark_sharding" else None
        if each is None or each.op.name != _NAME or each.op.lowering.rows != self.rows:  # type: ignore[attr-defined]
            return None
        is_of_summands = list(dict(node.op.lowering.arguments).get("dim") or ()) == [0]  # type: ignore[attr-defined]
        return stack if is_of_summands and node.meta.shape == stack.meta.shape[1:] else None

    # --- sums over rows -----------------------------------------------------------------------------------------------

    def _cuts(self, node: Node, name: str, index: int) -> tuple[int | None, ...] | None:
        """For an op that sums over rows the dim of the rows in each operand, None for those without; else None."""
        if name not in _ROWS or index not in sums_of(node.op, _SUMS[name]):
            return None
        arguments: dict[str, Any] = dict(node.op.lowering.arguments)  # type: ignore[attr-defined]
        dims = _ROWS[name](arguments, node.op)
        cuts: list[int | None] = [None] * len(node.operands)
        for argument, dim in dims.items():
            place = arguments.get(argument)
            if type(place) is Operand and self._depends(node.operands[place]):
                cuts[place] = dim
        if sum(cut is not None for cut in cuts) < len([n for n in dims if type(arguments.get(n)) is Operand]):
            return None  # an operand without the batch's rows: the op is linear in the other
        block = self.rows.ways if name in _ON_SHARDS else math.prod(self.rows.sizes)
        for operand, cut in zip(node.operands, cuts, strict=True):
            if cut is not None and operand.meta.shape[cut] % block:
                raise NotSeparableError(
                    f"it is made by {name} at {user_lines.node_line(node)}, which sums over "
                    f"{operand.meta.shape[cut]} rows, and not over a multiple of {block}"
                )
        return tuple(cuts) if any(cut is not None for cut in cuts) else None

    def _of_rows(self, node: Node, name: str, index: int, cuts: tuple[int | None, ...]) -> Value:
        is_mean = name in _MEANS or (name in _LOSSES and _reduction(node) == _MEAN)
        on_shards = name in _ON_SHARDS
        inner = _on_block(node, cuts, self.rows.ways if on_shards else self.rows.count)
        lowering = _Each(inner, index, cuts, self.rows, is_mean, on_shards)
        return self._record(lowering, node.op.metas[index], node.operands, node.numbers, place_of(node), node.op)

    # --- linear ops after them ----------------------------------------------------------------------------------------

    def _is_linear(self, node: Node, names: Sequence[str]) -> bool:
        """True if one operand alone depends on the batch, and the op is linear in it."""
        arguments = dict(node.op.lowering.arguments)  # type: ignore[attr-defined]
        places = [place for name in names if type(place := arguments.get(name)) is Operand]
        depends = [place for place, one in enumerate(node.operands) if self._depends(one)]
        return len(depends) == 1 and depends[0] in places

    def _again(self, node: Node, index: int, *, is_sum: bool) -> Value:
        """The op on each summand. is_sum: of all operands together; else of the one that depends on the batch."""
        is_stack = [is_sum or self._depends(one) for one in node.operands]
        operands = [self.stack(one) if is_one else one for one, is_one in zip(node.operands, is_stack, strict=True)]
        lowering = _Each(node.op, index, tuple(_STACK if is_one else None for is_one in is_stack), self.rows)
        return self._record(lowering, node.op.metas[index], operands, node.numbers, place_of(node), node.op)

    # --- recording ----------------------------------------------------------------------------------------------------

    def _first(self, value: Value) -> Value:
        node = walks.origin(value)
        place: Place = (None, 0, -1) if node is None else place_of(node)
        return self._record(_First(self.rows), value.meta, (value,), (), place)

    def _record(
        self, lowering: Lowering, meta: Meta, operands: Sequence[Value], numbers: Any, place: Place,
        op: OpSpec | None = None,
    ) -> Value:  # fmt: skip
        stack = dense_meta((self.rows.count, *meta.shape), meta.dtype)
        kinds, statics = ("", "") if op is None else (op.numbers, f"{op.name}, {op.statics}")
        metas = tuple(one.meta for one in operands)
        result = OpSpec.of(_NAME, lowering, (stack,), metas, numbers=kinds, statics=statics)
        each = record_calls.record(result, tuple(operands), numbers, place)
        return record_calls.record(annotations.mark_op(stack, self.rows.stacked(len(meta.shape))), (each,), (), place)


def _on_block(node: Node, cuts: Sequence[int | None], count: int) -> OpSpec:
    """The op on one of so many blocks of its rows."""
    op = node.op
    call: Any = op.lowering
    arguments = dict(call.arguments)
    if "N" in arguments:  # the batch's rows, of a group norm
        arguments["N"] //= count
        call = dataclasses.replace(call, arguments=tuple(arguments.items()))
    sums = sums_of(op, _SUMS[op.name.partition(":")[0]])
    metas = [meta if index in sums else _cut(meta, 0, count) for index, meta in enumerate(op.metas)]
    operands = [meta if cut is None else _cut(meta, cut, count) for meta, cut in zip(op.operands, cuts, strict=True)]
    return OpSpec.of(
        op.name, call, tuple(metas), tuple(operands), numbers=op.numbers, statics=op.statics, layout=op.layout
    )  # fmt: skip


def _cut(meta: Meta, dim: int, count: int) -> Meta:
    shape = [size // count if index == dim else size for index, size in enumerate(meta.shape)]
    return dense_meta(shape, meta.dtype)


def sums_of(op: OpSpec, sums: Sequence[int]) -> list[int]:
    """Returns the indices, among the results that an op makes, of these results of its schema."""
    if op.layout is None:
        return list(sums)
    result = [place for place, part in enumerate(op.layout) if part is Slot]
    return [result.index(place) for place in sums if place in result]


def _reduction(node: Node) -> int:
    """The way in which a loss is reduced; the schema's default is the mean."""
    arguments: dict[str, Any] = dict(node.op.lowering.arguments)  # type: ignore[attr-defined]
    return int(arguments.get("reduction", _MEAN))


def place_of(node: Node) -> Place:
    return node.code, node.instruction, node.sequence


# --- what is known of ops ---------------------------------------------------------------------------------------------

_Dims = Callable[[dict[str, Any], OpSpec], dict[str, int]]


def _first(*names: str) -> _Dims:
    return lambda arguments, op: dict.fromkeys(names, 0)


def _rank(arguments: dict[str, Any], op: OpSpec, name: str) -> int:
    return len(op.operands[arguments[name]].shape)


def _of_sum(arguments: dict[str, Any], op: OpSpec) -> dict[str, int]:
    rank = _rank(arguments, op, "self")
    dims = arguments.get("dim")
    is_over_rows = rank and (not dims or 0 in {dim % rank for dim in dims})
    return {"self": 0} if is_over_rows else {}


def _of_linear(arguments: dict[str, Any], op: OpSpec) -> dict[str, int]:
    return {"self": 0, "grad_output": 0} if _rank(arguments, op, "self") > 1 else {}


def _of_layer_norm(arguments: dict[str, Any], op: OpSpec) -> dict[str, int]:
    given = [name for name in ("grad_out", "input", "mean", "rstd") if name in arguments]
    return dict.fromkeys(given, 0) if _rank(arguments, op, "input") > len(arguments["normalized_shape"]) else {}


def _of_embedding(arguments: dict[str, Any], op: OpSpec) -> dict[str, int]:
    has_rows = _rank(arguments, op, "indices") and not arguments.get("scale_grad_by_freq")
    return {"grad_output": 0, "indices": 0} if has_rows else {}


def _of_loss(arguments: dict[str, Any], op: OpSpec) -> dict[str, int]:
    is_reduced = arguments.get("reduction", _MEAN) in (_MEAN, _SUM) and _rank(arguments, op, "self")
    return {"self": 0, "target": 0} if is_reduced and op.operands[0].shape == op.operands[1].shape else {}


_MEAN, _SUM = 1, 2  # torch's reductions of a loss


# The dim of each argument that holds the rows of the batch, in an op whose `SUMS` are sums over them. The batch is the
# first dim of an activation; of a product it is the dim that is contracted.
_ROWS: dict[str, _Dims] = {
    "aten.mm": lambda arguments, op: {"self": 1, "mat2": 0},
    "aten.bmm": lambda arguments, op: {"self": 2, "mat2": 1},
    "aten.linear_backward": _of_linear,
    "aten.convolution_backward": _first("grad_output", "input"),
    "aten.embedding_dense_backward": _of_embedding,
    "aten.native_layer_norm_backward": _of_layer_norm,
    "aten._fused_rms_norm_backward": _of_layer_norm,
    "aten.native_group_norm_backward": _first("grad_out", "input", "mean", "rstd"),
    "aten.native_batch_norm_backward": _first("grad_out", "input"),
    "aten.sum": _of_sum,
    "aten.sum.dim_IntList": _of_sum,
    "aten.mean": _of_sum,
    "aten.mean.dim": _of_sum,
    "aten.mse_loss": _of_loss,
}

_MEANS = frozenset({"aten.mean", "aten.mean.dim"})
_LOSSES = frozenset({"aten.mse_loss"})
_SUMS = rules.SUMS | dict.fromkeys(_MEANS | _LOSSES, (0,))

# XLA's partitioner has no way to split the convolution of many groups that several blocks are.
_ON_SHARDS = frozenset({"aten.convolution_backward"})

SAME = frozenset({"mark_sharding", "spmd.unmarked", "spmd.renew", "aten.detach", "aten.alias"})

# Linear in all tensors together.
LINEAR = frozenset({
    "aten._to_copy", "aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor", "aten.neg", "aten.clone", "aten.copy_",
    "aten.expand", "aten.permute", "aten.slice.Tensor", "aten.select.int", "aten.squeeze", "aten.squeeze.dim",
    "aten.squeeze.dims", "aten.t", "aten.transpose.int", "aten.unsqueeze", "aten.view", "aten._unsafe_view",
    "aten.slice_backward", "aten.select_backward", "aten.cat", "aten.stack", "aten.split.Tensor", "aten.sum",
    "aten.sum.dim_IntList", "aten.as_strided", "aten.mul.Scalar", "aten.div.Scalar", "aten.flip",
    "aten.constant_pad_nd",
})  # fmt: skip

# Linear in each of these arguments, where the others do not depend on the batch.
_MULTILINEAR: dict[str, tuple[str, ...]] = {
    "aten.mul.Tensor": ("self", "other"),
    "aten.mul_.Tensor": ("self", "other"),
    "aten.div.Tensor": ("self",),
    "aten.mm": ("self", "mat2"),
    "aten.bmm": ("self", "mat2"),
    "aten.embedding_dense_backward": ("grad_output",),
}
