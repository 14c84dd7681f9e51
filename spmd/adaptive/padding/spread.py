"""Dynamic dims, as the length of a cache that a model fills token by token: one program for all
lengths.

Where programs of one sync differ in the length of a slice from 0 of a buffer, and in the ops that
follow from it, the slice is replaced by the full buffer and its length is an operand. From there
the padding spreads from op to op until it is gone, as it is after an attention; each op on its way
has a rule (`case`) for computing the same as without it. Where an op has no rule, or a result is
kept at its own length, the graph stays as it was recorded, and the compile log says why. A cache
that `torch.cat` extends keeps its padding, which doubles, between the runs, and its memory.
"""

import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...core import DeviceData, Meta, observation
from ...core.extend import (
    Arrays,
    Bounded,
    Graph,
    Layouts,
    Lowering,
    Node,
    OpSpec,
    Rewrite,
    Value,
    dynamic,
    op_specs,
    user_lines,
    walks,
)
from .case import FullBuffer, Joined, NoRule, Pads, key_of, padded_meta
from .on_padded import Padded, on_padded
from .shapes import capacity_of

# The op that pads data on the device; `pad` adds it.
LENGTHEN = "spmd.pad"
# The padded op, by the op and the padded dims of its operands.
_padded: Bounded[tuple[OpSpec, tuple[Any, ...], tuple[Any, ...]], Padded] = Bounded(4096)


def _refusal(node: Node, why: object) -> str:
    """Returns the reason why a graph is not padded: the op that has no rule for it, and the error
    of the rules."""
    return f"{node.op.name} {why} at {user_lines.node_line(node)}"


class Sources(NamedTuple):
    """The origins of padding: ops whose result, and data whose shape, changes in length from run to
    run, each with its dynamic dims. host_computed: ops whose padded results the host would compute.
    capacities: of the dims that the user has marked, by their lengths."""

    nodes: Mapping[Node, Sequence[int]]
    inputs: Mapping[DeviceData, Sequence[int]]
    host_computed: Mapping[Node, Sequence[int]] = types.MappingProxyType({})
    capacities: Mapping[int, int] = types.MappingProxyType({})


def _begins_at(node: Node, lengths: Collection[int]) -> tuple[int, ...]:
    """Returns the dims of an op's result that may be dynamic as the dims of these lengths are: of a
    range, of repeated elements, of a number in every place, of the gradient of some elements."""
    name, shape = node.op.name, node.meta.shape
    dims: Sequence[int] = ()
    if name in ("aten.slice_backward", "aten.select_backward"):
        dims = _taken_back(node)
    elif name == "aten.expand":
        source_shape = node.operands[0].meta.shape
        more = len(shape) - len(source_shape)
        dims = [
            dim
            for dim, size in enumerate(shape)
            if size > 1 and (dim < more or source_shape[dim - more] != size)
        ]
    elif name.startswith("aten.arange") or node.op.constant is not None:
        dims = [dim for dim, size in enumerate(shape) if size > 1]
    return tuple(dim for dim in dims if shape[dim] in lengths)


def _taken_back(node: Node) -> list[int]:
    """Returns the dims in which the result of the gradient of a slice or select is longer than its
    operand."""
    source_shape, result = node.operands[0].meta.shape, node.meta.shape
    if len(source_shape) == len(result):
        return [dim for dim, size in enumerate(result) if size != source_shape[dim]]
    return [
        next(
            dim for dim in range(len(result)) if (*result[:dim], *result[dim + 1 :]) == source_shape
        )
    ]


def pad(graph: Graph, sources: Sources) -> tuple[Graph, set[Node]] | str:
    """Returns the graph with its dynamic dims padded, and the ops that were replaced; the reason
    where it cannot be.

    Where dims that the user has marked meet others of their lengths, these are taken for equal to
    them.
    """
    padded = _pad(graph, sources, {})
    return (
        _pad(graph, sources, sources.capacities)
        if isinstance(padded, str) and sources.capacities
        else padded
    )


