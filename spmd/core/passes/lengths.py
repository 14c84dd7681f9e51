"""Dynamic dims, as the length of a cache that a model fills token by token: one program for all lengths.

Where programs of one sync differ in the length of a slice from 0 of a buffer, and in the ops that follow from it, the
slice is replaced by the full buffer and its length is an operand. From there the padding spreads from op to op until it
is gone, as it is after an attention; each op on its way has a rule (`ops.padding_*`) for computing the same as without
it. Where an op has no rule, or a result is kept at its own length, the graph stays as it was recorded, and the compile
log says why. A cache that `torch.cat` extends keeps its padding, which doubles, between the runs, and its memory.
"""

import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..base import observation
from ..base.tables import Bounded
from ..graph.graph import UNPADDED, DeviceData, Graph, Node, TupleElement, Value, is_unpadded, origin, value_name
from ..graph.meta import Meta, padded_meta
from ..graph.op import PADDED, Arrays, Layouts, Lowering, OpSpec, Padded
from ..graph.source import node_line
from ..ops.padding import FullBuffer, Joined, NoRule, Pads, is_full_buffer, key_of
from ..ops.padding_shapes import capacity_of
from ..sharding.constrain import cut
from .dynamic_places import RESULT, add, dims_of

# The op that pads data on the device; `pad` adds it.
LENGTHEN = "spmd.pad"
# The ops whose results may be kept with padding: a cache extended by a token, or with its rows reordered by a search.
_KEPT = ("aten.cat", "aten.index_select")
# The padded op, by the op and the padded dims of its operands.
_padded: Bounded[tuple[OpSpec, tuple[Any, ...], tuple[Any, ...]], Padded] = Bounded(4096)


class Refused(NamedTuple):
    """The reason why a graph is not padded: the op that has no rule for it, and the error of the rules."""

    node: Node
    why: str

    def __str__(self) -> str:
        return f"{self.node.op.name} {self.why} at {node_line(self.node)}"


class Sources(NamedTuple):
    """The origins of padding: ops whose result, and data whose shape, changes in length from run to run, each with its
    dynamic dims. host_computed: ops whose padded results the host would compute. capacities: of the dims that the user
    has marked, by their lengths."""

    nodes: Mapping[Node, Sequence[int]]
    inputs: Mapping[DeviceData, Sequence[int]]
    host_computed: Mapping[Node, Sequence[int]] = types.MappingProxyType({})
    capacities: Mapping[int, int] = types.MappingProxyType({})

    @property
    def reads_padded_data(self) -> bool:
        """True if a graph that has no program yet is padded all the same: it reads padded data."""
        return any(node.op.name == UNPADDED for node in self.nodes)


def learn(sources: Sources, graph: Graph) -> None:
    """Adds these dims to the known dynamic dims."""
    for node, dims in sources.nodes.items():
        add(node, RESULT, dims)
    for node in graph.nodes:
        for index, operand in enumerate(node.operands):
            if operand in sources.inputs:
                add(node, index, sources.inputs[operand])  # type: ignore[index]  # these are data


def sources_of(graph: Graph) -> Sources | None:
    """Returns the known dynamic dims of a graph's ops and data; None if there are none."""
    nodes: dict[Node, Sequence[int]] = {}
    inputs: dict[DeviceData, Sequence[int]] = {}
    capacities: dict[int, int] = {}
    for node in graph.nodes:
        lowering = node.op.lowering
        if isinstance(lowering, Unpad):
            nodes[node] = lowering.dims
            if lowering.is_marked:
                capacities |= {node.meta.shape[dim]: node.op.operands[0].shape[dim] for dim in lowering.dims}
        if has_dynamic_dims(node):
            nodes[node] = dims_of(node, RESULT) or ()
        for index, operand in enumerate(node.operands):
            if type(operand) is DeviceData:
                dims = dims_of(node, index)
                if dims is not None and may_pad(operand, dims, graph):
                    inputs[operand] = dims
    return Sources(nodes, inputs, capacities=capacities) if nodes or inputs else None


def begins_at(node: Node, lengths: Collection[int]) -> tuple[int, ...]:
    """Returns the dims of an op's result that may be dynamic as the dims of these lengths are: of a range, of repeated
    elements, of a number in every place, of the gradient of some elements."""
    name, shape = node.op.name, node.meta.shape
    dims: Sequence[int] = ()
    if name in ("aten.slice_backward", "aten.select_backward"):
        dims = taken_back(node)
    elif name == "aten.expand":
        given = node.operands[0].meta.shape
        more = len(shape) - len(given)
        dims = [dim for dim, size in enumerate(shape) if size > 1 and (dim < more or given[dim - more] != size)]
    elif name.startswith("aten.arange") or node.op.constant is not None:
        dims = [dim for dim, size in enumerate(shape) if size > 1]
    return tuple(dim for dim in dims if shape[dim] in lengths)


