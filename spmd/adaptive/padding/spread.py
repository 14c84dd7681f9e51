"""Dynamic dims, as the length of a cache that a model fills token by token: one program for all
lengths.

Where programs of one sync differ in the length of a slice from 0 of a buffer, and in the ops that
follow from it, the slice is replaced by the full buffer and its length is an operand. From there
the padding spreads from op to op until it is gone, as it is after an attention; each op on its way
has a rule (`case`) for computing the same as without it. Where an op has no rule, or a result is
kept at its own length, the graph stays as it was recorded, and the compile log says why. A cache
that `torch.cat` extends keeps its padding, which doubles, between the runs, and its memory.
"""

import contextlib
import dataclasses
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ...core import DeviceData, Meta, observation
from ...core.extend import (
    KNOWN_MASK,
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
    lowerings,
    op_specs,
    user_lines,
    walks,
)
from .case import RULES, Case, FullBuffer, Joined, NoRule, Pads, Unpadded, key_of, padded_meta
from .on_padded import Padded, on_padded
from .shapes import capacity_of

aten = torch.ops.aten

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
    capacities: of the dims that the user has marked, or data has counted, by their lengths. begun:
    the padding of values that meet such dims."""

    nodes: Mapping[Node, Sequence[int]]
    inputs: Mapping[DeviceData, Sequence[int]]
    host_computed: Mapping[Node, Sequence[int]] = types.MappingProxyType({})
    capacities: Mapping[int, int] = types.MappingProxyType({})
    begun: "Mapping[Node | DeviceData, Pads]" = types.MappingProxyType({})


def _may_begin(source: Node | DeviceData, dim: int) -> bool:
    """True for host data, and for the result of a range, a number in every place, of repeated
    elements, a slice, or the gradient of an element: padding may follow its elements in a dim."""
    if isinstance(source, DeviceData):
        return source.host is not None and not source.is_state
    name, shape = source.op.name, source.meta.shape
    operand = source.operands[0].meta.shape if source.operands else ()
    behind = dim - len(shape)
    is_longer = -behind > len(operand) or operand[behind] != shape[dim]
    return (
        name.startswith("aten.arange")
        or source.op.constant is not None
        or (name == "aten.select_backward" and operand == (*shape[:dim], *shape[dim + 1 :]))
        or (name in ("aten.expand", "aten.slice.Tensor") and is_longer)
    )


# The lengths of host data, by the line that made it and its other dims.
_lengths: Bounded[tuple[Any, ...], set[int]] = Bounded(512)


def _changes(data: DeviceData) -> bool:
    """True for host data of another length in each step, as the boxes in an image."""
    if data.host is None or data.source is None or data.is_state or not data.meta.shape:
        return False
    key = data.source, data.meta.dtype, data.meta.shape[1:]
    lengths = {*(_lengths.get(key) or ()), data.meta.shape[0]}
    return len(_lengths.keep(key, lengths)) > 1


class _Begins(Exception):
    """Padding has to begin: the value, an op's result or host data, and its padded dims."""


# The padding that begins in values as they meet padded ones, by their places among a graph's ops
# and inputs; of graphs by the names of their ops and their wiring.
_begun: Bounded[tuple[Any, ...], dict[int, Pads]] = Bounded(512)


def pad(graph: Graph, sources: Sources) -> tuple[Graph, set[Node]] | str:
    """Returns the graph with its dynamic dims padded, and the ops that were replaced; the reason
    where it cannot be.

    Where dims that the user has marked, or data has counted, meet values without padding, it begins
    in these, too, and in host data whose length changes.
    """
    marked = {node.operands[0] for node in sources.nodes if node.op.name == walks.UNPADDED}
    changing = {
        data: {0: capacity_of(data.meta.shape[0])}
        for data in graph.inputs
        if sources.capacities and data not in marked and _changes(data)
    }
    padded = _pad_more(graph, sources, changing)
    return _pad_more(graph, sources, {}) if isinstance(padded, str) and changing else padded


def _pad_more(
    graph: Graph, sources: Sources, changing: Mapping[Any, Pads]
) -> tuple[Graph, set[Node]] | str:
    """`_pad`, again from the start with each value in which padding has to begin."""
    values: list[Any] = [*graph.nodes, *graph.inputs]
    places = {value: place for place, value in enumerate(values)}
    key = (
        *[
            (node.op.name, *[places[walks.origin(operand) or operand] for operand in node.operands])
            for node in graph.nodes
        ],
        *[len(value.meta.shape) for value in values],
        *[node.op.operands for node in graph.nodes if node.op.name == walks.UNPADDED],
        len(changing),
    )
    begun = _begun.get(key) or _begun.keep(key, {})
    while True:
        pads = {
            values[place]: pads
            for place, pads in begun.items()
            if all(
                size >= values[place].meta.shape[dim] and _may_begin(values[place], dim)
                for dim, size in pads.items()
            )
        }
        try:
            return _pad(graph, sources._replace(begun={**changing, **pads}))
        except _Begins as found:
            value, pads = found.args
            begun[places[value]] = begun.get(places[value], {}) | pads