def _pad(
    graph: Graph, sources: Sources, capacities: Mapping[int, int]
) -> tuple[Graph, set[Node]] | str:
    spread = _Spread(graph, sources, capacities)
    gradient = next((node for node in graph.nodes if node.sequence >= 0), None)
    sizes = (size for node in sources.nodes for size in spread.begun(node).values())
    is_of_device = any(device_data.host is None for device_data in sources.inputs)
    if gradient is not None and (is_of_device or any(type(size) is FullBuffer for size in sizes)):
        return _refusal(gradient, "is a gradient")
    for node in graph.nodes:
        try:
            spread.take(node)
        except NoRule as why:
            return _refusal(node, why)
    for root in graph.roots:
        pads, maker = spread.pads_of(root), walks.origin(root)
        if maker is None or maker in sources.host_computed or not pads:
            continue
        may_keep = maker.op.name in dynamic.KEPT or sources.capacities
        if not may_keep or any(
            type(size) is FullBuffer or type(size) is Joined for size in pads.values()
        ):
            return _refusal(maker, "makes a result that is kept at its own length")
    inputs = [spread.data.get(device_data, device_data) for device_data in graph.inputs]
    padded_roots = [index for index, root in enumerate(graph.roots) if spread.pads_of(root)]
    return in_place(
        dataclasses.replace(spread.graph(), inputs=inputs), padded_roots
    ), spread.changed


def in_place(graph: Graph, padded_roots: Sequence[int]) -> Graph:
    """Returns the graph with each padded cache, by its place in the roots, sharded as before.

    It stays in the same memory where that has room for the new token and the old value is in no
    tensor.
    """
    donated, onto, pinned = list(graph.donated), list(graph.onto), list(graph.pinned)
    for at_root in padded_roots:
        root = graph.roots[at_root]
        cache = root.operands[0] if type(root) is Node and root.op.name == "aten.cat" else None
        if not walks.is_unpadded(cache):
            continue
        device_data = cache.operands[0]
        assert type(device_data) is DeviceData, "an unpadded view of data"
        index = graph.inputs.index(device_data)
        shardings = graph.shardings[index]
        pinned[at_root] = pinned[at_root] or shardings
        if (
            device_data in graph.free
            and root.meta.struct == device_data.meta.struct
            and pinned[at_root] is shardings
        ):
            donated[index], onto[index] = True, at_root
    return dataclasses.replace(graph, donated=tuple(donated), onto=onto, pinned=pinned)