def taken_back(node: Node) -> list[int]:
    """Returns the dims in which the result of the gradient of a slice or select is longer than its operand."""
    given, result = node.operands[0].meta.shape, node.meta.shape
    if len(given) == len(result):
        return [dim for dim, size in enumerate(result) if size != given[dim]]
    return [next(dim for dim in range(len(result)) if (*result[:dim], *result[dim + 1 :]) == given)]


def may_pad(device_data: DeviceData, dims: Sequence[int], graph: Graph) -> bool:
    """True if data may be padded: host data (a list that gets longer, a batch), or a cache extended by a token."""
    shape = device_data.meta.shape
    if len(shape) <= max(dims) or any(shape[dim] < 2 for dim in dims):
        return False
    if device_data.host is not None:
        return True
    return all(node.op.name == "aten.cat" for node in graph.nodes if device_data in node.operands)


def has_dynamic_dims(node: Node) -> bool:
    """True if an op's result is known to have dynamic dims; a slice from elsewhere in the same line has none."""
    dims = dims_of(node, RESULT)
    dynamic_start = node.op.dynamic_start
    return dims is not None and _is_long(node, dims) and (dynamic_start is None or dynamic_start[1] == 0)


def _is_long(node: Node, dims: Sequence[int]) -> bool:
    """True if none of these dims of the result has size 1, which looks like a repeated dim."""
    return len(node.meta.shape) > max(dims) and all(node.meta.shape[dim] > 1 for dim in dims)


def changed_result_dims(old: OpSpec, node: Node) -> tuple[int, ...] | None:
    """Returns the dims in which an op's result differs from that of the same op of another run, on equal operands."""
    if len(old.metas) > 1 or old.operands != node.op.operands:
        return None
    dims = changed_dims(old.metas[0], node.meta)
    return dims if dims and _is_long(node, dims) else None


def changed_dims(before: Meta, now: Meta) -> tuple[int, ...]:
    """Returns the dims in which two metas of one dtype and rank differ; none where they differ otherwise."""
    if before.dtype is not now.dtype or len(before.shape) != len(now.shape):
        return ()
    return tuple(dim for dim, size in enumerate(now.shape) if size != before.shape[dim])


def pad(graph: Graph, sources: Sources) -> tuple[Graph, set[Node]] | Refused:
    """Returns the graph with its dynamic dims padded, and the ops that were replaced.

    Where dims that the user has marked meet others of their lengths, these are taken for equal to them.
    """
    found = _pad(graph, sources, Spread(sources))
    return _pad(graph, sources, AsMarked(sources)) if isinstance(found, Refused) and sources.capacities else found


def _pad(graph: Graph, sources: Sources, spread: "Spread") -> tuple[Graph, set[Node]] | Refused:
    gradient = next((node for node in graph.nodes if node.sequence >= 0), None)
    if gradient is not None and not all(device_data.host is not None for device_data in sources.inputs):
        return Refused(gradient, "is a gradient")
    if gradient is not None and any(
        is_full_buffer(size) for node in sources.nodes for size in spread.begun(node).values()
    ):
        return Refused(gradient, "is a gradient")
    for node in graph.nodes:
        try:
            spread.take(node)
        except NoRule as why:
            return Refused(node, str(why))
    for root in graph.roots:
        pads, maker = spread.pads_of(root), origin(root)
        if maker is None or maker in sources.host_computed or not pads:
            continue
        may_keep = maker.op.name in _KEPT or sources.capacities
        if not may_keep or any(is_full_buffer(size) or type(size) is Joined for size in pads.values()):
            return Refused(maker, "makes a result that is kept at its own length")
    roots = [spread.now(root) for root in graph.roots]
    inputs = [spread.data.get(device_data, device_data) for device_data in graph.inputs]
    padded_roots = [index for index, root in enumerate(graph.roots) if spread.pads_of(root)]
    return in_place(
        dataclasses.replace(graph, nodes=spread.nodes, inputs=inputs, roots=roots), padded_roots
    ), spread.changed


