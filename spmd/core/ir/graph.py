"""The recorded values: Leaf, Node, Pick; the Graph of one program, and the Region that is the body of an op."""

import itertools
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np

from ..config import config
from ..sharding.topology import stand_in
from ..sharding.value import Sharding
from .encode import digest
from .errors import AbstractError, LostError
from .meta import Meta, dense_meta
from .op import Entry
from .store import Family, Store

_serials = itertools.count()


class Leaf:
    """A value that exists: a device buffer, or host data that has not been uploaded yet; or an abstract one, of which
    only shape and layout are known (`is_abstract`), for programs that are compiled and never run.

    `sharding` says how the buffer lies (or will lie); `gone` says why a buffer is no longer there; `shared` is set when
    someone outside the graph holds the buffer, which then is never donated. Instead of a buffer of its own it may have
    a `row` of a `store`. `source`: the user's (code, last instruction), or which result of its `maker` it is.
    """

    __slots__ = (
        "__weakref__", "buffer", "gone", "holder", "host", "is_abstract", "maker", "meta", "row", "serial", "sharding",
        "shared", "source", "store",
    )  # fmt: skip

    def __init__(
        self,
        meta: Meta,
        *,
        buffer: jax.Array | None = None,
        host: np.ndarray | None = None,
        sharding: Sharding | None = None,
        maker: Any = None,
        source: tuple[CodeType | None, int] | int | None = None,
        is_abstract: bool = False,
    ):
        self.meta = meta
        self.buffer = buffer
        self.host = host
        self.sharding = sharding
        self.is_abstract = is_abstract
        self.shared = 0
        self.store: Store | None = None
        self.row = 0
        self.gone: str | None = None
        self.serial = next(_serials)  # counts on with the nodes'
        self.holder: Any = None  # weak reference to the cell whose value this is
        self.source = source
        self.maker = maker  # weak reference to the program whose result this is

    def take(self, buffer: jax.Array, sharding: Sharding) -> None:
        """Has the same data in this buffer from now on."""
        self.buffer, self.sharding = buffer, sharding
        self.host = self.store = None

    def lie_in(self, store: Store, row: int) -> None:
        """Has its data, which is the same, in a row of this store from now on."""
        self.store, self.row, self.sharding = store, row, store.sharding
        self.host = self.buffer = None

    def placed(self) -> tuple[jax.Array, Sharding]:
        """The buffer of a value that is on devices, or a copy of its row, and how it lies."""
        assert self.sharding is not None
        if self.store is not None:
            return self.store.copy_of(self.row), self.sharding
        assert self.buffer is not None
        return self.buffer, self.sharding

    def give_up(self, why: str) -> None:
        """Has no data from now on, and says why at the next use."""
        self.gone, self.buffer, self.store = why, None, None

    def is_lost(self) -> bool:
        """Whether its buffer was taken from it."""
        buffer = self.buffer if self.store is None else self.store.buffer
        return buffer is not None and buffer.is_deleted()

    def is_held(self) -> bool:
        """Whether someone outside the graph holds its buffer; of a row they hold copies."""
        return self.shared > 0 and self.store is None

    def is_unheld(self) -> bool:
        """Whether the tensor whose data it was is gone, and nobody outside the graph holds its buffer."""
        return self.holder is not None and self.holder() is None and self.buffer is not None and not self.is_held()

    def check(self) -> None:
        """Raises LostError when the data was given up in a run that then failed, AbstractError where there is none."""
        if self.is_abstract:
            raise AbstractError(f"{self.meta!r} is abstract: it has a shape, a layout ({self.sharding!r}) and no data")
        if self.gone is None and self.is_lost():
            self.gone = "its buffer was donated to a run that was interrupted"
        if self.gone is not None:
            raise LostError(f"this tensor's data ({self.meta!r}) is lost: {self.gone}. Load or initialise it again.")


class Node:
    """One recorded op: its Entry, its operands, its lifted numbers, and where the user wrote it.

    A Node stands for its result; an op with several results has one Node and a `Pick` per result. `serial` counts
    recorded ops: sorting by it is a topological order. `sequence` is autograd's number of the forward op (see
    `core.ir.source`).
    """

    __slots__ = ("code", "entry", "instruction", "numbers", "operands", "sequence", "serial")

    def __init__(
        self,
        entry: Entry,
        operands: "Sequence[Value]",
        numbers: Sequence[float | int] = (),
        code: CodeType | None = None,
        instruction: int = 0,
        sequence: int = -1,
    ):
        self.entry = entry
        self.operands = operands
        self.numbers = numbers
        self.code = code
        self.instruction = instruction
        self.sequence = sequence
        self.serial: float = next(_serials)  # a fraction where a pass puts ops between two

    @property
    def meta(self) -> Meta:
        return self.entry.metas[0]


