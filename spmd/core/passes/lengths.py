"""A length that changes from run to run, as that of a cache which a model fills token by token: one program for all.

Where programs of one barrier differ in the length of a slice from 0 of a buffer, and in what follows from it, the slice
is taken whole and its length is an operand. From there the padding spreads from op to op until it is gone, as it is
behind an attention; each op on its way has a rule (`ops.padding_*`) for giving the same as
without it. Where one has none, or a result is kept at its own length, everything stays as it was recorded, and the
ledger says why. A cache that `torch.cat` grows keeps its padding, which doubles, between the runs, and its memory.
"""

import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ..ir.graph import SHOWN, Graph, Leaf, Node, Pick, Value, is_shown, origin, value_name
from ..ir.meta import Meta, padded_meta
from ..ir.op import PADDED, Arrays, Entry, Layouts, Lowering, Padded
from ..ir.source import line_number, node_line
from ..ops.padding import NoRule, Pads, is_whole
from ..ops.padding_shapes import capacity_of
from ..sharding.constrain import cut
from ..tables import Bounded

# Where an op stands in the user's code, and its name.
Place = tuple[CodeType | None, int, str]
Item = TypeVar("Item")


class Places(Generic[Item]):
    """What is known of ops, or of their operands, by where they stand. Of most an op's name says that nothing is."""

    def __init__(self) -> None:
        self.table: Bounded[tuple[Place, int | None], Item] = Bounded(4096)
        self.names: set[str] = set()

    def get(self, node: Node, operand: int | None = None) -> Item | None:
        """What is known of an op, or of the operand with this number."""
        return self.table.get((place_of(node), operand)) if node.entry.name in self.names else None

    def keep(self, node: Node, item: Item, operand: int | None = None) -> None:
        """Has this be known from now on."""
        self.names.add(node.entry.name)
        self.table.keep((place_of(node), operand), item)


# Which dims of its result grow, of the ops at these places.
_growing: Places[tuple[int, ...]] = Places()
# The same of the data that ops at these places read, by the number of the operand.
_grown_data: Places[tuple[int, ...]] = Places()
# An op that is added: it gives data of the device its padding.
LENGTHEN = "spmd.pad"
# What may be kept with padding: a cache to which a token is joined, and one whose rows a search has put in order.
_KEPT = ("aten.cat", "aten.index_select")
# What an op becomes, by itself and what is padded of its operands.
_padded: Bounded[tuple[Entry, tuple[Any, ...], tuple[int, ...]], Padded] = Bounded(4096)


class Refused(NamedTuple):
    """Why a graph is not padded: the op that has no rule for it, and what the rules say."""

    node: Node
    why: str

    def __str__(self) -> str:
        return f"{self.node.entry.name} {self.why} at {node_line(self.node)}"


def place_of(node: Node) -> Place:
    """By what an op is known from run to run."""
    return node.code, line_number(node.code, node.instruction), node.entry.name


class Sources(NamedTuple):
    """Where padding begins: ops whose result, and data whose shape, grows from run to run, each with the dims in which
    it does. hosted: ops whose results the host would make, with padding."""

    nodes: Mapping[Node, Sequence[int]]
    leaves: Mapping[Leaf, Sequence[int]]
    hosted: Mapping[Node, Sequence[int]] = types.MappingProxyType({})

    @property
    def is_settled(self) -> bool:
        """Whether a graph that has no program yet is padded all the same: it reads data that has padding."""
        return any(node.entry.name == SHOWN for node in self.nodes)


def learn(sources: Sources, graph: Graph) -> None:
    """Has these grow from now on, in these dims and those known before."""
    for node, dims in sources.nodes.items():
        _growing.keep(node, _union(_growing.get(node), dims))
    for leaf, dims in sources.leaves.items():
        for node in graph.nodes:
            for index, operand in enumerate(node.operands):
                if operand is leaf:
                    _grown_data.keep(node, _union(_grown_data.get(node, index), dims), index)


def _union(some: Sequence[int] | None, others: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted({*(some or ()), *others}))


def sources_of(graph: Graph) -> Sources | None:
    """What of a graph is known to grow; None where nothing is."""
    nodes: dict[Node, Sequence[int]] = {}
    leaves: dict[Leaf, Sequence[int]] = {}
    for node in graph.nodes:
        if node.entry.name == SHOWN:
            nodes[node] = node.entry.lowering.dims  # type: ignore[attr-defined]
        dims = _growing.get(node)
        if dims is not None and grows(node):
            nodes[node] = dims
        for index, operand in enumerate(node.operands) if node.entry.name in _grown_data.names else ():
            if type(operand) is Leaf:
                dims = _grown_data.get(node, index)
                if dims is not None and can_grow(operand, dims, graph):
                    leaves[operand] = dims
    return Sources(nodes, leaves) if nodes or leaves else None