def in_place(graph: Graph, padded_roots: Sequence[int]) -> Graph:
    """Returns the graph with each padded cache, by its place in the roots, sharded as before.

    It stays in the same memory where that has room for the new token and the old value is in no tensor.
    """
    donated, onto, pinned = list(graph.donated), list(graph.onto), list(graph.pinned)
    for place in padded_roots:
        root = graph.roots[place]
        before = root.operands[0] if type(root) is Node and root.op.name == "aten.cat" else None
        if not is_unpadded(before):
            continue
        device_data = before.operands[0]
        assert type(device_data) is DeviceData, "an unpadded view of data"
        index = graph.inputs.index(device_data)
        shardings = graph.shardings[index]
        pinned[place] = pinned[place] or shardings
        if device_data in graph.free and root.meta.struct == device_data.meta.struct and pinned[place] is shardings:
            donated[index], onto[index] = True, place
    return dataclasses.replace(graph, donated=tuple(donated), onto=onto, pinned=pinned)


class Spread:
    """Rebuilds the ops of a graph one by one, with the padded dims of each value."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.pads: dict[object, Pads] = {}
        self.nodes: list[Node] = []
        self.made: dict[Any, Value] = {}
        self.data: dict[DeviceData, DeviceData] = {}
        self.changed: set[Node] = set()
        self.moved: Collection[OpSpec] = ()  # ops whose start is an operand

    def capacity(self, length: int) -> int:
        """Returns the capacity of a dim of this length."""
        return self.sources.capacities.get(length) or capacity_of(length)

    def begun(self, node: Node) -> Pads:
        """Returns the capacities of the dims of an op's result at which padding begins; of a slice the full buffer."""
        dims, shape = self.sources.nodes.get(node, ()), node.meta.shape
        if node.op.name != "aten.slice.Tensor":
            return {dim: self.capacity(shape[dim]) for dim in dims}
        given = node.operands[0].meta.shape
        return {dim: self.sources.capacities.get(shape[dim]) or FullBuffer(given[dim]) for dim in dims}

    def now(self, value: Value) -> Value:
        """Returns the new graph's value for one of the old graph."""
        if type(value) is TupleElement:
            result = self.made[value.node]
            assert type(result) is Node, "the new value of an op is an op"
            return TupleElement(result, value.index)
        if type(value) is DeviceData:
            return self.made.get(value, value)
        return self.made[value]

    def pads_of(self, value: Value) -> Pads:
        """Returns the padded dims of a value of the old graph."""
        return self.pads.get(value_name(value), {})

    def take(self, node: Node) -> None:
        """Adds an op to the new graph."""
        for operand in node.operands:
            self.lengthen(operand, node)
        operands = [self.now(operand) for operand in node.operands]
        if node in self.sources.host_computed:
            self.pads[node] = {dim: self.capacity(node.meta.shape[dim]) for dim in self.sources.host_computed[node]}
            self.changed.add(node)
            self.made[node] = self.new(node.op, operands, node.numbers, node)
            return
        pads = [self.pads_of(operand) for operand in node.operands]
        is_reachable = any(pads)
        op, numbers = _alone(node), node.numbers
        begins = {} if is_reachable else self.begun(node)
        try:
            result = found(op, pads, begins) if begins or is_reachable else None
        except NoRule:
            if not begins:
                raise
            result = None  # another op of the same name in the same line
        if result is not None:
            op, numbers = result.op, (*result.numbers, *numbers)
            self.changed.add(node)
            for index, pad in enumerate(result.pads):
                if pad:
                    self.note((node, index) if len(result.pads) > 1 else node, node.op.metas[index], pad)
        elif node.op.dynamic_start is not None and node.op.dynamic_start[0] in self.moved:
            op, position = node.op.dynamic_start
            numbers = (position, *numbers)
        self.made[node] = self.new(op, operands, numbers, node)

    def note(self, name: object, meta: Meta, pads: Pads) -> None:
        """Notes the padded dims of a value of the old graph, by its name."""
        self.pads[name] = pads

    def new(self, op: OpSpec, operands: Sequence[Value], numbers: Sequence[float | int], like: Node) -> Node:
        result = Node(op, operands, numbers, like.code, like.instruction, like.sequence)
        result.serial = like.serial
        self.nodes.append(result)
        return result

    def lengthen(self, device_data: Value, reader: Node) -> None:
        """Pads data with dynamic dims: on the host, or in the program."""
        if type(device_data) is not DeviceData or device_data not in self.sources.inputs or device_data in self.made:
            return
        pads = {dim: self.capacity(device_data.meta.shape[dim]) for dim in self.sources.inputs[device_data]}
        meta = padded_meta(device_data.meta, pads)
        if device_data.host is None:
            self.made[device_data] = self.new(_pad_op(device_data.meta, meta), [device_data], (), reader)
        else:
            self.made[device_data] = self.data[device_data] = padded_on_host(device_data, meta)
        self.pads[device_data] = pads


