"""The schedule of a graph: subgraphs, each on one mesh or on the host, and the readers of values across them.

Not here: where a graph is cut (`passes.cuts`), running the subgraphs (`execute`).
"""

# Why one program for each mesh: XLA compiles a program for one set of devices. Data crosses between two programs, where
# it can be moved by the devices; inside one it would have to be replicated over both sets.

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..graph.graph import DeviceData, Node, Value, origin, topological, value_name
from ..record.storage import Storage, value_serial
from ..sharding.value import Sharding
from .pjrt import devices
from .placement import crosses, mesh_homes, meshes_met, moved

# A root of a run: a value, and the storage that takes it. A value from a storage's past leaves the storage as it is.
Root = tuple[Value, Storage]


class Subgraph(NamedTuple):
    """Ops that run together: as one program over a mesh or, without one, by themselves on the host.

    An op that belongs to no mesh may be in several subgraphs, each of which then computes it. is_final: it is not cut
    further. is_rest: iterations of a loop were cut out of it.
    """

    nodes: Sequence[Node]
    where: Sharding | None
    is_final: bool = False
    is_rest: bool = False


def by_mesh(roots: Sequence[Root], nodes: Sequence[Node], inputs: Sequence[DeviceData]) -> list[Subgraph]:
    """A subgraph for each mesh; where `mark_sharding` takes a value from one to another, the ops that read it there are
    a later subgraph."""
    meshes = meshes_met((storage for _, storage in roots), nodes, inputs)
    if len(meshes) == 1:
        (mesh,) = meshes.values()
        return [Subgraph(nodes, mesh)]
    homes = mesh_homes(nodes)
    depth: dict[Node, int] = {}
    claimed: dict[tuple[int, frozenset[int]], list[Node]] = {}
    for node in nodes:
        take_across([node])  # data crosses at once: its storage may be overwritten by then
        home = homes.get(node)
        if home is not None:
            deepest = max((depth.get(maker, 0) for maker in map(origin, node.operands) if maker is not None), default=0)
            depth[node] = deepest + crosses(node, homes)
            claimed.setdefault((depth[node], home), []).append(node)
    free = [value for value, _ in roots if origin(value) not in homes]
    subgraphs = [Subgraph(_with_unclaimed(free, (), homes), devices.default_sharding())] if free else []
    for (_, home), nodes_here in sorted(claimed.items(), key=lambda item: item[0][0]):
        operands = [operand for node in nodes_here for operand in node.operands]
        subgraphs.append(Subgraph(_with_unclaimed(operands, nodes_here, homes), meshes[home]))
    return subgraphs


def _with_unclaimed(values: Iterable[Value], own: Sequence[Node], homes: Collection[Node]) -> list[Node]:
    """The ops of a subgraph's own and the ops of no mesh behind these values."""
    unclaimed = [maker for maker in map(origin, values) if maker is not None and maker not in homes]
    return sorted({*topological(unclaimed)[0], *own}, key=lambda node: node.serial)


def take_across(nodes: Iterable[Node]) -> list[DeviceData]:
    """Copies data to the devices to which `mark_sharding` takes it; returns the copies."""
    copies = []
    for node in nodes:
        first = node.operands[0] if node.operands else None
        if type(first) is DeviceData and crosses(node, {}):
            assert node.op.sharding is not None, "a crossing names its target"
            copies.append(moved(first, node.op.sharding))
            node.operands = (copies[-1],)
    return copies


def around_host(subgraph: Subgraph, host_computed: set[Node]) -> list[Subgraph]:
    """The subgraphs that the host computes and the programs between them, each as soon as its operands are there."""
    stage: dict[Node, int] = {}
    stages: dict[tuple[int, bool], list[Node]] = {}
    for node in subgraph.nodes:
        on_host = node in host_computed
        makers = [maker for maker in map(origin, node.operands) if maker is not None]
        stage[node] = max((stage[maker] + (on_host and maker not in host_computed) for maker in makers), default=0)
        stages.setdefault((stage[node], not on_host), []).append(node)
    return [Subgraph(stages[at], subgraph.where if at[1] else None) for at in sorted(stages)]