def can_grow(leaf: Leaf, dims: Sequence[int], graph: Graph) -> bool:
    """Whether data may be padded: what the host has (a list that grows, a batch); a cache that is joined by a token."""
    shape = leaf.meta.shape
    if len(shape) <= max(dims) or any(shape[dim] < 2 for dim in dims):
        return False
    if leaf.host is not None:
        return True
    return all(node.entry.name == "aten.cat" for node in graph.nodes if leaf in node.operands)


def grows(node: Node) -> bool:
    """Whether an op's result is known to grow. A slice from elsewhere in the same line does not: its position moves."""
    dims = _growing.get(node)
    moving = node.entry.moving
    return dims is not None and _is_long(node, dims) and (moving is None or moving[1] == 0)


def _is_long(node: Node, dims: Sequence[int]) -> bool:
    """A dim of size 1 looks like one that is repeated."""
    return len(node.meta.shape) > max(dims) and all(node.meta.shape[dim] > 1 for dim in dims)


def grown(old: Entry, node: Node) -> tuple[int, ...] | None:
    """The dims in which an op's result differs from that of the same op of another run, on operands that do not."""
    if len(old.metas) > 1 or old.operands != node.entry.operands:
        return None
    dims = grown_dims(old.metas[0], node.meta)
    return dims if dims and _is_long(node, dims) else None


def grown_dims(before: Meta, now: Meta) -> tuple[int, ...]:
    """The dims in which two layouts of one dtype and rank differ; none where they differ otherwise."""
    if before.dtype is not now.dtype or len(before.shape) != len(now.shape):
        return ()
    return tuple(dim for dim, size in enumerate(now.shape) if size != before.shape[dim])


def pad(graph: Graph, sources: Sources) -> tuple[Graph, set[Node]] | Refused:
    """The graph with what grows taken with padding, and the ops that have become others."""
    gradient = next((node for node in graph.nodes if node.sequence >= 0), None)
    if gradient is not None and not all(leaf.host is not None for leaf in sources.leaves):
        return Refused(gradient, "is a gradient")
    if gradient is not None and any(node.entry.moving is not None for node in sources.nodes):
        return Refused(gradient, "is a gradient")
    spread = Spread(sources)
    for node in graph.nodes:
        try:
            spread.take(node)
        except NoRule as why:
            return Refused(node, str(why))
    for root in graph.roots:
        pads, maker = spread.pads_of(root), origin(root)
        if maker is None or maker in sources.hosted or not pads:
            continue
        if maker.entry.name not in _KEPT or any(map(is_whole, pads.values())):
            return Refused(maker, "makes what is kept at its own length")
    roots = [spread.now(root) for root in graph.roots]
    leaves = [spread.data.get(leaf, leaf) for leaf in graph.leaves]
    grown = [place for place, root in enumerate(graph.roots) if spread.pads_of(root)]
    return in_place(dataclasses.replace(graph, nodes=spread.nodes, leaves=leaves, roots=roots), grown), spread.changed


def in_place(graph: Graph, grown: Sequence[int]) -> Graph:
    """The graph with each cache that grows, by its place in the roots, lying as it did before; and in the same memory,
    where that has room for what is joined to it and no tensor holds what it was."""
    donated, onto, pinned = list(graph.donated), list(graph.onto), list(graph.pinned)
    for place in grown:
        root = graph.roots[place]
        before = root.operands[0] if type(root) is Node and root.entry.name == "aten.cat" else None
        if not is_shown(before):
            continue
        leaf = before.operands[0]
        assert type(leaf) is Leaf, "what is shown of data"
        index = graph.leaves.index(leaf)
        lies = graph.lies[index]
        pinned[place] = pinned[place] or lies
        if leaf in graph.free and root.meta.struct == leaf.meta.struct and pinned[place] is lies:
            donated[index], onto[index] = True, place
    return dataclasses.replace(graph, donated=tuple(donated), onto=onto, pinned=pinned)


