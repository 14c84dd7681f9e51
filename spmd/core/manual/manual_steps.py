"""A manual computation in two steps: a tensor becomes one shard of it, and a shard becomes the full tensor again.

The ops recorded between the two become the body of a manual computation at each join: of the results that leave, and in
backward of the gradients. Every shard counts as varying along all axes, so that gradients are right in any case.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..control.varying import Vary, collective, record_op
from ..ir.graph import Node, Region, Value, between, results, value_name
from ..ir.meta import dense_meta
from ..ir.op import OpSpec
from ..ir.source import node_line
from ..lazy import manual_shards
from ..lazy.manual_shards import Cut, ManualShard
from ..lazy.reads import operand
from ..lazy.record import graph_task, record_here
from ..lazy.storage import LOCK, Storage
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.threads import enter_thread
from ..lower.manual_lowering import Axes, Boundary, Manual, Over, Rules, Varying
from ..lower.region import body_numbers
from ..sharding.value import Sharding


class Untracked:
    """Takes the place of a `varying.Tracker` where shards are values of the graph: all vary along all axes."""

    def __init__(self, mesh: Sharding):
        self.mesh = mesh
        self.sizes: Mapping[str, int] = mesh.mesh_axes()
        self.axes: Axes = mesh.axis_names

    def size(self, axes: Any) -> int:
        """The number of shards along axes."""
        found = 1
        for axis in axes:
            found *= self.sizes[axis]
        return found

    def varied(self, tensor: Any, over: Over) -> Any:
        return tensor

    def reduced(self, tensor: Any, over: Over) -> Any:
        less = tuple(axis for axis in self.axes if axis in over)
        return Vary.apply(tensor, (), less, self.size(less)) if less else tensor

    def again(self, tensor: Any, axes: Axes) -> Any:
        """Returns the result of a collective that is equal along axes, as varying along them."""
        return Vary.apply(tensor, axes, (), 1) if tensor.requires_grad else tensor


def untracked(tensor: Any) -> Untracked | None:
    """Returns the mesh's axes where a tensor is computed from shards that are values of the graph; else None."""
    if not manual_shards.is_used or type(tensor) is not XlaTensor:
        return None
    found = manual_shards.behind(operand(tensor))
    return Untracked(_mesh(found)) if found else None


def enable(tensor: Any, mesh: Sharding, cut: Cut) -> Any:
    """Returns one shard of a tensor."""
    return _Enable.apply(tensor, mesh.replicated(), cut)


def disable(tensor: Any, mesh: Sharding, cut: Cut) -> Any:
    """Returns the full tensor of which this is one shard; ValueError where it is none."""
    return _Disable.apply(tensor, mesh.replicated(), cut)


class _Enable(torch.autograd.Function):
    """Takes one shard; its gradients, summed over axes that do not shard the tensor, join to the full gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Sharding, cut: Cut) -> Any:
        ctx.of = mesh, cut
        return _shard(tensor, mesh, cut)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        mesh, cut = ctx.of
        rest = tuple(axis for axis in mesh.axis_names if not any(axis in axes for axes in cut))
        summed = collective("all_reduce", gradient, rest, gradient.shape, "sum") if rest else gradient
        return _joined(summed, mesh, cut), None, None


class _Disable(torch.autograd.Function):
    """Joins the shards; each gets its shard of the gradient, divided by the number of shards that hold the same one."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Sharding, cut: Cut) -> Any:
        ctx.of = mesh, cut
        return _joined(tensor, mesh, cut)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        mesh, cut = ctx.of
        named = [axis for axes in cut for axis in axes]
        count = Untracked(mesh).size([axis for axis in mesh.axis_names if axis not in named])
        return _shard(gradient / count if count > 1 else gradient, mesh, cut), None, None


