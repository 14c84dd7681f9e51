"""Annotations out of place: a new value that lies so, and values that are to lie alike; where a value comes from."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ..ir.graph import Leaf, Value, origin
from ..ir.meta import Meta, dense_meta
from ..ir.op import Arrays, Entry, Layouts, Lowering
from ..pjrt import devices
from ..sharding.partitioner import shard_alike
from ..sharding.value import Sharding
from .annotate import mark_entry
from .cell import LOCK, Cell
from .reads import operand
from .record import graph_task, record_here
from .tensor import XlaTensor, tensors_of, wrap
from .threads import enter_thread
from .views import read


def laid_out(tensor: XlaTensor, sharding: Sharding) -> XlaTensor:
    """A new tensor of the same value, which is to lie so; what it is made of keeps its own layout."""
    meta = dense_meta(tensor.shape, tensor.dtype)
    sharding = sharding if meta.numel else sharding.replicated()
    enter_thread()
    with LOCK:
        node = record_here(mark_entry(meta, sharding), (operand(tensor),), (), sys._getframe(1), graph_task())
        return wrap(meta, Cell(node, meta, sharding))


def laid_alike(tensors: Sequence[XlaTensor]) -> list[XlaTensor]:
    """New tensors of the same values: of each in the first half and its partner in the second, one layout."""
    metas = tuple(dense_meta(tensor.shape, tensor.dtype) for tensor in tensors)
    enter_thread()
    with LOCK:
        operands = [operand(tensor) for tensor in tensors]
        return tensors_of(record_here(_alike_entry(metas), operands, (), sys._getframe(1), graph_task()))


def _alike_entry(metas: tuple[Meta, ...]) -> Entry:
    return Entry.of("spmd.shard_as", _Alike(), metas, metas)


@dataclass(frozen=True, slots=True)
class _Alike(Lowering):
    """The operands; the partitioner lays each of the first half out as its partner in the second."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        half = len(operands) // 2
        pairs = [shard_alike(*pair) for pair in zip(operands[:half], operands[half:], strict=True)]
        return tuple(one for one, _ in pairs) + tuple(other for _, other in pairs)


def lies_now(tensor: XlaTensor) -> Sharding | None:
    """How a tensor lies, or is to lie; of a recorded value that nobody has annotated, whole on the mesh of what it is
    made of. None where that is no mesh: what lies unannotated on the first device joins any."""
    cell, view = tensor._cell, tensor._view
    own = cell.sharding if view is None else view.sharding
    if own is not None:
        return own
    with LOCK:
        value = cell.value if view is None else read(tensor)
        if type(value) is Leaf:
            return None if value.sharding is devices.default_sharding() else value.sharding
        return _mesh_behind(value)


def _mesh_behind(value: Value) -> Sharding | None:
    """The nearest mesh on which something lies that a recorded value is made of, all whole in it."""
    todo, seen = [value], set()
    while todo:
        todo, level = [], todo
        for one in level:
            node = origin(one)
            found = one.sharding if type(one) is Leaf else None if node is None else node.entry.sharding
            if found is not None and len(found.device_ids) > 1:
                return found.replicated()
            if node is not None and node not in seen:
                seen.add(node)
                todo += node.operands
    return None