class Spread:
    """The ops of a graph anew, one by one: what is padded of each value."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self.pads: dict[object, Pads] = {}
        self.nodes: list[Node] = []
        self.made: dict[Any, Value] = {}
        self.data: dict[Leaf, Leaf] = {}
        self.changed: set[Node] = set()
        self.moved: Collection[Entry] = ()  # ops whose position is an operand

    def capacity(self, length: int) -> int:
        """That of data of this length."""
        return capacity_of(length)

    def now(self, value: Value) -> Value:
        """A value of the old graph in the new one."""
        if type(value) is Pick:
            made = self.made[value.node]
            assert type(made) is Node, "an op stays an op"
            return Pick(made, value.index)
        if type(value) is Leaf:
            return self.made.get(value, value)
        return self.made[value]

    def pads_of(self, value: Value) -> Pads:
        """What is padded of a value of the old graph."""
        return self.pads.get(value_name(value), {})

    def take(self, node: Node) -> None:
        """Adds an op to the new graph."""
        for operand in node.operands:
            self.lengthen(operand, node)
        operands = [self.now(operand) for operand in node.operands]
        if node in self.sources.hosted:
            self.pads[node] = {dim: self.capacity(node.meta.shape[dim]) for dim in self.sources.hosted[node]}
            self.changed.add(node)
            self.made[node] = self.new(node.entry, operands, node.numbers, node)
            return
        pads = [self.pads_of(operand) for operand in node.operands]
        is_reached = any(pads)
        entry, numbers = _alone(node), node.numbers
        begins = () if is_reached else self.sources.nodes.get(node, ())
        try:
            made = found(entry, pads, begins) if begins or is_reached else None
        except NoRule:
            if not begins:
                raise
            made = None  # another op of the same name in the same line
        if made is not None:
            entry, numbers = made.entry, (*made.numbers, *numbers)
            self.changed.add(node)
            for index, pad in enumerate(made.pads):
                if pad:
                    self.pads[(node, index) if len(made.pads) > 1 else node] = pad
        elif node.entry.moving is not None and node.entry.moving[0] in self.moved:
            entry, position = node.entry.moving
            numbers = (position, *numbers)
        self.made[node] = self.new(entry, operands, numbers, node)

    def new(self, entry: Entry, operands: Sequence[Value], numbers: Sequence[float | int], like: Node) -> Node:
        made = Node(entry, operands, numbers, like.code, like.instruction, like.sequence)
        made.serial = like.serial
        self.nodes.append(made)
        return made

    def lengthen(self, leaf: Value, reader: Node) -> None:
        """Gives data that grows its padding: on the host, or in the program."""
        if type(leaf) is not Leaf or leaf not in self.sources.leaves or leaf in self.made:
            return
        pads = {dim: self.capacity(leaf.meta.shape[dim]) for dim in self.sources.leaves[leaf]}
        meta = padded_meta(leaf.meta, pads)
        if leaf.host is None:
            self.made[leaf] = self.new(Entry.of(LENGTHEN, _Lengthen(), (meta,), (leaf.meta,)), [leaf], (), reader)
        else:
            room = [(0, new - old) for new, old in zip(meta.shape, leaf.meta.shape, strict=True)]
            self.made[leaf] = self.data[leaf] = Leaf(meta, host=np.pad(leaf.host, room), sharding=leaf.sharding)
        self.pads[leaf] = pads


@dataclass(frozen=True, slots=True)
class _Lengthen(Lowering):
    """The operand, with padding behind it."""

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        room = [(0, new - old) for new, old in zip(op.metas[0].shape, op.operands[0].shape, strict=True)]
        return (jnp.pad(operands[0], room),)


# --- data that has padding: what a tensor holds between two runs is a view of it ------------------------------------


def unpadded(leaf: Leaf, value: Value) -> Leaf | Node:
    """A result as the user sees it; where it has padding, an op that shows it stands in the place of the one that made
    it."""
    if leaf.meta.shape == value.meta.shape:
        return leaf
    made = Node(_shown_entry(leaf.meta, value.meta), [leaf])
    node = origin(value)
    assert node is not None, "results are made"
    made.code, made.instruction, made.serial = node.code, node.instruction, node.serial
    return made


def _shown_entry(whole: Meta, meta: Meta) -> Entry:
    return Entry.of(SHOWN, _Shown(grown_dims(whole, meta)), (meta,), (whole,), statics=str(list(meta.shape)))


@dataclass(frozen=True, slots=True)
class _Shown(Lowering):
    """The operand without its padding."""

    dims: tuple[int, ...]

    def lower(self, op: Entry, operands: Arrays, numbers: Arrays, layouts: Layouts) -> tuple[jax.Array, ...]:
        return (cut(operands[0], op.metas[0].shape),)

    def padded(self, op: Entry, pads: Sequence[Pads], begins: Sequence[int]) -> Padded:
        (whole,) = op.operands
        entry = Entry.of(SHOWN, self, (whole,), (whole,), statics=PADDED)
        return Padded(entry, ({dim: whole.shape[dim] for dim in self.dims},), ())


def _alone(node: Node) -> Entry:
    """An op; one that fills its result, without the shape of what it was given to be like."""
    entry = node.entry
    if node.operands or not entry.operands or entry.constant is None:
        return entry
    numbers, constant = entry.numbers, entry.constant
    return Entry.of(entry.name, entry.lowering, entry.metas, (), numbers=numbers, statics=PADDED, constant=constant)


def found(entry: Entry, pads: Sequence[Pads], begins: Sequence[int]) -> Padded:
    """An op on operands with this padding; raises NoRule."""
    key = (entry, tuple(tuple((*item, type(item[1])) for item in pad.items()) for pad in pads), tuple(begins))
    made = _padded.get(key)
    return _padded.keep(key, entry.lowering.padded(entry, pads, begins)) if made is None else made