class Pick:
    """One result of an op that has several."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int):
        self.node = node
        self.index = index

    @property
    def meta(self) -> Meta:
        return self.node.entry.metas[self.index]


Value = Node | Pick | Leaf

# The op that shows data without its padding (see `passes.lengths`).
SHOWN = "spmd.shown"


def is_data(value: Value) -> bool:
    """Whether a value is there, and no run need make it: a leaf, or what is shown of one that has padding."""
    return type(value) is Leaf or is_shown(value)


def is_shown(value: Value | None) -> TypeGuard[Node]:
    """Whether a value is what is shown of a leaf that has padding."""
    return type(value) is Node and value.entry.name == SHOWN and type(value.operands[0]) is Leaf


def next_serial() -> int:
    """A number above those of all values so far."""
    return next(_serials)


def results(node: Node) -> Sequence[Value]:
    """A value for each result of a recorded op."""
    count = len(node.entry.metas)
    return [node] if count == 1 else [Pick(node, index) for index in range(count)]


def origin(value: Value) -> Node | None:
    """The recorded op that makes a value, or None for a leaf."""
    kind = type(value)
    return value if kind is Node else value.node if kind is Pick else None  # type: ignore[return-value,union-attr]


def value_name(value: Value) -> Any:
    """What a value is known by: results of one node are new Picks each time they are asked for."""
    return (value.node, value.index) if type(value) is Pick else value


def topological(roots: Sequence[Value]) -> tuple[list[Node], list[Leaf]]:
    """Every node that the roots need, in the order of recording, and the leaves in the order of first use."""
    seen: set[Value] = set()
    nodes: list[Node] = []
    stack = list(roots)
    while stack:
        value = stack.pop()
        if type(value) is Pick:
            value = value.node
        if value in seen:
            continue
        seen.add(value)
        if type(value) is Node:
            nodes.append(value)
            stack.extend(value.operands)
    nodes.sort(key=_serial)
    leaves: dict[Leaf, None] = {}
    for node in nodes:
        for operand in node.operands:
            if type(operand) is Leaf:
                leaves[operand] = None
    return nodes, list(leaves)


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """These nodes in order, before each those of the regions inside it."""
    for node in nodes:
        for region in node.entry.lowering.regions:
            yield from walk(region.nodes)
        yield node


def _serial(node: Node) -> float:
    return node.serial


class Port(NamedTuple):
    """One argument or result of a program: a leaf or root by its place, or those that are the rows of a stack.

    meta, sharding: of the stack, where it is one.
    """

    places: int | Family
    meta: Meta
    sharding: Sharding | None
    is_donated: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """A piece of the lazy graph that is about to become one program.

    nodes in order of recording; leaves in order of first use; lies: how each leaf lies in the program, wherever it is
    now; roots: the values wanted; pinned: the sharding each root must have, or None where the compiler may choose;
    donated: per leaf, whether its buffer may be overwritten; mesh: the devices, in the program's order.
    families: leaves, by their places, that are one argument of the program, the rows of a stack [rows, *shape] in this
    order; all look and lie alike, and are donated together. stacked: the same for results, by their places in the
    roots; ~i stands for leaf i of a donated family, which comes out as it went in. onto: per leaf, the place of the
    root that is written over it (no part of the key: it only says whose memory serves whom). free: data that no tensor
    holds any more and nobody reads afterwards, so that a pass may have it written over (no part of the key, either).
    loops: the stretches (`ir.loops.Loop`) that are loops of the program, too, in order. columns: leaves that are no
    argument together and that the program stacks for them.
    """

    nodes: list[Node]
    leaves: list[Leaf]
    lies: list[Sharding]
    roots: list[Value]
    pinned: list[Sharding | None]
    donated: tuple[bool, ...]
    mesh: Sharding
    families: tuple[Family, ...] = ()
    stacked: tuple[Family, ...] = ()
    onto: Sequence[int | None] = ()
    free: Collection[Leaf] = ()
    loops: Sequence[Any] = ()
    columns: Sequence[Family] = ()

    def inputs(self) -> list[Port]:
        """What the program takes: the families, then the other leaves."""
        return [
            self._port(places, self.leaves, self.lies)._replace(is_donated=any(self.donated[i] for i in _each(places)))
            for places in _together(len(self.leaves), self.families)
        ]

    def outputs(self) -> list[Port]:
        """What the program gives: what is stacked, then the other roots."""
        return [self._port(places, self.roots, self.pinned) for places in _together(len(self.roots), self.stacked)]

    def _port(self, places: int | Family, values: Sequence[Value], lie: Sequence[Sharding | None]) -> Port:
        if isinstance(places, int):
            return Port(places, values[places].meta, lie[places])
        one = max(places)  # leaves among the roots stand below 0
        meta, lies = values[one].meta, lie[one]
        assert lies is not None, "what is stacked lies as its rows are asked to"
        return Port(places, dense_meta((len(places), *meta.shape), meta.dtype), lies.behind_rows())

    def meshes(self) -> list[Sharding]:
        """Every mesh that an input, an annotation or a result names, as its replicated sharding; the first, first."""
        named = (node.entry.sharding for node in walk(self.nodes))
        found = dict.fromkeys((self.mesh, *self.lies, *self.pinned, *named))
        return list(dict.fromkeys(s.replicated() for s in found if s is not None))

    def key(self) -> Hashable:
        """What makes two graphs the same program: ops with what is static, wiring, layouts, donation, flags, target.

        The lifted numbers are not in it. Entries and metas are interned, so the key compares by identity.
        """
        settings = config.partitioner, config.compiler_options, config.roll_layers, config.max_logits_bytes
        key: list[Any] = [*settings, stand_in(), self.donated, self.mesh]
        key.extend(self.lies)
        key.extend(_wiring(self.nodes, self.leaves, self.roots))
        key += [tuple(self.pinned), self.families, self.stacked]
        return tuple(key)

    @property
    def encoded(self) -> str:
        """The key, with the loops, as text that is the same in every process (see `ir.encode`)."""
        return digest((self.key(), [(loop.start, loop.period, loop.turns) for loop in self.loops]))


def _each(places: int | Family) -> Family:
    return (places,) if isinstance(places, int) else places


def _together(count: int, families: Sequence[Family]) -> list[int | Family]:
    """The places up to a count, those of each family in one."""
    taken = {place for family in families for place in family}
    return [*families, *(place for place in range(count) if place not in taken)]


@dataclass(frozen=True, slots=True)
class Region:
    """A piece of the lazy graph that is the body of an op (see `Lowering.regions`). Nobody changes it.

    nodes in order; leaves: they stand for what the body is given, in order, and hold no data; roots: what it makes.
    """

    nodes: list[Node]
    leaves: list[Leaf]
    roots: list[Value]

    @staticmethod
    def of(roots: Sequence[Value], given: Sequence[Value]) -> "Region":
        """The ops between the values `given` and the roots, as a region of its own: nodes are copied.

        ValueError where the roots need data that is not given; what is not needed of `given` has a leaf all the same.
        """
        leaves = [Leaf(value.meta, is_abstract=True) for value in given]
        made: dict[Any, Value] = {}
        for value, leaf in zip(given, leaves, strict=True):
            made.setdefault(value_name(value), leaf)
        copies: dict[Node, Node] = {}

        def copied(value: Value) -> Value:
            found = made.get(value_name(value))
            if found is not None:
                return found
            if type(value) is Leaf:
                raise ValueError(f"the region needs {value.meta!r}, which it is not given")
            return Pick(copies[value.node], value.index) if type(value) is Pick else copies[value]  # type: ignore[index]

        for node in between(roots, given):
            operands = tuple([copied(operand) for operand in node.operands])
            copies[node] = Node(node.entry, operands, node.numbers, node.code, node.instruction, node.sequence)
        return Region(list(copies.values()), leaves, [copied(root) for root in roots])

    @property
    def encoded(self) -> str:
        """What makes two regions the same, as text (see `ir.encode`); the lifted numbers are not in it."""
        return digest(_wiring(self.nodes, self.leaves, self.roots))


def between(roots: Sequence[Value], given: Iterable[Value], *, since: int = 0) -> list[Node]:
    """The nodes that the roots need when these values are given, in the order of recording; none before `since`."""
    known = {value_name(value) for value in given}
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        node = None if value_name(value) in known else origin(value)
        if node is not None and node not in seen and node.serial >= since:
            seen.add(node)
            stack.extend(node.operands)
    return sorted(seen, key=_serial)


def _wiring(nodes: Sequence[Node], leaves: Sequence[Leaf], roots: Sequence[Value]) -> list[Any]:
    """The ops, what each reads, and which values come out, by position."""
    position: dict[Value, int] = {}
    key: list[Any] = [len(leaves)]
    for i, leaf in enumerate(leaves):
        position[leaf] = ~i
        key.append(leaf.meta)
    for i, node in enumerate(nodes):
        position[node] = i
        key.append(node.entry)
        for operand in node.operands:
            if type(operand) is Pick:
                key.append(position[operand.node] + (operand.index + 1 << 40))
            else:
                key.append(position[operand])
    key.append(tuple([_place(root, position) for root in roots]))
    return key


def _place(value: Value, position: dict[Value, int]) -> int:
    return position[value.node] + (value.index + 1 << 40) if isinstance(value, Pick) else position[value]
