"""`spmd.unreduced`: gradients as stacks of summands that devices have not exchanged yet, one for
each shard along axes.

A gradient is a sum over the rows of the batch. The op that sums is recorded again, once for each
block of rows, and so are the linear ops between it and the gradient, once for each summand. The
stack's sum is the gradient, whatever the ops before it do with the batch: they stay those of the
whole batch.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax.sharding import PartitionSpec

from ..core import (
    LOCK,
    DeviceData,
    Dim,
    Meta,
    Sharding,
    Spec,
    Storage,
    annotations,
    dense_meta,
    ends_at_user_line,
    specs,
    threads,
    wrap,
)
from ..core.extend import (
    Arrays,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Value,
    body,
    calls,
    inlined_calls,
    lowerings,
    op_specs,
    partitioning,
    record_calls,
    storages,
    user_lines,
    views,
    walks,
)
from ..loops.manual_lowering import Axes
from ..mesh.mesh import Mesh
from ..tensors.annotate import on_device


@dataclass(frozen=True, slots=True)
class BatchAxes:
    """The axes that shard the rows of the batch, the outermost first, and those not reduced, in the
    same order."""

    mesh: Sharding
    axes: Axes
    over: Axes

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the axes, as far as the last one that is not reduced."""
        sizes = self.mesh.mesh_axes()
        return tuple(sizes[axis] for axis in self.axes[: self.kept[-1] + 1])

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the axes that are not reduced among `axes`, in their order."""
        return tuple(map(self.axes.index, self.over))

    @property
    def ways(self) -> int:
        """The number of devices among which the rows are divided."""
        return math.prod(self.mesh.mesh_axes()[axis] for axis in self.axes)

    @property
    def count(self) -> int:
        """The number of summands."""
        return math.prod(self.mesh.mesh_axes()[axis] for axis in self.over)

    def stacked(self, rank: int) -> Sharding:
        """The sharding of a stack: summands over the axes, their own dims as the partitioner
        chooses."""
        return self.mesh.with_spec(Spec((Dim(self.over), *[specs.OPEN] * rank)))


class NotSeparableError(NotImplementedError):
    """Raised for a gradient whose summands are not known, with the op and its line."""


_NAME = "spmd.unreduced"
_STACK = -1  # in `_Each.cuts`: the operand is a stack already


@dataclass(frozen=True, slots=True)
class _Each(Lowering):
    """One result of an op, for each block of rows or each summand of its operands, as a stack.

    inner: the op on one of them. cuts: for each operand the dim that is cut into blocks, _STACK, or
    None for an operand that is the same for all. is_mean: the op is a mean over the rows, of which
    a block's is a part. on_shards: the op runs on the rows of each device, as a partitioner has no
    way to split it for several blocks: `inner` is on those.
    """

    inner: OpSpec
    index: int
    cuts: tuple[int | None, ...]
    rows: BatchAxes
    is_mean: bool = False
    on_shards: bool = False

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        mesh, spelled = self.rows.mesh.by_axis()
        names = tuple(name for axis in self.rows.over for name in spelled[axis])
        if self.on_shards:
            every = tuple(name for axis in self.rows.axes for name in spelled[axis])
            return (self._on_shards(operands, mesh, every, names),)

        def apart(array: jax.Array, cut: int | None) -> jax.Array:
            if cut is None:
                return array
            stack = array if cut == _STACK else _blocks(array, cut, self.rows.sizes, self.rows.kept)
            return partitioning.in_front(stack, mesh, names)

        def summand(*arrays: jax.Array) -> jax.Array:
            result = self.inner.lowering.lower(self.inner, arrays, numbers, [None] * len(arrays))[
                self.index
            ]
            return result / self.rows.count if self.is_mean else result

        stacks = list(map(apart, operands, self.cuts))
        return (
            jax.vmap(summand, in_axes=[None if cut is None else 0 for cut in self.cuts])(*stacks),
        )

    def _on_shards(self, operands: Arrays, mesh: Any, every: Axes, names: Axes) -> jax.Array:
        summed_axes = tuple(name for name in every if name not in names)

        def summand(*arrays: jax.Array) -> jax.Array:
            result = self.inner.lowering.lower(self.inner, arrays, (), [None] * len(arrays))[
                self.index
            ]
            return (jax.lax.psum(result, summed_axes) if summed_axes else result)[None]

        ins = tuple(
            PartitionSpec() if cut is None else PartitionSpec(*[None] * cut, every)
            for cut in self.cuts
        )
        outs = PartitionSpec(names)
        return jax.shard_map(summand, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)(
            *operands
        )


@dataclass(frozen=True, slots=True)
class _First(Lowering):
    """A stack whose first summand is the operand; the others are zero."""

    rows: BatchAxes

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        (array,) = operands
        index = jax.lax.broadcasted_iota(jnp.int32, (self.rows.count, *[1] * array.ndim), 0)
        return (jnp.where(index == 0, array[None], jnp.zeros((), array.dtype)),)


@ends_at_user_line
def unreduced(
    gradients: Sequence[torch.Tensor], mesh: Mesh, batch_axes: Sequence[str], over: Sequence[str]
) -> list[torch.Tensor | NotImplementedError]:
    """Returns gradients before their reduction over mesh axes: for each the stack of its summands.

    A gradient is a sum over the rows of the batch. Of these each device has some, so it has a
    summand of the gradient, and the partitioner reduces the summands where the sum is made. Here
    the sum is recorded again with a dim in front, sharded over the axes: `stack.sum(0)` is the
    gradient, and its devices exchange nothing over these axes before. Stacks may be added up, over
    several backward passes, and then reduced once. Forward and backward stay those of the whole
    batch: so a mean over tokens, batch statistics and random numbers are what they are on one
    device.

    Args:
        gradients: recorded tensors that have not run, such as `.grad` after `backward`, or a loss.
        mesh: the mesh over which the batch is sharded.
        batch_axes: the axes that shard dim 0 of the batch, the outermost first.
        over: those among them over which the result is not reduced.

    Returns for each gradient a tensor of shape [devices along `over`, *shape], in the gradient's
    dtype or in a wider one in which it was summed before a cast; or, where an op on the way from
    the sum over the batch to the gradient is not known to be linear, the error that names the op
    and its line.
    Raises ValueError for axes that are not in the mesh or not of the batch, TypeError for tensors
    that are not on xla. Source: JAX's `PartitionSpec(unreduced=...)`.

    >>> import torch, spmd
    >>> mesh = spmd.Mesh([0], (1,), ("data",))
    >>> weight = torch.ones(4, 2, device="xla", requires_grad=True)
    >>> (torch.ones(8, 4, device="xla") @ weight).sum().backward()
    >>> (stack,) = spmd.unreduced([weight.grad], mesh, ("data",), ("data",))
    >>> stack.shape, stack.sum(0).equal(weight.grad)
    (torch.Size([1, 4, 2]), True)
    """
    for axis in (*batch_axes, *over):
        if axis not in mesh.axes:
            raise ValueError(
                f"unreduced: the mesh has no axis {axis!r} (axes: {', '.join(mesh.axes)})"
            )
    if not over or not set(over) <= set(batch_axes):
        raise ValueError(
            "unreduced: expected over to name some of the batch's axes "
            f"({', '.join(batch_axes)}), got {tuple(over)!r}"
        )
    threads.enter_thread()
    tensors = [on_device(gradient, "unreduced") for gradient in gradients]
    stacks: list[torch.Tensor | NotImplementedError] = []
    with LOCK:
        inlined_calls.inline(storages.pending())
        values = [views.read(tensor) for tensor in tensors]
        in_order = tuple(axis for axis in batch_axes if axis in over)
        batch = BatchAxes(mesh.sharding((), 0), tuple(batch_axes), in_order)
        summands = _Summands(batch, walks.depending(values, _is_of_batch))
        for value in values:
            try:
                stack = summands.stack(_before_narrowing(value))
                stacks.append(wrap(stack.meta, Storage(stack, stack.meta)))
            except NotSeparableError as error:
                stacks.append(error)
    return stacks


def _before_narrowing(value: Value) -> Value:
    """The value before a cast to a narrower dtype, which is left to be done after the summands are
    added up."""
    node = walks.origin(value)
    name = "" if node is None else node.op.name
    if node is not None and name in SAME:
        inner = _before_narrowing(node.operands[walks.result_index(value)])
        return inner if inner.meta.dtype is not value.meta.dtype else value
    if node is not None and name == "aten._to_copy" and value.meta.dtype.is_floating_point:
        (inner,) = node.operands
        is_wider = (
            inner.meta.dtype.is_floating_point
            and inner.meta.dtype.itemsize > value.meta.dtype.itemsize
        )
        return inner if is_wider else value
    return value


def _is_of_batch(node: Node) -> bool:
    """True if an op differs between the rows of the batch: in the body of a loop, where it stands
    for a slice of the xs; elsewhere where it reads data that is no module's state; and where it
    draws."""
    if node.op.name == "spmd.stand_in" or node.op.draws:
        return True
    return any(map(_is_data_of_batch, node.operands))


def _is_data_of_batch(value: Value) -> bool:
    return type(value) is DeviceData and not value.is_state and not body.names.value


class _Summands:
    """The ways back from gradients to the ops that sum them, over one graph. of_batch: the ops that
    depend on the batch."""

    def __init__(self, rows: BatchAxes, of_batch: Mapping[Node, None]):
        self.rows = rows
        self.of_batch = of_batch
        self.stacks: dict[Any, Value] = {}

    def stack(self, value: Value) -> Value:
        """The summands of a value, as a stack."""
        name = walks.value_name(value)
        if name not in self.stacks:
            self.stacks[name] = self._stack(value)
        return self.stacks[name]

    def _stack(self, value: Value) -> Value:
        node = walks.origin(value)
        if node is None or node not in self.of_batch:
            # Also the batch itself: a gradient of data is no sum over rows.
            return self._record(_First(self.rows), value.meta, (value,), node)
        name = node.op.name.partition(":")[0]
        if name in SAME:
            return self.stack(node.operands[walks.result_index(value)])
        if name == "aten.sum.dim_IntList" and (stack := self._reduced(node)) is not None:
            return stack
        lowering, index = node.op.lowering, walks.result_index(value)
        if isinstance(lowering, lowerings.Call) and not node.op.is_opaque:
            cuts = self._cuts(node, name, index)
            if cuts is not None:
                return self._of_rows(node, name, index, cuts)
            if name in LINEAR or (
                name in _MULTILINEAR and self._is_linear(node, _MULTILINEAR[name])
            ):
                return self._of_each(node, index, is_sum=name in LINEAR)
        raise NotSeparableError(
            f"it is made by {name} at {user_lines.node_line(node)}, which is not known as a sum "
            "over dim 0 of the batch, or as linear in such sums"
        )

    def _depends(self, value: Value) -> bool:
        return walks.origin(value) in self.of_batch or _is_data_of_batch(value)

    def _reduced(self, node: Node) -> Value | None:
        """The stack of partial sums that `node` reduces, or None."""
        (stack,) = node.operands
        result = walks.origin(stack)
        summands = (
            walks.origin(result.operands[0])
            if result is not None and result.op.name == "mark_sharding"
            else None
        )
        if summands is None or summands.op.name != _NAME or summands.op.lowering.rows != self.rows:  # type: ignore[attr-defined]
            return None
        is_of_summands = list(_arguments(node).get("dim") or ()) == [0]
        return stack if is_of_summands and node.meta.shape == stack.meta.shape[1:] else None

    # --- sums over rows ---------------------------------------------------------------------------

    def _cuts(self, node: Node, name: str, index: int) -> tuple[int | None, ...] | None:
        """For an op that sums over rows the dim of the rows in each operand, None for those
        without; else None."""
        if name not in _ROWS or index not in sums_of(node.op, _SUMS[name]):
            return None
        rows = _rows_of(name, _arguments(node), node.op.operands)
        if not all(self._depends(node.operands[operand]) for operand, _ in rows):
            return None  # an operand without the batch's rows: the op is linear in the other
        cuts = tuple(map(dict(rows).get, range(len(node.operands))))
        block = self.rows.ways if name in _ON_SHARDS else math.prod(self.rows.sizes)
        for value, cut in zip(node.operands, cuts, strict=True):
            if cut is not None and value.meta.shape[cut] % block:
                raise NotSeparableError(
                    f"it is made by {name} at {user_lines.node_line(node)}, which sums over "
                    f"{value.meta.shape[cut]} rows, and not over a multiple of {block}"
                )
        return cuts if rows else None

    def _of_rows(self, node: Node, name: str, index: int, cuts: tuple[int | None, ...]) -> Value:
        # The schema's default of a loss's reduction is the mean.
        is_mean = name in _MEANS or (
            name in _LOSSES and _arguments(node).get("reduction", _MEAN) == _MEAN
        )
        on_shards = name in _ON_SHARDS
        inner = _on_block(node, cuts, self.rows.ways if on_shards else self.rows.count)
        lowering = _Each(inner, index, cuts, self.rows, is_mean, on_shards)
        return self._record(lowering, node.op.metas[index], node.operands, node)

    # --- linear ops after them --------------------------------------------------------------------

    def _is_linear(self, node: Node, names: Sequence[str]) -> bool:
        """True if one operand alone depends on the batch, and the op is linear in it."""
        arguments = _arguments(node)
        linear = [
            operand for name in names if type(operand := arguments.get(name)) is calls.Operand
        ]
        depends = [i for i, operand in enumerate(node.operands) if self._depends(operand)]
        return len(depends) == 1 and depends[0] in linear

    def _of_each(self, node: Node, index: int, *, is_sum: bool) -> Value:
        """The op on each summand. is_sum: of all operands together; else of the one that depends on
        the batch."""
        cuts = tuple(
            _STACK if is_sum or self._depends(operand) else None for operand in node.operands
        )
        pairs = zip(node.operands, cuts, strict=True)
        operands = [operand if cut is None else self.stack(operand) for operand, cut in pairs]
        return self._record(
            _Each(node.op, index, cuts, self.rows), node.op.metas[index], operands, node
        )

    # --- recording --------------------------------------------------------------------------------

    def _record(
        self, lowering: "_Each | _First", meta: Meta, operands: Sequence[Value], node: Node | None
    ) -> Value:
        stack = dense_meta((self.rows.count, *meta.shape), meta.dtype)
        metas = tuple(operand.meta for operand in operands)
        location: record_calls.Location = (None, 0, -1) if node is None else location_of(node)
        if isinstance(lowering, _Each) and node is not None:
            kinds, statics, numbers = (
                node.op.numbers,
                f"{node.op.name}, {node.op.statics}",
                node.numbers,
            )
        else:
            kinds, statics, numbers = "", "", ()
        result = OpSpec.of(_NAME, lowering, (stack,), metas, numbers=kinds, statics=statics)
        summands = record_calls.record(result, tuple(operands), numbers, location)
        return record_calls.record(
            annotations.mark_op(stack, self.rows.stacked(len(meta.shape))),
            (summands,),
            (),
            location,
        )


def _arguments(node: Node) -> dict[str, Any]:
    """The arguments of a node that calls an op of aten."""
    return dict(node.op.lowering.arguments)  # type: ignore[attr-defined]


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
    operands = [
        meta if cut is None else _cut(meta, cut, count)
        for meta, cut in zip(op.operands, cuts, strict=True)
    ]
    return OpSpec.of(
        op.name,
        call,
        tuple(metas),
        tuple(operands),
        numbers=op.numbers,
        statics=op.statics,
        layout=op.layout,
    )


def _cut(meta: Meta, dim: int, count: int) -> Meta:
    shape = [size // count if index == dim else size for index, size in enumerate(meta.shape)]
    return dense_meta(shape, meta.dtype)


def sums_of(op: OpSpec, sums: Sequence[int]) -> list[int]:
    """Returns the indices, among the results that an op makes, of these results of its schema."""
    if op.layout is None:
        return list(sums)
    results = [index for index, part in enumerate(op.layout) if part is op_specs.Slot]
    return [results.index(index) for index in sums if index in results]


def location_of(node: Node) -> record_calls.Location:
    return node.code, node.instruction, node.sequence


def _blocks(
    array: jax.Array, dim: int, sizes: Sequence[int], block_dims: Sequence[int]
) -> jax.Array:
    """The array as a stack of blocks of a dim, each with the rows of one place along the axes
    `block_dims` (places in `sizes`, the sizes of the axes that shard the dim, the outermost
    first)."""
    rows = jnp.moveaxis(array, dim, 0)
    apart = rows.reshape(*sizes, rows.shape[0] // math.prod(sizes), *rows.shape[1:])
    inner_dims = [index for index in range(apart.ndim) if index not in block_dims]
    count = math.prod(sizes[index] for index in block_dims)
    stack = apart.transpose(*block_dims, *inner_dims).reshape(
        count, rows.shape[0] // count, *rows.shape[1:]
    )
    return jnp.moveaxis(stack, 1, dim + 1)


# --- what is known of ops -------------------------------------------------------------------------

_MEAN, _SUM = 1, 2  # torch's reductions of a loss


# The dim of each argument that holds the rows of the batch, in an op whose `SUMS` are sums over
# them. The batch is the first dim of an activation; of a product it is the dim that is contracted.
_ROWS: dict[str, dict[str, int]] = {
    "aten.mm": {"self": 1, "mat2": 0},
    "aten.bmm": {"self": 2, "mat2": 1},
    "aten.linear_backward": {"self": 0, "grad_output": 0},
    "aten.convolution_backward": {"grad_output": 0, "input": 0},
    "aten.embedding_dense_backward": {"grad_output": 0, "indices": 0},
    **{
        f"aten.{kind}_norm_backward": dict.fromkeys(("grad_out", "input", "mean", "rstd"), 0)
        for kind in ("native_layer", "_fused_rms", "native_group")
    },
    "aten.native_batch_norm_backward": {"grad_out": 0, "input": 0},
    **{f"aten.{name}": {"self": 0} for name in ("sum", "sum.dim_IntList", "mean", "mean.dim")},
    "aten.mse_loss": {"self": 0, "target": 0},
}


def _rows_of(
    name: str, arguments: dict[str, Any], operands: Sequence[Meta]
) -> list[tuple[int, int]]:
    """The operands with the batch's rows and their dims; none where the op does not sum over the
    rows."""
    rows = [
        (arguments[key], dim)
        for key, dim in _ROWS[name].items()
        if type(arguments.get(key)) is calls.Operand
    ]
    shapes = [operands[operand].shape for operand, _ in rows]
    rank, dims = len(shapes[0]), arguments.get("dim")
    # The dims that are no rows: the features of a linear layer, those that a norm is over.
    fewest = 1 if name == "aten.linear_backward" else len(arguments.get("normalized_shape", ()))
    is_of_rows = all(len(shape) > fewest for shape in shapes) and (
        not dims or 0 in {dim % rank for dim in dims}
    )
    if name in _LOSSES:
        is_of_rows &= arguments.get("reduction", _MEAN) in (_MEAN, _SUM) and shapes[0] == shapes[1]
    return rows if is_of_rows and not arguments.get("scale_grad_by_freq") else []


_MEANS = frozenset({"aten.mean", "aten.mean.dim"})
_LOSSES = frozenset({"aten.mse_loss"})
_SUMS = partitioning.SUMS | dict.fromkeys(_MEANS | _LOSSES, (0,))

# XLA's partitioner has no way to split the convolution of many groups that several blocks are.
_ON_SHARDS = frozenset({"aten.convolution_backward"})

SAME = frozenset({"mark_sharding", "spmd.unmarked", "spmd.renew", "aten.detach", "aten.alias"})

# Linear in all tensors together.
LINEAR = frozenset({
    "aten._to_copy", "aten.add.Tensor", "aten.add_.Tensor", "aten.sub.Tensor", "aten.neg",
    "aten.clone", "aten.copy_", "aten.expand", "aten.permute", "aten.slice.Tensor",
    "aten.select.int", "aten.squeeze", "aten.squeeze.dim", "aten.squeeze.dims", "aten.t",
    "aten.transpose.int", "aten.unsqueeze", "aten.view", "aten._unsafe_view", "aten.slice_backward",
    "aten.select_backward", "aten.cat", "aten.stack", "aten.split.Tensor", "aten.sum",
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
