"""A manual computation in two steps: a tensor becomes one shard of it, and a shard becomes the full
tensor again.

The first step is an op of the graph without a value of its own (`ManualShard`), which no sync runs.
The ops recorded between the two become the body of a manual computation at each join: of the
results that leave, and in backward of the gradients. Every shard counts as varying along all axes,
so that gradients are right in any case.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core import LOCK, Sharding, XlaTensor, dense_meta, points, threads
from ..core.extend import Arrays, Layouts, Lowering, Node, OpSpec, Value, reads, user_lines, walks
from ..loops.manual_lowering import Axes, Boundary, Cut, IndexLowering, Varying
from ..loops.vma import Tracker, Vary, record_op, summed
from .manual_computation import manual_op, record_manual, replicated


@dataclass(frozen=True, slots=True)
class ManualShard(Lowering):
    """One shard's part of its operand."""

    mesh: Sharding
    cut: Cut

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[None]:  # type: ignore[override]
        raise RuntimeError(
            "it is one shard's part of a tensor (spmd.torch_xla.enable_manual_sharding) and has "
            "no value outside; join the shards with spmd.torch_xla.disable_manual_sharding first"
        )


# the mesh of the latest shard: until one is recorded no sync looks for any
latest: Sharding | None = None


def _is_shard(node: Node) -> bool:
    return isinstance(node.op.lowering, ManualShard)


def _shards_of(value: Value) -> list[Node]:
    """The `ManualShard` nodes that a value depends on, in the order of recording."""
    return list(filter(_is_shard, walks.between([value], ())))


def _are_values(values: Sequence[Value]) -> list[bool]:
    """For each value, True if it depends on no `ManualShard`."""
    depending = walks.depending(values, _is_shard)
    return [walks.origin(value) not in depending for value in values]


class Untracked(Tracker):
    """A tracker where shards are values of the graph: all vary along all axes."""

    def of(self, value: Value) -> Varying:
        return Varying(self.every, self.every)

    def again(self, tensor: Any, axes: Axes) -> Any:
        """Returns the result of a collective that is equal along axes, as varying along them."""
        return Vary.apply(tensor, axes, (), 1, False) if tensor.requires_grad else tensor


def untracked(tensor: Any) -> Untracked | None:
    """Returns the tracker of a tensor that is computed from shards that are values of the graph;
    else None."""
    if latest is None or not isinstance(tensor, XlaTensor):
        return None
    shards = _shards_of(reads.operand(tensor))
    return Untracked(_mesh(shards), _mesh(shards).axis_names) if shards else None


class ManualStep(torch.autograd.Function):
    """Takes one shard; its gradients, summed over axes that do not shard the tensor, join to the
    full gradient. Or joins the shards; each gets its shard of the gradient, divided by the number
    of shards that hold the same one."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Sharding, cut: Cut, joins: bool) -> Any:
        ctx.of = mesh, cut, joins
        return (_joined if joins else _shard)(tensor, mesh, cut)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        mesh, cut, joins = ctx.of
        over = Boundary(cut).over
        unnamed = tuple(axis for axis in mesh.axis_names if axis not in over)
        if not joins:
            return _joined(summed(gradient, unnamed), mesh, cut), None, None, None
        (count,) = Boundary((unnamed,)).counts(mesh.mesh_axes())
        return _shard(gradient / count if count > 1 else gradient, mesh, cut), None, None, None


def _shard(tensor: Any, mesh: Sharding, cut: Cut) -> XlaTensor:
    global latest
    if latest is None:
        points.can_run.append(_are_values)
    latest = mesh
    counts = Boundary(cut).counts(mesh.mesh_axes())
    shape = [length // count for length, count in zip(tensor.shape, counts, strict=True)]
    return record_op(
        "spmd.to_shard", ManualShard(mesh, cut), tensor, dense_meta(shape, tensor.dtype)
    )


def _joined(tensor: Any, mesh: Sharding, cut: Cut) -> XlaTensor:
    """Records the manual computation from the shards that a tensor is computed from to the
    tensor."""
    threads.enter_thread()
    with LOCK:
        root = reads.operand(tensor)
        shards = _shards_of(root)
        if shards and _mesh(shards) is not mesh:
            raise ValueError(
                "spmd.torch_xla.disable_manual_sharding: the shard is of the mesh "
                f"{_mesh(shards)!r}, but is to be joined over {mesh!r}"
            )
        constants = _constants(root, shards)
        rules = Tracker(mesh, mesh.axis_names)
        rules.known |= {walks.value_name(value): Varying() for value in constants}
        for node in shards:
            rules.known[node] = Varying(rules.every, Boundary(_of(node).cut).over)
        boundary = Boundary(cut)
        may_diverge = sorted(rules.of(root).may_diverge - boundary.over)
        if may_diverge:
            raise ValueError(
                "spmd.torch_xla.disable_manual_sharding: the spec says that the shards along "
                f"{', '.join(map(repr, may_diverge))} are the same, but they may differ; name the "
                "axis in the spec, or reduce it first with spmd.manual.all_reduce"
            )
        ins = [*map(replicated, constants), *(Boundary(_of(node).cut) for node in shards)]
        op = manual_op(rules, [root], [boundary], [*constants, *shards], ins)
        operands = [*constants, *(node.operands[0] for node in shards)]
        (result,) = record_manual("spmd.from_shards", op, operands)
        return result


def _constants(root: Value, shards: list[Node]) -> list[Value]:
    """The operands that no shard is computed into: the same on all shards, but for draws and axis
    indices."""
    of_shards = dict.fromkeys(shards)

    def is_of_shard(node: Node) -> bool:
        is_own = isinstance(node.op.lowering, IndexLowering) or bool(node.op.draws)
        return is_own or not of_shards.keys().isdisjoint(node.operands)

    inside = walks.depending([root], is_of_shard, shards)
    of_shards |= inside
    read = (*(value for node in inside for value in node.operands), root)
    return list(
        {
            walks.value_name(value): value for value in read if walks.origin(value) not in of_shards
        }.values()
    )


def _of(node: Node) -> ManualShard:
    lowering = node.op.lowering
    assert isinstance(lowering, ManualShard)
    return lowering


def _mesh(shards: list[Node]) -> Sharding:
    meshes = {_of(node).mesh: node for node in shards}
    if len(meshes) > 1:
        lines = " and ".join(f"{user_lines.node_line(node)}" for node in meshes.values())
        raise ValueError(
            f"spmd.torch_xla.enable_manual_sharding: shards of two meshes meet, made at {lines}"
        )
    return next(iter(meshes))
