"""The recorded values: Leaf, Node, Pick, and the Graph of one program."""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import jax
import numpy as np

from ..config import config
from ..sharding.value import Sharding
from .encode import digest
from .meta import Meta
from .op import Entry

_serials = itertools.count()


class LostError(RuntimeError):
    """A tensor whose data is gone was read."""


class AbstractError(RuntimeError):
    """What has no data, or lies on devices that are not here, was read or run."""


class Leaf:
    """A value that exists: a device buffer, or host data that has not been uploaded yet; or an abstract one, of which
    only shape and layout are known (`is_abstract`), for programs that are compiled and never run.

    `sharding` says how the buffer lies (or will lie); `gone` says why a buffer is no longer there; `shared` is set when
    someone outside the graph holds the buffer, which then is never donated.
    """

    __slots__ = ("buffer", "gone", "holder", "host", "is_abstract", "maker", "meta", "serial", "sharding", "shared")

    def __init__(
        self,
        meta: Meta,
        *,
        buffer: jax.Array | None = None,
        host: np.ndarray | None = None,
        sharding: Sharding | None = None,
        maker: Any = None,
        is_abstract: bool = False,
    ):
        self.meta = meta
        self.buffer = buffer
        self.host = host
        self.sharding = sharding
        self.is_abstract = is_abstract
        self.shared = 0
        self.gone: str | None = None
        self.serial = next(_serials)  # counts on with the nodes'
        self.holder: Any = None  # weak reference to the cell whose value this is
        self.maker = maker  # weak reference to the program whose result this is

    def take(self, buffer: jax.Array, sharding: Sharding) -> None:
        """Has the same data in this buffer from now on."""
        self.buffer, self.sharding = buffer, sharding
        self.host = None

    def placed(self) -> tuple[jax.Array, Sharding]:
        """The buffer of a value that is on devices, and how it lies."""
        assert self.buffer is not None and self.sharding is not None
        return self.buffer, self.sharding

    def give_up(self, why: str) -> None:
        """Has no data from now on, and says why at the next use."""
        self.gone, self.buffer = why, None

    def is_lost(self) -> bool:
        """Whether its buffer was taken from it."""
        return self.buffer is not None and self.buffer.is_deleted()

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
        self.serial = next(_serials)

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

# The op that shows data without its padding (see `passes.padding`).
SHOWN = "spmd.shown"


def is_data(value: Value) -> bool:
    """Whether a value is there, and no run need make it: a leaf, or what is shown of one that has padding."""
    return type(value) is Leaf or (
        type(value) is Node and value.entry.name == SHOWN and type(value.operands[0]) is Leaf
    )


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


def _serial(node: Node) -> int:
    return node.serial


@dataclass(frozen=True, slots=True)
class Graph:
    """A piece of the lazy graph that is about to become one program.

    nodes in order of recording; leaves in order of first use; lies: how each leaf lies in the program, wherever it is
    now; roots: the values wanted; pinned: the sharding each root must have, or None where the compiler may choose;
    donated: per leaf, whether its buffer may be overwritten; mesh: the devices, in the program's order.
    """

    nodes: list[Node]
    leaves: list[Leaf]
    lies: list[Sharding]
    roots: list[Value]
    pinned: list[Sharding | None]
    donated: tuple[bool, ...]
    mesh: Sharding

    def meshes(self) -> list[Sharding]:
        """Every mesh that an input, an annotation or a result names, as its replicated sharding; the first, first."""
        named = [node.entry.sharding for node in walk(self.nodes)]
        found = {s.replicated(): None for s in (self.mesh, *self.lies, *self.pinned, *named) if s is not None}
        return list(found)

    def key(self) -> Hashable:
        """What makes two graphs the same program: ops with their static parts, wiring, layouts, donation, partitioner.

        The lifted numbers are not in it. Entries and metas are interned, so the key compares by identity.
        """
        position: dict[Value, int] = {}
        key: list[Any] = [config.partitioner, config.compiler_options, len(self.leaves), self.donated, self.mesh]
        for i, leaf in enumerate(self.leaves):
            position[leaf] = ~i
            key.append(leaf.meta)
        key.extend(self.lies)
        for i, node in enumerate(self.nodes):
            position[node] = i
            key.append(node.entry)
            for operand in node.operands:
                if type(operand) is Pick:
                    key.append(position[operand.node] + (operand.index + 1 << 40))
                else:
                    key.append(position[operand])
        key.append(tuple([_place(root, position) for root in self.roots]))
        key.append(tuple(self.pinned))
        return tuple(key)

    @property
    def encoded(self) -> str:
        """The key as text that is the same in every process (see `ir.encode`)."""
        return digest(self.key())


def _place(value: Value, position: dict[Value, int]) -> int:
    return position[value.node] + (value.index + 1 << 40) if isinstance(value, Pick) else position[value]
