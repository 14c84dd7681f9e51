"""A manual region in two steps: a tensor becomes one shard's piece, and a piece a whole tensor again.

What is recorded between them becomes the body of a region at each joining: of the results that leave, and, backward, of
the gradients. Every piece counts as each shard's own over all axes, so that gradients are right whatever was recorded.
"""

import sys
from collections.abc import Mapping
from typing import Any

import torch

from ..compile.manual import Axes, Border, Manual, Over, Rules, Varies
from ..compile.region import body_numbers
from ..ir.graph import Node, Region, Value, between, results, value_name
from ..ir.meta import dense_meta
from ..ir.op import Entry
from ..ir.source import node_line
from ..lazy import pieces
from ..lazy.cell import LOCK, Cell
from ..lazy.pieces import Cut, Piece
from ..lazy.reads import operand
from ..lazy.record import graph_task, record_here
from ..lazy.tensor import XlaTensor, wrap
from ..lazy.threads import enter_thread
from ..sharding.value import Sharding
from .varying import Vary, collective, record_op


class Loose:
    """Stands for a `varying.Tracker` where pieces stand in the graph itself: all are each shard's own over all axes."""

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

    def settled(self, tensor: Any, over: Over) -> Any:
        less = tuple(axis for axis in self.axes if axis in over)
        return Vary.apply(tensor, (), less, self.size(less)) if less else tensor

    def again(self, tensor: Any, axes: Axes) -> Any:
        """What a collective has made one over axes, as each shard's own."""
        return Vary.apply(tensor, axes, (), 1) if tensor.requires_grad else tensor


def loose(tensor: Any) -> Loose | None:
    """Where a tensor is made of pieces in the graph itself: the axes that there are."""
    if not pieces.is_used or type(tensor) is not XlaTensor:
        return None
    found = pieces.behind(operand(tensor))
    return Loose(_mesh(found)) if found else None


def enable(tensor: Any, mesh: Sharding, cut: Cut) -> Any:
    """One shard's piece of a tensor."""
    return _Enable.apply(tensor, mesh.replicated(), cut)


def disable(tensor: Any, mesh: Sharding, cut: Cut) -> Any:
    """The whole tensor of which this is one shard's piece; ValueError where it is none."""
    return _Disable.apply(tensor, mesh.replicated(), cut)


class _Enable(torch.autograd.Function):
    """To the piece; the gradients of all pieces, summed where they are of one part, to the whole."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Sharding, cut: Cut) -> Any:
        ctx.of = mesh, cut
        return _piece(tensor, mesh, cut)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        mesh, cut = ctx.of
        rest = tuple(axis for axis in mesh.axis_names if not any(axis in axes for axes in cut))
        summed = collective("all_reduce", gradient, rest, gradient.shape, "sum") if rest else gradient
        return _joined(summed, mesh, cut), None, None


class _Disable(torch.autograd.Function):
    """To the whole; of its gradient each shard gets its piece, or its share of one that several have."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, mesh: Sharding, cut: Cut) -> Any:
        ctx.of = mesh, cut
        return _joined(tensor, mesh, cut)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        mesh, cut = ctx.of
        named = [axis for axes in cut for axis in axes]
        count = Loose(mesh).size([axis for axis in mesh.axis_names if axis not in named])
        return _piece(gradient / count if count > 1 else gradient, mesh, cut), None, None


def _piece(tensor: Any, mesh: Sharding, cut: Cut) -> XlaTensor:
    pieces.note_use(mesh)
    size = Loose(mesh).size
    shape = [length // size(axes) for length, axes in zip(tensor.shape, cut, strict=True)]
    return record_op("spmd.to_shard", Piece(mesh, cut), tensor, dense_meta(shape, tensor.dtype))


def _joined(tensor: Any, mesh: Sharding, cut: Cut) -> XlaTensor:
    """Records the region between the pieces behind a tensor and itself."""
    enter_thread()
    with LOCK:
        root = operand(tensor)
        found = sorted(pieces.behind(root), key=lambda node: node.serial)
        if found and _mesh(found) is not mesh:
            raise ValueError(
                f"spmd.disable_manual_sharding: the piece is of the mesh {_mesh(found)!r}, and is to be joined over "
                f"{mesh!r}"
            )
        size = Loose(mesh).size
        shape = [length * size(axes) for length, axes in zip(tensor.shape, cut, strict=True)]
        constants = _constants(root, found)
        given: list[Value] = [*constants, *found]
        nodes = between([root], given)
        known = {value_name(node): _all_of(node) for node in found}
        rules = Rules(mesh.axis_names, known)
        _refuse_difference(rules, root, cut)
        folds = [rules.drawn_over(node) for node in nodes if node.entry.lowering.draws(node.entry)]
        in_order = [tuple(axis for axis in mesh.axis_names if axis in over) for over in folds]
        whole = [Border(((),) * len(value.meta.shape)) for value in constants]
        ins = (*whole, *(Border(_of(node).cut) for node in found))
        lowering = Manual(Region.of([root], given), mesh, mesh.axis_names, ins, (Border(cut),), tuple(in_order))
        operands = [*constants, *(node.operands[0] for node in found)]
        meta = dense_meta(shape, tensor.dtype)
        entry = Entry.of(
            "spmd.from_shards", lowering, (meta,), tuple(value.meta for value in operands),
            numbers="".join(node.entry.numbers for node in nodes), statics=str(cut), sharding=mesh,
        )  # fmt: skip
        node = record_here(entry, operands, body_numbers(lowering.body), sys._getframe(1), graph_task())
        (made,) = results(node)
        return wrap(meta, Cell(made, meta))


def _constants(root: Value, found: list[Node]) -> list[Value]:
    """What is read beside the pieces and has none behind it."""
    every = between([root], found)
    values = {value_name(v): v for node in every for v in node.operands} | {value_name(root): root}
    none = dict(zip(values, pieces.without(list(values.values())), strict=True))
    inside = {node for node in every if not none.get(value_name(_first(node)), True)}
    read = {value_name(v): v for node in inside for v in node.operands if none[value_name(v)]}
    if none[value_name(root)]:
        read[value_name(root)] = root
    return [value for name, value in read.items() if not _is_of_shard(value)]


def _first(node: Node) -> Value:
    return results(node)[0]


def _is_of_shard(value: Value) -> bool:
    """Whether a value without a piece behind it is a shard's all the same: a draw, its place."""
    return any(
        node.entry.name == "spmd.axis_index" or node.entry.lowering.draws(node.entry) for node in between([value], ())
    )


def _of(node: Node) -> Piece:
    lowering = node.entry.lowering
    assert isinstance(lowering, Piece)
    return lowering


def _mesh(found: list[Node]) -> Sharding:
    meshes = {_of(node).mesh: node for node in found}
    if len(meshes) > 1:
        lines = " and ".join(f"{node_line(node)}" for node in meshes.values())
        raise ValueError(f"spmd.enable_manual_sharding: pieces of two meshes meet, made at {lines}")
    return next(iter(meshes))


def _all_of(node: Node) -> Varies:
    over = frozenset(axis for axes in _of(node).cut for axis in axes)
    return Varies(frozenset(_of(node).mesh.axis_names), over)


def _refuse_difference(rules: Rules, root: Value, cut: Cut) -> None:
    named = frozenset(axis for axes in cut for axis in axes)
    differs = sorted(rules.of(root).differs - named)
    if differs:
        raise ValueError(
            f"spmd.disable_manual_sharding: the spec says that the shards along {', '.join(map(repr, differs))} have "
            "the same, but they may differ; name the axis in the spec, or reduce it first with spmd.all_reduce"
        )
