"""How a graph is run: a schedule of pieces, each on one mesh or on the host; who reads what of whom across them.

Not here: where a graph is cut (`cutting`), running the pieces (`execute`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..ir.graph import Leaf, Node, Value, origin, topological, value_name
from ..lazy.cell import Cell, value_serial
from ..pjrt import devices
from ..sharding.value import Sharding
from .placement import crosses, mesh_homes, meshes_met, moved

# What a run computes: a value, and the cell that takes it. A value from a cell's past leaves the cell as it is.
Root = tuple[Value, Cell]


class Piece(NamedTuple):
    """Ops that run together: as one program over a mesh or, without one, by themselves on the host.

    An op that no mesh has a claim on may be in several pieces, each of which then computes it. is_whole: it is not cut
    further. is_rest: iterations of a loop were cut out of it.
    """

    nodes: Sequence[Node]
    where: Sharding | None
    is_whole: bool = False
    is_rest: bool = False


def by_mesh(roots: Sequence[Root], nodes: Sequence[Node], leaves: Sequence[Leaf]) -> list[Piece]:
    """A piece for each mesh; where `mark_sharding` takes a value from one to another, what reads it there is a piece
    behind."""
    meshes = meshes_met((cell for _, cell in roots), nodes, leaves)
    if len(meshes) == 1:
        return [Piece(nodes, mesh) for mesh in meshes.values()]
    homes = mesh_homes(nodes)
    depth: dict[Node, int] = {}
    claimed: dict[tuple[int, frozenset[int]], list[Node]] = {}
    for node in nodes:
        take_across([node])  # data crosses at once: what holds it may be overwritten by then
        home = homes.get(node)
        if home is not None:
            behind = max((depth.get(maker, 0) for maker in map(origin, node.operands) if maker is not None), default=0)
            depth[node] = behind + crosses(node, homes)
            claimed.setdefault((depth[node], home), []).append(node)
    free = [value for value, _ in roots if origin(value) not in homes]
    pieces = [Piece(_with_unclaimed(free, (), homes), devices.default_sharding())] if free else []
    for (_, home), own in sorted(claimed.items(), key=lambda item: item[0][0]):
        operands = [operand for node in own for operand in node.operands]
        pieces.append(Piece(_with_unclaimed(operands, own, homes), meshes[home]))
    return pieces


def _with_unclaimed(values: Iterable[Value], own: Sequence[Node], homes: dict[Node, Any]) -> list[Node]:
    """These ops of a piece and those that no mesh has a claim on behind these values."""
    unclaimed = [maker for maker in map(origin, values) if maker is not None and maker not in homes]
    return sorted({*topological(unclaimed)[0], *own}, key=lambda node: node.serial)


def take_across(nodes: Iterable[Node]) -> list[Leaf]:
    """Copies data that `mark_sharding` takes to other devices than it is on there; returns the copies."""
    copies = []
    for node in nodes:
        first = node.operands[0] if node.operands else None
        if type(first) is Leaf and crosses(node, {}):
            assert node.entry.sharding is not None, "a crossing names its target"
            copies.append(moved(first, node.entry.sharding))
            node.operands = (copies[-1],)
    return copies


def beside_host(piece: Piece, hosted: set[Node]) -> list[Piece]:
    """What the host computes, and between it the programs, each as soon as what it reads is there."""
    stage: dict[Node, int] = {}
    stages: dict[tuple[int, bool], list[Node]] = {}
    for node in piece.nodes:
        on_host = node in hosted
        behind = [maker for maker in map(origin, node.operands) if maker is not None]
        stage[node] = max((stage[maker] + (on_host and maker not in hosted) for maker in behind), default=0)
        stages.setdefault((stage[node], not on_host), []).append(node)
    return [Piece(stages[at], piece.where if at[1] else None) for at in sorted(stages)]


class Flow:
    """Who reads what across the pieces of a schedule and the ops (`rest`) that stay recorded behind it.

    last: the last piece that reads a value, by its name; `rest` counts as one. passed: data that a run has made for
    later pieces alone.
    """

    def __init__(self, pieces: Sequence[Piece], rest: Sequence[Node], roots: Sequence[Root], passed: set[Leaf]):
        self.roots = roots
        self.pieces = pieces
        self.end = len(pieces)
        self.passed = passed
        self.carried: list[list[Value]] = [[] for _ in pieces]  # of each piece, what later ones read
        self.readers: dict[Any, list[Node]] = {}
        self.last: dict[Any, int] = {}
        self.others: set[Any] = set()  # what other threads' ops read
        self.part: dict[Node | None, int] = {}
        self._several = several = set[Node]()  # ops that more than one piece has
        self._wanted: dict[int, list[Root]] = {}  # of each piece, the roots that it computes
        if self.end == 1 and not rest:
            return
        for here, piece in enumerate(pieces):
            several |= {node for node in piece.nodes if self.part.setdefault(node, here) != here}
        for here, nodes in enumerate([*(piece.nodes for piece in pieces), rest]):
            for node in nodes:
                for operand in node.operands:
                    maker = origin(operand)
                    if maker is None:
                        self._read(operand, here)
                    elif maker in self.part and self.part[maker] != here and maker not in several:
                        if value_name(operand) not in self.readers:
                            self.carried[self.part[maker]].append(operand)
                        self._read(operand, here, node)
        for root in roots:
            self._wanted.setdefault(self.part.get(origin(root[0]), -1), []).append(root)
        self.owners = {value_name(value): cell for _, cell in roots for value in (*(cell.past or ()), cell.value)} | {
            value_name(value): cell for value, cell in roots
        }

    def _read(self, value: Value, here: int, node: Node | None = None) -> None:
        name = value_name(value)
        self.last[name] = max(here, self.last.get(name, 0))
        if node is not None:
            self.readers.setdefault(name, []).append(node)

    def roots_of(self, here: int) -> list[Root]:
        """What a piece must compute: values that are wanted, and those that later pieces read."""
        if not self.part:
            return list(self.roots)
        found = list(self._wanted.get(here, ()))
        known = {value_name(value) for value, _ in found}
        for value in self.carried[here]:
            if value_name(value) not in known:
                found.append((value, self._owner(value, self.pieces[here].where) or Cell(value, value.meta)))
        return sorted(found, key=lambda root: value_serial(root[0]))

    def _owner(self, value: Value, mesh: Sharding | None) -> Cell | None:
        """The cell that held a value, unless it has been taken to another mesh since."""
        cell = self.owners.get(value_name(value))
        if cell is None or cell.sharding is None or mesh is None or cell.sharding.devices == mesh.devices:
            return cell
        return None

    def is_read_after(self, leaf: Leaf, here: int) -> bool:
        return self.last.get(leaf, -1) > here

    def is_read_by_others(self, leaf: Leaf) -> bool:
        return leaf in self.others

    def give(self, made: Mapping[Any, Leaf | Node]) -> None:
        """Puts data in the place of values that later pieces read."""
        readers: dict[Node, None] = {}
        for name, leaf in made.items():
            self.last[leaf] = self.last.get(name, -1)
            if name in self.others:
                self.others.add(leaf)
            readers |= dict.fromkeys(self.readers.pop(name, ()))
        for node in readers:
            node.operands = tuple(made.get(value_name(operand), operand) for operand in node.operands)
        self.passed.update(take_across(readers))

    def release(self, here: int, kept: Collection[Node]) -> None:
        """Frees what a piece that has run was the last to read: its ops, but those to be kept, let go of it."""
        for node in self.pieces[here].nodes:
            for operand in node.operands:
                if type(operand) is Leaf and self.last.get(operand, -1) <= here:
                    self.last.pop(operand, None)
            if node not in kept and node not in self._several:
                node.operands = ()

    def add_others(self, values: Sequence[Value]) -> None:
        """Takes into account what other threads have recorded: it reads results, and of what is inside a piece all that
        is behind it."""
        wanted = {value_name(value) for value, _ in self.roots}
        seen: set[Node] = set()
        stack = [maker for maker in map(origin, values) if maker is not None]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            for operand in node.operands:
                name = value_name(operand)
                self.others.add(name)
                self.readers.setdefault(name, []).append(node)
                maker = origin(operand)
                if maker is not None and name not in wanted:
                    stack.append(maker)