class _Spread(Rewrite):
    """A graph while it is padded, with the padded dims of each value."""

    def __init__(self, graph: Graph, sources: Sources, capacities: Mapping[int, int]):
        """capacities: of lengths that ranges, masks and other new values have, too, as padded dims
        have them."""
        super().__init__(graph, is_recorded=True)
        self.origins = sources
        self.capacities = dict(capacities)
        self.pads: dict[object, Pads] = {}
        self.data: dict[DeviceData, DeviceData] = {}
        self.changed: set[Node] = set()

    def capacity(self, length: int) -> int:
        """Returns the capacity of a dim of this length."""
        return self.origins.capacities.get(length) or capacity_of(length)

    def begun(self, node: Node) -> Pads:
        """Returns the capacities of the dims of an op's result at which padding begins; of a slice
        the full buffer."""
        dims, shape = self.origins.nodes.get(node), node.meta.shape
        full = node.operands[0].meta.shape if node.op.name == "aten.slice.Tensor" else None
        if dims is None and self.capacities:
            if full is None:
                dims = _begins_at(node, self.capacities)
            else:  # of a table of positions
                dims = [
                    dim
                    for dim, size in enumerate(shape)
                    if size in self.capacities and size < full[dim]
                ]
            return {dim: self.capacities[shape[dim]] for dim in dims}
        if full is None:
            return {dim: self.capacity(shape[dim]) for dim in dims or ()}
        return {
            dim: self.origins.capacities.get(shape[dim]) or FullBuffer(full[dim])
            for dim in dims or ()
        }

    def pads_of(self, value: Value) -> Pads:
        """Returns the padded dims of a value of the old graph."""
        return self.pads.get(walks.value_name(value), {})

    def take(self, node: Node) -> None:
        """Adds an op to the new graph."""
        for operand in node.operands:
            self.lengthen(operand, node)
        pads = list(map(self.pads_of, node.operands))
        begins = {} if any(pads) else self.begun(node)
        op, numbers, padded = _alone(node), node.numbers, None
        if node in self.origins.host_computed:
            dims = self.origins.host_computed[node]
            padded = Padded(
                node.op, ({dim: self.capacity(node.meta.shape[dim]) for dim in dims},), ()
            )
        elif begins or any(pads):
            try:
                padded = padded_op(op, pads, begins)
            except NoRule:
                if not begins:
                    raise
                # another op of the same name in the same line
        if padded is not None:
            op, numbers = padded.op, (*padded.numbers, *numbers)
            self.changed.add(node)
            for value, pad in zip(walks.results(node), padded.pads, strict=True):
                self.pads[walks.value_name(value)] = pad
                for dim, size in pad.items() if self.capacities else ():
                    if type(size) is not FullBuffer:
                        self.capacities.setdefault(value.meta.shape[dim], size)
        self.put(node, op, node.operands, numbers)

    def lengthen(self, device_data: Value, reader: Node) -> None:
        """Pads data with dynamic dims: on the host, or in the program."""
        if (
            type(device_data) is not DeviceData
            or device_data not in self.origins.inputs
            or device_data in self.new_values
        ):
            return
        pads = {
            dim: self.capacity(device_data.meta.shape[dim])
            for dim in self.origins.inputs[device_data]
        }
        meta = padded_meta(device_data.meta, pads)
        if device_data.host is None:
            self.new_values[device_data] = self.add(
                pad_op(device_data.meta, meta), [device_data], reader
            )
        else:
            self.new_values[device_data] = self.data[device_data] = padded_on_host(
                device_data, meta
            )
        self.pads[device_data] = pads


def padded_on_host(device_data: DeviceData, meta: Meta) -> DeviceData:
    """Returns host data with zeros at the end of its dims."""
    assert device_data.host is not None, "host data"
    room = [(0, new - old) for new, old in zip(meta.shape, device_data.meta.shape, strict=True)]
    result = DeviceData(
        meta,
        host=np.pad(device_data.host, room),
        sharding=device_data.sharding,
        source=device_data.source,
    )
    return observation.derived(result, device_data, lambda data: padded_on_host(data, meta))


def pad_op(source: Meta, meta: Meta) -> OpSpec:
    """Returns the op that pads data to this shape on the device."""
    return OpSpec.of(LENGTHEN, _Pad(), (meta,), (source,))


@dataclass(frozen=True, slots=True)
class _Pad(Lowering):
    """Pads the operand at the end of its dims."""

    def lower(
        self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts
    ) -> tuple[jax.Array, ...]:
        room = [
            (0, new - old) for new, old in zip(op.metas[0].shape, op.operands[0].shape, strict=True)
        ]
        return (jnp.pad(operands[0], room),)


def _alone(node: Node) -> OpSpec:
    """Returns the op; an op that fills its result, without the shape of its operand
    (`full_like`)."""
    op = node.op
    if node.operands or not op.operands or op.constant is None:
        return op
    numbers, constant = op.numbers, op.constant
    return OpSpec.of(
        op.name,
        op.lowering,
        op.metas,
        (),
        numbers=numbers,
        statics=op_specs.PADDED,
        constant=constant,
    )


def padded_op(op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
    """Returns the op on operands with this padding, cached; raises NoRule."""
    key = (op, tuple(map(key_of, pads)), key_of(begins))
    result = _padded.get(key)
    return _padded.keep(key, on_padded(op.lowering, op, pads, begins)) if result is None else result
