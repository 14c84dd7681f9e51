"""Sharding constraints out of place: new values with a given or a common sharding; a tensor's
present sharding."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ..graph.graph import DeviceData, Value, origin
from ..graph.meta import dense_meta
from ..graph.op import Arrays, Identity, Layouts, OpSpec
from ..run.pjrt import devices
from ..sharding.partitioner import shard_as
from ..sharding.value import Sharding
from .annotations import mark_op
from .reads import record_op
from .storage import LOCK
from .tensor import XlaTensor
from .views import read


def with_sharding(tensor: XlaTensor, sharding: Sharding) -> XlaTensor:
    """A new tensor of the same value with this sharding; the given tensor keeps its own."""
    meta = dense_meta(tensor.shape, tensor.dtype)
    # An empty array has no shards, and XLA refuses to cut it.
    sharding = sharding if meta.numel else sharding.replicated()
    with LOCK:
        (result,) = record_op(mark_op(meta, sharding), [tensor])
        result._storage.sharding = sharding
    return result


def with_one_sharding(tensors: Sequence[XlaTensor]) -> list[XlaTensor]:
    """New tensors of the same values, with one sharding for each pair across the two halves of the
    list."""
    metas = tuple(dense_meta(tensor.shape, tensor.dtype) for tensor in tensors)
    return record_op(OpSpec.of("spmd.shard_as", _ShardAsOp(), metas, metas), tensors)


@dataclass(frozen=True, slots=True)
class _ShardAsOp(Identity):
    """The operands, with one sharding, the partitioner's choice, for each pair across their two
    halves."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        # One op for all pairs: the partitioner looks at them together.
        half = len(operands) // 2
        pairs = [shard_as(*pair) for pair in zip(operands[:half], operands[half:], strict=True)]
        return tuple(first for first, _ in pairs) + tuple(second for _, second in pairs)


def sharding_now(tensor: XlaTensor) -> Sharding | None:
    """A tensor's requested or actual sharding; for unannotated recorded values, replicated on their
    operands' mesh.

    None without a mesh: unannotated data on the first device joins any.
    """
    storage, view = tensor._storage, tensor._view
    requested = storage.sharding if view is None else view.sharding
    if requested is not None:
        return requested
    # A view's value may be recorded by this read.
    with LOCK:
        value = storage.value if view is None else read(tensor)
        if type(value) is DeviceData:
            # Unannotated data on the first device joins the mesh of whatever reads it.
            return None if value.sharding is devices.default_sharding() else value.sharding
        return _mesh_behind(value)


def _mesh_behind(value: Value) -> Sharding | None:
    """The replicated sharding of the nearest mesh of several devices behind a recorded value."""
    todo, visited = [value], set()
    while todo:
        # Level by level, so that the nearest mesh counts.
        todo, level = [], todo
        for operand in level:
            node = origin(operand)
            sharding = (
                operand.sharding
                if type(operand) is DeviceData
                else None
                if node is None
                else node.op.sharding
            )
            if sharding is not None and len(sharding.device_ids) > 1:
                return sharding.replicated()
            if node is not None and node not in visited:
                visited.add(node)
                todo += node.operands
    return None