def _pad(graph: Graph, sources: Sources) -> tuple[Graph, set[Node]] | str:
    spread = _Spread(graph, sources)
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
    # a padded result has another shape than the data that it would be written over
    onto = [None if target in padded_roots else target for target in graph.onto]
    donated = [
        is_donated and target not in padded_roots
        for is_donated, target in zip(graph.donated, graph.onto, strict=True)
    ]
    pinned = list(graph.pinned)
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

    def __init__(self, graph: Graph, sources: Sources):
        super().__init__(graph, is_recorded=True)
        self.origins = sources
        self.pads: dict[object, Pads] = {}
        self.data: dict[DeviceData, DeviceData] = {}
        self.changed: set[Node] = set()

    def capacity(self, length: int) -> int:
        """Returns the capacity of a dim of this length."""
        return self.origins.capacities.get(length) or capacity_of(length)

    def begun(self, node: Node) -> Pads:
        """Returns the capacities of the dims of an op's result at which padding begins; of a slice
        the full buffer."""
        if node in self.origins.begun:
            return self.origins.begun[node]
        dims, shape = self.origins.nodes.get(node, ()), node.meta.shape
        if node.op.name != "aten.slice.Tensor":
            return {dim: self.capacity(shape[dim]) for dim in dims}
        full = node.operands[0].meta.shape
        return {
            dim: self.origins.capacities.get(shape[dim]) or FullBuffer(full[dim]) for dim in dims
        }

    def pads_of(self, value: Value) -> Pads:
        """Returns the padded dims of a value of the old graph."""
        return self.pads.get(walks.value_name(value), {})

    def take(self, node: Node) -> None:
        """Adds an op to the new graph."""
        for operand in node.operands:
            self.lengthen(operand, node)
        pads = list(map(self.pads_of, node.operands))
        if node.op.name == KNOWN_MASK:  # its numbers may be those of one length
            (mask, *_), name = node.operands, walks.value_name(node)
            self.new_values[name], self.pads[name] = self.value(mask), pads[0]
            self.changed.add(node)
            return
        begins = {} if any(pads) and node not in self.origins.begun else self.begun(node)
        op, numbers, padded = _alone(node), node.numbers, None
        if node in self.origins.host_computed:
            dims = self.origins.host_computed[node]
            padded = Padded(
                node.op, ({dim: self.capacity(node.meta.shape[dim]) for dim in dims},), ()
            )
        elif begins or any(pads):
            try:
                padded = padded_op(op, pads, begins)
            except NoRule as why:
                if type(why) is Unpadded and self.origins.capacities:
                    self.begin(node.operands[why.operand], why.dim, why.size)
                if not begins:
                    raise
                # another op of the same name in the same line
        if padded is not None:
            op, numbers = padded.op, (*padded.numbers, *numbers)
            self.changed.add(node)
            for value, pad in zip(walks.results(node), padded.pads, strict=True):
                self.pads[walks.value_name(value)] = pad
        self.put(node, op, node.operands, numbers)

    def begin(self, value: Value, dim: int, size: int) -> None:
        """Raises _Begins where a value without padding may have it, in this dim or in one that it
        comes from."""
        source = value if isinstance(value, DeviceData) else walks.origin(value)
        if source is None or dim in self.origins.begun.get(source, ()):
            return
        if isinstance(source, Node) and source.op.name == KNOWN_MASK:
            self.begin(source.operands[0], dim, size)
        elif _may_begin(source, dim):
            raise _Begins(source, {dim: size})
        elif isinstance(source, Node):
            pads = list(map(self.pads_of, source.operands))
            for index, operand in enumerate(source.operands):
                for place, capacity in _inverse(source, value, dim, size, pads, index).items():
                    self.begin(operand, place, capacity)

    def lengthen(self, device_data: Value, reader: Node) -> None:
        """Pads data with dynamic dims: on the host, or in the program."""
        if type(device_data) is not DeviceData or device_data in self.new_values:
            return
        pads = {
            dim: self.capacity(device_data.meta.shape[dim])
            for dim in self.origins.inputs.get(device_data, ())
        } | self.origins.begun.get(device_data, {})
        if not pads:
            return
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


# The ops that make an operand of the result of these, or of one that is padded as it is.
_INVERSES = {
    "aten.view": aten.view.default,
    "aten._unsafe_view": aten.view.default,
    "aten.slice_backward": aten.slice.Tensor,
}


def _inverse(
    node: Node, value: Value, dim: int, size: int, pads: Sequence[Pads], index: int
) -> Pads:
    """Returns the padding of an op's operand by which this dim of a result may have it."""
    inverse, lowering = _INVERSES.get(node.op.name), node.op.lowering
    operand, shape = node.op.operands[index].shape, value.meta.shape
    result: Pads = {}
    if inverse is not None and type(lowering) is lowerings.Call:
        case = Case(
            inverse, dict(lowering.arguments), [shape], [], [{dim: size}], [operand], [], [result]
        )
        with contextlib.suppress(NoRule):
            RULES[inverse](case)
        return result
    for place, length in enumerate(operand):
        if length == shape[dim] and place not in pads[index]:
            padded = [*pads[:index], pads[index] | {place: size}, *pads[index + 1 :]]
            if _may_spread(node, padded, walks.result_index(value), dim):
                result[place] = size
    return result


def _may_spread(node: Node, pads: list[Pads], index: int, dim: int) -> bool:
    """True if a result's dim is padded where an op's operands are, and those that they meet."""
    while True:
        try:
            return dim in padded_op(_alone(node), pads, {}).pads[index]
        except Unpadded as why:
            pads[why.operand] = pads[why.operand] | {why.dim: why.size}
        except NoRule:
            return False


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
