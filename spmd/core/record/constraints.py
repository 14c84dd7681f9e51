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
from . import body
from .annotations import mark_op
from .reads import record_op
from .storage import LOCK
from .tensor import XlaTensor
from .views import read


def is_data(tensor: XlaTensor) -> bool:
    """True if a mark of a tensor is no op: it is no view, and has no recorded value."""
    return tensor._view is None and body.is_data(tensor._storage.value)


def with_sharding(tensor: XlaTensor, sharding: Sharding) -> XlaTensor:
    """A new tensor of the same value with this sharding; the given tensor keeps its own."""
    meta = dense_meta(tensor.shape, tensor.dtype)
    # An empty array has no shards, and XLA refuses to cut it.
    sharding = sharding if meta.numel else sharding.replicated()
    with LOCK:
        (result,) = record_op(mark_op(meta, sharding), [tensor])
        result._storage.sharding = sharding
    return result


def with_paired_shardings(tensors: Sequence[XlaTensor]) -> list[XlaTensor]:
    """New tensors of the same values; tensor i of the first half and of the second half of the list
    get one sharding, the partitioner's choice."""
    metas = tuple(dense_meta(tensor.shape, tensor.dtype) for tensor in tensors)
    return record_op(OpSpec.of("spmd.shard_as", _ShardAsOp(), metas, metas), tensors)


@dataclass(frozen=True, slots=True)
class _ShardAsOp(Identity):
    """The operands; operand i of the first half and of the second half get one sharding, the
    partitioner's choice."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        # One op for all pairs: the partitioner looks at them together.
        half = len(operands) // 2
        pairs = [shard_as(*pair) for pair in zip(operands[:half], operands[half:], strict=True)]
        return tuple(first for first, _ in pairs) + tuple(second for _, second in pairs)


def effective_sharding(tensor: XlaTensor) -> Sharding | None:
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
        return _replicated_like_operands(value)


def _replicated_like_operands(value: Value) -> Sharding | None:
    """The replicated sharding on the mesh of a recorded value's nearest operands with several
    devices, or None."""
    next_level, visited = [value], set()
    while next_level:
        # Level by level, so that the nearest mesh counts.
        level, next_level = next_level, []
        for operand in level:
            node = origin(operand)  # None for device data alone
            sharding = operand.sharding if node is None else node.op.sharding  # type: ignore[union-attr]
            if sharding is not None and len(sharding.device_ids) > 1:
                return sharding.replicated()
            if node is not None and node not in visited:
                visited.add(node)
                next_level += node.operands
    return None