def padded_on_host(device_data: DeviceData, meta: Meta) -> DeviceData:
    """Returns host data with zeros at the end of its dims."""
    assert device_data.host is not None, "host data"
    room = [(0, new - old) for new, old in zip(meta.shape, device_data.meta.shape, strict=True)]
    result = DeviceData(
        meta, host=np.pad(device_data.host, room), sharding=device_data.sharding, source=device_data.source
    )
    return observation.derived(result, device_data, lambda now: padded_on_host(now, meta))


def padded_on_device(device_data: DeviceData, meta: Meta) -> Node:
    """Returns the op that pads data to this shape on the device."""
    return Node(_pad_op(device_data.meta, meta), [device_data])


def _pad_op(before: Meta, meta: Meta) -> OpSpec:
    return OpSpec.of(LENGTHEN, _Pad(), (meta,), (before,))


class AsMarked(Spread):
    """Takes dims of ranges, masks and other new values for dynamic where they are as long as a padded dim is."""

    def __init__(self, sources: Sources):
        super().__init__(sources)
        self.capacities = dict(sources.capacities)

    def note(self, name: object, meta: Meta, pads: Pads) -> None:
        super().note(name, meta, pads)
        for dim, size in pads.items():
            if not is_full_buffer(size):
                self.capacities.setdefault(meta.shape[dim], size)

    def begun(self, node: Node) -> Pads:
        if node in self.sources.nodes:
            return super().begun(node)
        shape = node.meta.shape
        if node.op.name == "aten.slice.Tensor":  # of a table of positions
            given = node.operands[0].meta.shape
            dims = [dim for dim, size in enumerate(shape) if size in self.capacities and size < given[dim]]
        else:
            dims = list(begins_at(node, self.capacities))
        return {dim: self.capacities[shape[dim]] for dim in dims}


@dataclass(frozen=True, slots=True)
class _Pad(Lowering):
    """Pads the operand at the end of its dims."""

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        room = [(0, new - old) for new, old in zip(op.metas[0].shape, op.operands[0].shape, strict=True)]
        return (jnp.pad(operands[0], room),)


# --- padded data: between two runs a tensor holds an unpadded view of it ----------------------------------------------


def unpadded(device_data: DeviceData, value: Value) -> DeviceData | Node:
    """Returns a result as the user sees it: padded data through an op that unpads it, at the place of its maker."""
    if device_data.meta.shape == value.meta.shape:
        return device_data
    node = origin(value)
    assert node is not None, "results are computed by ops"
    dims = changed_dims(device_data.meta, value.meta)
    result = unpadded_view(device_data, value.meta, dims, is_marked=node.op.name not in _KEPT)
    result.code, result.instruction, result.serial = node.code, node.instruction, node.serial
    return result


def unpadded_view(device_data: DeviceData, meta: Meta, dims: Sequence[int], *, is_marked: bool) -> Node:
    """Returns the view of padded data without the padding of these dims."""
    lowering = Unpad(tuple(dims), is_marked)
    statics = f"{list(meta.shape)}{', marked' if is_marked else ''}"
    return Node(OpSpec.of(UNPADDED, lowering, (meta,), (device_data.meta,), statics=statics), [device_data])


@dataclass(frozen=True, slots=True)
class Unpad(Lowering):
    """Removes the operand's padding from these dims; is_marked: the user has marked them, or dims they come from."""

    dims: tuple[int, ...]
    is_marked: bool

    def lower(self, op: OpSpec, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (cut(operands[0], op.metas[0].shape),)

    def padded(self, op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
        (padded,) = op.operands
        op_spec = OpSpec.of(UNPADDED, self, (padded,), (padded,), statics=PADDED)
        return Padded(op_spec, ({dim: padded.shape[dim] for dim in self.dims},), ())


def _alone(node: Node) -> OpSpec:
    """Returns the op; an op that fills its result, without the shape of its operand (`full_like`)."""
    op = node.op
    if node.operands or not op.operands or op.constant is None:
        return op
    numbers, constant = op.numbers, op.constant
    return OpSpec.of(op.name, op.lowering, op.metas, (), numbers=numbers, statics=PADDED, constant=constant)


def found(op: OpSpec, pads: Sequence[Pads], begins: Pads) -> Padded:
    """Returns the op on operands with this padding, cached; raises NoRule."""
    key = (op, tuple(map(key_of, pads)), key_of(begins))
    result = _padded.get(key)
    return _padded.keep(key, op.lowering.padded(op, pads, begins)) if result is None else result
