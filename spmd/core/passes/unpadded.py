"""Data that is held padded: between two runs a tensor holds an unpadded view of it. What pads is a package's."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax

from ..graph.graph import UNPADDED, DeviceData, Node, Value, origin
from ..graph.meta import Meta
from ..graph.op import Arrays, Layouts, Lowering, OpSpec
from ..sharding.constrain import cut

# The ops whose results may be kept with padding: a cache extended by a token, or with its rows reordered by a search.
KEPT = ("aten.cat", "aten.index_select")


@dataclass(frozen=True, slots=True)
class Unpad(Lowering):
    """Removes the operand's padding from these dims; is_marked: the user has marked them, or dims they come from."""

    dims: tuple[int, ...]
    is_marked: bool

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (cut(operands[0], op.metas[0].shape),)


def unpadded(device_data: DeviceData, value: Value) -> DeviceData | Node:
    """Returns a result as the user sees it: padded data through an op that unpads it, at the place of its maker."""
    padded, shape = device_data.meta.shape, value.meta.shape
    if padded == shape:
        return device_data
    node = origin(value)
    assert node is not None, "results are computed by ops"
    dims = [dim for dim, size in enumerate(shape) if size != padded[dim]]
    result = unpadded_view(device_data, value.meta, dims, is_marked=node.op.name not in KEPT)
    result.code, result.instruction, result.serial = node.code, node.instruction, node.serial
    return result


def unpadded_view(device_data: DeviceData, meta: Meta, dims: Sequence[int], *, is_marked: bool) -> Node:
    """Returns the view of padded data without the padding of these dims."""
    lowering = Unpad(tuple(dims), is_marked)
    statics = f"{list(meta.shape)}{', marked' if is_marked else ''}"
    return Node(OpSpec.of(UNPADDED, lowering, (meta,), (device_data.meta,), statics=statics), [device_data])