class Flow:
    """The readers of values across the subgraphs of a schedule and the ops (`rest`) that stay recorded behind it.

    last: the last subgraph that reads a value, by its name; `rest` counts as one. passed: data that a run has made for
    later subgraphs alone.
    """

    def __init__(
        self, subgraphs: Sequence[Subgraph], rest: Sequence[Node], roots: Sequence[Root], passed: set[DeviceData]
    ):
        self.roots = roots
        self.subgraphs = subgraphs
        self.end = len(subgraphs)
        self.passed = passed
        self.carried: list[list[Value]] = [[] for _ in subgraphs]  # of each subgraph, the values that later ones read
        self.readers: dict[Hashable, list[Node]] = {}
        self.last: dict[Hashable, int] = {}
        self.others: set[Hashable] = set()  # the values that other threads' ops read
        self.part: dict[Node | None, int] = {}
        self._several = several = set[Node]()  # ops that are in several subgraphs
        self._wanted: dict[int, list[Root]] = {}  # of each subgraph, the roots that it computes
        if self.end == 1 and not rest:
            return
        for index, subgraph in enumerate(subgraphs):
            several |= {node for node in subgraph.nodes if self.part.setdefault(node, index) != index}
        for index, nodes in enumerate([*(subgraph.nodes for subgraph in subgraphs), rest]):
            for node in nodes:
                for operand in node.operands:
                    maker = origin(operand)
                    if maker is None:
                        self._read(operand, index)
                    elif maker in self.part and self.part[maker] != index and maker not in several:
                        if value_name(operand) not in self.readers:
                            self.carried[self.part[maker]].append(operand)
                        self._read(operand, index, node)
        for root in roots:
            self._wanted.setdefault(self.part.get(origin(root[0]), -1), []).append(root)
        self.owners = {
            value_name(value): storage for _, storage in roots for value in (*(storage.past or ()), storage.value)
        } | {value_name(value): storage for value, storage in roots}

    def _read(self, value: Value, here: int, node: Node | None = None) -> None:
        name = value_name(value)
        self.last[name] = max(here, self.last.get(name, 0))
        if node is not None:
            self.readers.setdefault(name, []).append(node)

    def roots_of(self, here: int) -> list[Root]:
        """The values that a subgraph must compute: roots, and values that later subgraphs read."""
        if not self.part:
            return list(self.roots)
        roots = list(self._wanted.get(here, ()))
        names = {value_name(value) for value, _ in roots}
        for value in self.carried[here]:
            if value_name(value) not in names:
                roots.append((value, self._owner(value, self.subgraphs[here].where) or Storage(value, value.meta)))
        return sorted(roots, key=lambda root: value_serial(root[0]))

    def _owner(self, value: Value, mesh: Sharding | None) -> Storage | None:
        """The storage that held a value, unless it has been taken to another mesh since."""
        storage = self.owners.get(value_name(value))
        if storage is None or storage.sharding is None or mesh is None or storage.sharding.devices == mesh.devices:
            return storage
        return None

    def is_read_after(self, device_data: DeviceData, here: int) -> bool:
        return self.last.get(device_data, -1) > here

    def is_read_by_others(self, device_data: DeviceData) -> bool:
        return device_data in self.others

    def give(self, made: Mapping[Hashable, DeviceData | Node]) -> None:
        """Puts data in the place of values that later subgraphs read."""
        readers: dict[Node, None] = {}
        for name, device_data in made.items():
            self.last[device_data] = self.last.get(name, -1)
            if name in self.others:
                self.others.add(device_data)
            readers |= dict.fromkeys(self.readers.pop(name, ()))
        for node in readers:
            node.operands = tuple(made.get(value_name(operand), operand) for operand in node.operands)
        self.passed.update(take_across(readers))

    def release(self, here: int, kept: Collection[Node]) -> None:
        """Frees the data that a subgraph which has run was the last to read: its ops, but those in `kept`, drop their
        operands."""
        for node in self.subgraphs[here].nodes:
            for operand in node.operands:
                if type(operand) is DeviceData and self.last.get(operand, -1) <= here:
                    self.last.pop(operand, None)
            if node not in kept and node not in self._several:
                node.operands = ()

    def add_others(self, values: Sequence[Value]) -> None:
        """Takes into account the ops that other threads have recorded: these read results, and of the values inside a
        subgraph all that is behind them."""
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