def _shard(tensor: Any, mesh: Sharding, cut: Cut) -> XlaTensor:
    manual_shards.note_use(mesh)
    size = Untracked(mesh).size
    shape = [length // size(axes) for length, axes in zip(tensor.shape, cut, strict=True)]
    return record_op("spmd.to_shard", ManualShard(mesh, cut), tensor, dense_meta(shape, tensor.dtype))


def _joined(tensor: Any, mesh: Sharding, cut: Cut) -> XlaTensor:
    """Records the manual computation from the shards that a tensor is computed from to the tensor."""
    enter_thread()
    with LOCK:
        root = operand(tensor)
        found = sorted(manual_shards.behind(root), key=lambda node: node.serial)
        if found and _mesh(found) is not mesh:
            raise ValueError(
                f"spmd.disable_manual_sharding: the shard is of the mesh {_mesh(found)!r}, but is to be joined over "
                f"{mesh!r}"
            )
        size = Untracked(mesh).size
        shape = [length * size(axes) for length, axes in zip(tensor.shape, cut, strict=True)]
        constants = _constants(root, found)
        given: list[Value] = [*constants, *found]
        nodes = between([root], given)
        known = {value_name(node): _all_of(node) for node in found}
        rules = Rules(mesh.axis_names, known)
        _refuse_difference(rules, root, cut)
        folds = [rules.drawn_over(node) for node in nodes if node.op.lowering.draws(node.op)]
        in_order = [tuple(axis for axis in mesh.axis_names if axis in over) for over in folds]
        replicated = [Boundary(((),) * len(value.meta.shape)) for value in constants]
        ins = (*replicated, *(Boundary(_of(node).cut) for node in found))
        lowering = Manual(Region.of([root], given), mesh, mesh.axis_names, ins, (Boundary(cut),), tuple(in_order))
        operands = [*constants, *(node.operands[0] for node in found)]
        meta = dense_meta(shape, tensor.dtype)
        op = OpSpec.of(
            "spmd.from_shards", lowering, (meta,), tuple(value.meta for value in operands),
            numbers="".join(node.op.numbers for node in nodes), statics=str(cut), sharding=mesh,
        )  # fmt: skip
        node = record_here(op, operands, body_numbers(lowering.body), sys._getframe(1), graph_task())
        (made,) = results(node)
        return wrap(meta, Storage(made, meta))


def _constants(root: Value, found: list[Node]) -> list[Value]:
    """The operands that no shard is computed into: the same on all shards, but for draws and axis indices."""
    every = between([root], found)
    values = {value_name(v): v for node in every for v in node.operands} | {value_name(root): root}
    none = dict(zip(values, manual_shards.without(list(values.values())), strict=True))
    inside = {node for node in every if not none.get(value_name(_first(node)), True)}
    read = {value_name(v): v for node in inside for v in node.operands if none[value_name(v)]}
    if none[value_name(root)]:
        read[value_name(root)] = root
    return [value for name, value in read.items() if not _is_of_shard(value)]


def _first(node: Node) -> Value:
    return results(node)[0]


def _is_of_shard(value: Value) -> bool:
    """True if a value that no shard is computed into is one shard's all the same: a draw, or its axis index."""
    return any(node.op.name == "spmd.axis_index" or node.op.lowering.draws(node.op) for node in between([value], ()))


def _of(node: Node) -> ManualShard:
    lowering = node.op.lowering
    assert isinstance(lowering, ManualShard)
    return lowering


def _mesh(found: list[Node]) -> Sharding:
    meshes = {_of(node).mesh: node for node in found}
    if len(meshes) > 1:
        lines = " and ".join(f"{node_line(node)}" for node in meshes.values())
        raise ValueError(f"spmd.enable_manual_sharding: shards of two meshes meet, made at {lines}")
    return next(iter(meshes))


def _all_of(node: Node) -> Varying:
    over = frozenset(axis for axes in _of(node).cut for axis in axes)
    return Varying(frozenset(_of(node).mesh.axis_names), over)


def _refuse_difference(rules: Rules, root: Value, cut: Cut) -> None:
    named = frozenset(axis for axes in cut for axis in axes)
    may_diverge = sorted(rules.of(root).may_diverge - named)
    if may_diverge:
        raise ValueError(
            f"spmd.disable_manual_sharding: the spec says that the shards along {', '.join(map(repr, may_diverge))} "
            "are the same, but they may differ; name the axis in the spec, or reduce it first with spmd.all_reduce"
        )
