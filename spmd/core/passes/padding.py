"""A length that changes from run to run, as that of a cache which a model fills token by token: one program for all.

Where programs of one barrier differ in the length of a slice from 0 of a buffer, and in what follows from it, the slice
is taken whole and its length is an operand. From there the padding spreads from op to op until it is gone, as it is
behind an attention; each op on its way has a rule (`ops.padding_rules`) for giving the same as without it. Where one has
none, or a result is kept at its own length, everything stays as it was recorded, and the ledger says why.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

from ..ir.graph import Graph, Leaf, Node, Pick, Value, origin, value_name
from ..ir.op import Entry, Padded
from ..ir.source import line_number, node_line
from ..ops.padding import NoRule, Pads
from ..tables import Bounded

# Where an op stands in the user's code, and its name.
Place = tuple[CodeType | None, int, str]

# Which dims of its result grow, of the ops at these places.
_growing: Bounded[Place, tuple[int, ...]] = Bounded(4096)
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


def learn(sources: Mapping[Node, Sequence[int]]) -> None:
    """Has these ops' results padded in these dims from now on."""
    for node, dims in sources.items():
        _growing.keep(place_of(node), tuple(dims))


def sources_of(graph: Graph) -> dict[Node, Sequence[int]]:
    """The ops of a graph whose results are known to grow, and the dims in which they do."""
    return {node: _growing.rows[place_of(node)] for node in graph.nodes if grows(node)} if _growing else {}


def grows(node: Node) -> bool:
    """Whether an op's result is known to grow. A slice from elsewhere in the same line does not: its position moves."""
    dims = _growing.get(place_of(node)) if _growing else None
    moving = node.entry.moving
    return dims is not None and _is_long(node, dims) and (moving is None or moving[1] == 0)


def _is_long(node: Node, dims: Sequence[int]) -> bool:
    """A dim of size 1 looks like one that is repeated."""
    return len(node.meta.shape) > max(dims) and all(node.meta.shape[dim] > 1 for dim in dims)


def grown(old: Entry, node: Node) -> tuple[int, ...] | None:
    """The dims in which an op's result differs from that of the same op of another run, on operands that do not."""
    (before, *others), (now, *_) = old.metas, node.entry.metas
    if others or old.operands != node.entry.operands or len(before.shape) != len(now.shape):
        return None
    dims = tuple(dim for dim, size in enumerate(now.shape) if size != before.shape[dim])
    return dims if dims and _is_long(node, dims) else None


def pad(graph: Graph, sources: Mapping[Node, Sequence[int]]) -> tuple[Graph, set[Node]] | Refused:
    """The graph with the results of these ops taken whole, and the ops that have become others."""
    if any(node.sequence >= 0 for node in graph.nodes):
        return Refused(next(node for node in graph.nodes if node.sequence >= 0), "is a gradient")
    spread = _Spread(sources)
    for node in graph.nodes:
        try:
            spread.take(node)
        except NoRule as why:
            return Refused(node, str(why))
    for root in graph.roots:
        if spread.pads.get(value_name(root)):
            node = origin(root)
            assert node is not None, "a leaf is never padded"
            return Refused(node, "makes what is kept at its own length")
    roots = [spread.now(root) for root in graph.roots]
    return dataclasses.replace(graph, nodes=list(spread.made.values()), roots=roots), spread.changed


class _Spread:
    """The ops of a graph anew, one by one: what is padded of each value."""

    def __init__(self, sources: Mapping[Node, Sequence[int]]):
        self.sources = sources
        self.pads: dict[object, Pads] = {}
        self.made: dict[Node, Node] = {}
        self.changed: set[Node] = set()

    def now(self, value: Value) -> Value:
        """A value of the old graph in the new one."""
        if type(value) is Leaf:
            return value
        if type(value) is Pick:
            return Pick(self.made[value.node], value.index)
        return self.made[value]  # type: ignore[index]

    def take(self, node: Node) -> None:
        """Adds an op to the new graph."""
        operands = [self.now(operand) for operand in node.operands]
        pads = [self.pads.get(value_name(operand), {}) for operand in node.operands]
        entry, numbers = node.entry, node.numbers
        begins = () if any(pads) else self.sources.get(node, ())
        try:
            found = _found(entry, pads, begins) if begins or any(pads) else None
        except NoRule:
            if not begins:
                raise
            found = None  # another op of the same name in the same line
        if found is not None:
            entry, numbers = found.entry, (*found.numbers, *numbers)
            self.changed.add(node)
            for index, pad in enumerate(found.pads):
                if pad:
                    self.pads[(node, index) if len(found.pads) > 1 else node] = pad
        made = Node(entry, operands, numbers, node.code, node.instruction, node.sequence)
        made.serial = node.serial
        self.made[node] = made


def _found(entry: Entry, pads: Sequence[Pads], begins: Sequence[int]) -> Padded:
    key = (entry, tuple(tuple((*item, type(item[1])) for item in pad.items()) for pad in pads), tuple(begins))
    found = _padded.get(key)
    return _padded.keep(key, entry.lowering.padded(entry, pads, begins)) if found is None else found
