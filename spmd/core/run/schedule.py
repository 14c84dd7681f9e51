"""The schedule of a graph: its meshes and subgraphs, the readers of values across them, and the
placement of arrays.

Not here: where a graph is cut (`passes.cuts`), running the subgraphs (`execute`).
"""

# Why one program for each mesh: XLA compiles a program for one set of devices. Data crosses between
# two programs, where it can be moved by the devices; inside one it would have to be replicated over
# both sets.
#
# Why a value written over data without a mark comes back in the data's sharding: with the
# compiler's choice instead, the results of a step would not fit the next one's program, which would
# be compiled again for them.

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from ..base.dtypes import is_exact
from ..base.state import derived
from ..graph.errors import AbstractError
from ..graph.graph import (
    DeviceData,
    Graph,
    Node,
    Value,
    is_unpadded,
    origin,
    topological,
    up_to,
    value_name,
)
from ..graph.source import describe, user_line
from ..passes.on_host import LARGEST
from ..programs.program import Program
from ..record import deferred
from ..record.annotations import current_sharding
from ..record.constraints import with_sharding
from ..record.record import at_once
from ..record.storage import LOCK, Storage, value_serial
from ..record.tensor import XlaTensor, wrap
from ..sharding.value import DEVICE, Sharding, Spec
from .pjrt import devices, processes, transfer
from .recording import recording

# A root of a run: a value, and the storage that takes it. A value from a storage's past leaves the
# storage as it is.
Root = tuple[Value, Storage]


class Prepared(NamedTuple):
    """A graph after the passes.

    program: where there is one. parts: the subgraphs that run in its place, if any. why_not: the
    reason of the first pass that could not change it.
    """

    graph: Graph
    program: Program | None = None
    parts: "Sequence[Subgraph]" = ()
    why_not: str = ""


class Subgraph(NamedTuple):
    """Ops that run together: as one program over a mesh or, without one, by themselves on the host.

    An op that belongs to no mesh may be in several subgraphs, each of which then computes it.
    is_final: it is not cut further. is_rest: iterations of a loop were cut out of it. ready: its
    graph and program, where they are known.
    """

    nodes: Sequence[Node]
    where: Sharding | None
    is_final: bool = False
    is_rest: bool = False
    ready: Prepared | None = None


def by_mesh(
    roots: Sequence[Root], nodes: Sequence[Node], inputs: Sequence[DeviceData]
) -> list[Subgraph]:
    """Splits a graph into a subgraph for each mesh. `mark_sharding` to another mesh starts a later
    subgraph of that mesh."""
    meshes = meshes_met(map(itemgetter(1), roots), nodes, inputs)
    # The common case: no op needs a home, and the graph is not walked again.
    if len(meshes) == 1:
        (mesh,) = meshes.values()
        return [Subgraph(nodes, mesh)]
    homes = mesh_homes(nodes)
    # The number of crossings between meshes on the way to an op.
    depth: dict[Node, int] = {}
    # By depth and home, the ops of one subgraph.
    nodes_of: dict[tuple[int, frozenset[int]], list[Node]] = {}
    for node in nodes:
        take_across([node])  # data crosses at once: its storage may be overwritten by then
        home = homes.get(node)
        if home is not None:
            deepest = max(
                (depth.get(maker, 0) for maker in map(origin, node.operands) if maker is not None),
                default=0,
            )
            depth[node] = deepest + crosses(node, homes)
            nodes_of.setdefault((depth[node], home), []).append(node)
    # Values that no mesh is named for run on the default devices, as a program of their own.
    homeless = [value for value, _ in roots if origin(value) not in homes]
    subgraphs = (
        [Subgraph(_with_homeless(homeless, (), homes), devices.default_sharding())]
        if homeless
        else []
    )
    for (_, home), nodes_here in sorted(nodes_of.items(), key=lambda item: item[0][0]):
        operands = [operand for node in nodes_here for operand in node.operands]
        subgraphs.append(Subgraph(_with_homeless(operands, nodes_here, homes), meshes[home]))
    return subgraphs


def _with_homeless(
    values: Iterable[Value], nodes: Sequence[Node], homes: Collection[Node]
) -> list[Node]:
    """The nodes of a subgraph together with the ops behind these values that belong to no mesh."""
    homeless = [maker for maker in map(origin, values) if maker is not None and maker not in homes]
    return sorted({*topological(homeless)[0], *nodes}, key=lambda node: node.serial)


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
    """The subgraphs of the host and the programs between them, each as early as its operands
    allow."""
    stage: dict[Node, int] = {}
    stages: dict[tuple[int, bool], list[Node]] = {}
    for node in subgraph.nodes:
        on_host = node in host_computed
        makers = [maker for maker in map(origin, node.operands) if maker is not None]
        # A new stage begins only where the host needs a result of a program: each boundary is a
        # wait.
        stage[node] = max(
            (stage[maker] + (on_host and maker not in host_computed) for maker in makers), default=0
        )
        # Within a stage the host computes first.
        stages.setdefault((stage[node], not on_host), []).append(node)
    return [Subgraph(stages[key], subgraph.where if key[1] else None) for key in sorted(stages)]


class Flow:
    """The readers of values across the subgraphs of a schedule and `deferred_nodes`, the ops
    recorded behind it.

    last: by name of a value, its last reading subgraph (`deferred_nodes` count as one). passed:
    data computed for later subgraphs alone. subgraph_of: by node, its first subgraph; empty for a
    schedule of one. read_elsewhere: the names of values that ops of other threads, and lists of
    tokens that stay recorded, read.
    """

    def __init__(
        self,
        subgraphs: Sequence[Subgraph],
        deferred_nodes: Sequence[Node],
        roots: Sequence[Root],
        passed: set[DeviceData],
    ):
        """Finds the readers of values across the subgraphs. Subgraph -1 takes the roots that no op
        of these computes."""
        self.roots = roots
        self.subgraphs = subgraphs
        self.passed = passed
        # by subgraph, the values that later subgraphs read
        self.carried: defaultdict[int, list[Value]] = defaultdict(list)
        self.readers: dict[Hashable, list[Node]] = {}
        self.last: dict[Hashable, int] = {}
        self.read_elsewhere: set[Hashable] = set()
        self.subgraph_of: dict[Node | None, int] = {}
        self._several = several = set[Node]()  # ops that are in several subgraphs
        self._wanted: dict[int, list[Root]] = {}  # of each subgraph, the roots that it computes
        # One subgraph has no readers across: nothing of this is needed for most steps.
        if len(subgraphs) == 1 and not deferred_nodes:
            return
        for index, subgraph in enumerate(subgraphs):
            several |= {
                node for node in subgraph.nodes if self.subgraph_of.setdefault(node, index) != index
            }
        for index, nodes in enumerate(
            [*(subgraph.nodes for subgraph in subgraphs), deferred_nodes]
        ):
            for node in nodes:
                for operand in node.operands:
                    maker = origin(operand)
                    if maker is None:
                        self._read(operand, index)
                    elif (
                        maker in self.subgraph_of
                        and self.subgraph_of[maker] != index
                        and maker not in several
                    ):
                        if value_name(operand) not in self.readers:
                            self.carried[self.subgraph_of[maker]].append(operand)
                        self._read(operand, index, node)
        for root in roots:
            self._wanted.setdefault(self.subgraph_of.get(origin(root[0]), -1), []).append(root)
        self.owners = {
            value_name(value): storage
            for _, storage in roots
            for value in (*(storage.past or ()), storage.value)
        } | {value_name(value): storage for value, storage in roots}

    def _read(self, value: Value, index: int, node: Node | None = None) -> None:
        """Notes that a subgraph reads a value. node: the reader, if another subgraph makes it."""
        name = value_name(value)
        self.last[name] = max(index, self.last.get(name, 0))
        if node is not None:
            self.readers.setdefault(name, []).append(node)

    def roots_of(self, index: int) -> list[Root]:
        """The values that a subgraph must compute: roots, and values that later subgraphs read."""
        if not self.subgraph_of:
            return list(self.roots)
        roots = list(self._wanted.get(index, ()))
        names = {value_name(value) for value, _ in roots}
        for value in self.carried[index]:
            if value_name(value) not in names:
                roots.append(
                    (
                        value,
                        self._owner(value, self.subgraphs[index].where)
                        or Storage(value, value.meta),
                    )
                )
        # In the order of recording, as the roots of a whole graph are: a part that is met again is
        # the same program.
        return sorted(roots, key=lambda root: value_serial(root[0]))

    def _owner(self, value: Value, mesh: Sharding | None) -> Storage | None:
        """The storage that held a value, unless it has been taken to another mesh since."""
        storage = self.owners.get(value_name(value))
        if (
            storage is None
            or storage.sharding is None
            or mesh is None
            or storage.sharding.devices == mesh.devices
        ):
            return storage
        return None

    def substitute(self, replacements: Mapping[Hashable, DeviceData | Node]) -> None:
        """Replaces operands of later subgraphs by these results, by name."""
        readers: dict[Node, None] = {}
        for name, device_data in replacements.items():
            self.last[device_data] = self.last.get(name, -1)
            if name in self.read_elsewhere:
                self.read_elsewhere.add(device_data)
            readers |= dict.fromkeys(self.readers.pop(name, ()))
        for node in readers:
            node.operands = tuple(
                replacements.get(value_name(operand), operand) for operand in node.operands
            )
        # A value that another mesh reads is moved as soon as it is there, while the next program is
        # prepared.
        if readers:
            self.passed.update(take_across(readers))

    def release(self, index: int, rerunnable_nodes: Collection[Node]) -> None:
        """Frees the data whose last reader was this subgraph: its ops but `rerunnable_nodes` drop
        their operands."""
        for node in self.subgraphs[index].nodes:
            for operand in node.operands:
                if type(operand) is DeviceData and self.last.get(operand, -1) <= index:
                    self.last.pop(operand, None)
            # Dropped operands free what they hold: the peak of a long graph is that of its parts.
            # An unpadded view is the value of its tensor before and after the run.
            is_run = node not in rerunnable_nodes and not is_unpadded(node)
            if is_run and node not in self._several:
                node.operands = ()

    def add_foreign_readers(self, values: Sequence[Value]) -> None:
        """Adds the ops that other threads have recorded as readers, and the ops behind these up to
        the graph's roots."""
        # A root has data when this schedule has run: what is behind it is not read by others.
        for node in up_to(values, {value_name(value) for value, _ in self.roots}):
            for name in map(value_name, node.operands):
                self.read_elsewhere.add(name)
                self.readers.setdefault(name, []).append(node)


class MeshesError(ValueError):
    """Values on different devices would have to share a program; `node` is the op that mixes
    them."""

    def __init__(self, message: str, node: Node):
        super().__init__(message)
        self.node = node


def meshes_met(
    storages: Iterable[Storage], nodes: Iterable[Node], inputs: Iterable[DeviceData]
) -> dict[frozenset[int], Sharding]:
    """The meshes of annotations and data, by their devices; the first device without annotations.
    Meshes over the same devices share a program, in the device order of the first.
    """
    # Lists, as this runs at each sync, over all that is recorded.
    requested = [*[storage.sharding for storage in storages], *[node.op.sharding for node in nodes]]
    mesh_of: dict[frozenset[int], Sharding] = {}
    for sharding in dict.fromkeys([*requested, *map(intended_sharding, inputs)]):
        if sharding is not None:
            mesh_of.setdefault(sharding.devices, sharding)
    if len(mesh_of) != 1:
        default = devices.default_sharding()
        if not mesh_of:
            return {default.devices: default}
        # Unannotated data on the first device joins the mesh: a scalar made without one must not
        # make a second program.
        mesh_of.pop(default.devices, None)
    return {ids: sharding.replicated() for ids, sharding in mesh_of.items()}


def check_here(mesh: Sharding) -> None:
    """Raises AbstractError where a program would run on devices that are not here."""
    if mesh.target is not None and recording.value is None:
        raise AbstractError(
            f"a program over the mesh of {mesh!r} cannot run at {user_line()}: its devices are "
            "not here, and programs for them are only lowered and compiled"
        )


def mesh_homes(nodes: Iterable[Node]) -> dict[Node, frozenset[int]]:
    """The devices on which each op must run, where an annotation or an input names them.

    Raises MeshesError for an op between two meshes; only `mark_sharding` takes a value from one to
    another.
    """
    homes: dict[Node, frozenset[int]] = {}
    for node in nodes:
        candidates = {
            home for operand in node.operands if (home := home_of(operand, homes)) is not None
        }
        # An annotation may move a value: its readers are at home on the devices that it names.
        if node.op.sharding is not None:
            candidates = {node.op.sharding.devices}
        if len(candidates) > 1:
            shown = " and ".join(sorted(str(sorted(ids, key=str)) for ids in candidates))
            raise MeshesError(
                f"{describe(node)} mixes values on devices {shown}: one program cannot span "
                "meshes with different devices. Take one of them to the other's mesh with "
                "mark_sharding first.",
                node,
            )
        if candidates:
            homes[node] = candidates.pop()
    return homes


def home_of(value: Value, homes: dict[Node, frozenset[int]]) -> frozenset[int] | None:
    """The devices on which a value is or must be computed; None where nothing names them."""
    if isinstance(value, DeviceData):
        sharding = intended_sharding(value)
        return (
            None if sharding is None or sharding is devices.default_sharding() else sharding.devices
        )
    node = origin(value)
    return None if node is None else homes.get(node)


def crosses(node: Node, homes: dict[Node, frozenset[int]]) -> bool:
    """True if a node annotates a value for other devices than it is computed on."""
    if node.op.sharding is None:
        return False
    home = home_of(node.operands[0], homes)
    return home is not None and home != node.op.sharding.devices


def moved(device_data: DeviceData, target: Sharding) -> DeviceData:
    """The same data on another mesh."""
    if device_data.is_abstract or (recording.value is not None and device_data.host is None):
        return DeviceData(device_data.meta, sharding=target, is_abstract=True)
    device_data.check()
    if device_data.host is not None:
        result = DeviceData(
            device_data.meta, host=device_data.host, sharding=target, source=device_data.source
        )
    else:
        buffer, sharding = device_data.placed()
        buffer = transfer.move(buffer, device_data.meta.shape, sharding, target)
        result = DeviceData(
            device_data.meta,
            buffer=buffer,
            sharding=target,
            maker=device_data.maker,
            source=device_data.source,
        )
    return derived(result, device_data, lambda data: moved(data, target))


def placed_like(tensor: XlaTensor, target: XlaTensor) -> XlaTensor:
    """A tensor of the same value on the devices of `target`, or the tensor itself where it needs no
    move. Of an equal shape it is sharded like `target`, else replicated; it is annotated only if
    `target` is."""
    requested, present = target._storage.sharding, tensor._storage.sharding
    sharding = requested or current_sharding(target) or devices.default_sharding()
    # A tensor of another shape needs a move only from other devices.
    if tensor.shape != target.shape:
        if present is None or present.devices == sharding.devices:
            return tensor
        sharding, requested = sharding.replicated(), requested and requested.replicated()
    if present is requested or not tensor.numel():
        return tensor
    if tensor._view is not None or type(tensor._storage.value) is not DeviceData:
        result = with_sharding(tensor, sharding)
        result._storage.sharding = requested
        return result
    with LOCK:
        device_data = tensor._storage.value
        data = moved(device_data, sharding)
        # Host data is not moved yet: its upload goes where it is requested.
        if data.host is not None:
            data.sharding = requested
        return wrap(tensor._meta, Storage(data, tensor._storage.meta, requested))


def intended_sharding(device_data: DeviceData) -> Sharding | None:
    """The sharding that device data has, or is to have at its upload: its storage's."""
    if device_data.host is None:
        return device_data.sharding
    storage = device_data.holder() if device_data.holder is not None else None
    if storage is None:
        return device_data.sharding
    return storage.home if storage.sharding is None else storage.sharding.closed()


def sharding_over(device_data: DeviceData, mesh: Sharding) -> Sharding:
    """The sharding of device data in a program over `mesh`: the requested or the present one;
    replicated where it comes from other devices."""
    requested = intended_sharding(device_data)
    if requested is None:
        return mesh
    return (
        requested if requested.devices == mesh.devices else mesh.with_spec(Spec(), requested.memory)
    )


def is_passed_from_host(device_data: DeviceData, sharding: Sharding) -> bool:
    """True for host integers that a program takes without an upload: decoding has new ones for each
    token."""
    meta = device_data.meta
    is_decoding = at_once.value is not None
    return (
        is_decoding
        and meta.numel <= LARGEST
        and is_exact(meta.dtype)
        and device_data.host is not None
        and sharding.is_replicated()
        and not device_data.is_state
    )


def bring(
    inputs: Iterable[DeviceData], shardings: Iterable[Sharding], *, stays: bool = True
) -> None:
    """Transfers inputs to the program's devices. stays=False: skips small host data."""
    for device_data, sharding in zip(inputs, shardings, strict=True):
        if device_data.host is not None:
            if not stays and is_passed_from_host(device_data, sharding):
                continue
            if processes.several():
                # All processes must upload the same values.
                checksum = transfer.sample_checksum(device_data.host)
                event_text = (
                    f"the upload of {device_data.meta!r}, its "
                    f"{processes.digest('values', checksum)},"
                )
                processes.note(event_text, checksum, user_line())
            buffer = transfer.upload(device_data.host, sharding)
        elif device_data.is_abstract or device_data.sharding is not sharding:
            device_data.check()
            old, old_sharding = device_data.placed()
            buffer = transfer.move(old, device_data.meta.shape, old_sharding, sharding)
        else:
            continue
        device_data.take(buffer, sharding)
        storage = device_data.holder() if device_data.holder is not None else None
        if storage is not None and deferred.values([storage])[0] is device_data:
            storage.set_home(sharding)


def pinned_sharding(storage: Storage, mesh: Sharding) -> Sharding | None:
    """The sharding that a result must have; None where the compiler may choose."""
    if storage.sharding is not None:
        # An open one is requested by the value's last op (see `roots_of`).
        return None if storage.sharding.is_open else storage.sharding
    if len(mesh.device_ids) == 1:
        return mesh.with_spec(Spec(), _memory_of(storage))
    # A result keeps the sharding of overwritten data: one step's output fits the next.
    if storage.data is not None:
        return sharding_over(storage.data, mesh)
    return (
        storage.home if storage.home is not None and storage.home.devices == mesh.devices else None
    )


def _memory_of(storage: Storage) -> str:
    """The memory kind of a value without an annotation: the former one, or its op's."""
    if storage.home is not None:
        return storage.home.memory
    node = origin(storage.value)
    return DEVICE if node is None else node.op.memory


def written_over(
    device_data: DeviceData,
    sharding: Sharding,
    requested: dict[Storage, tuple[int, Sharding | None]],
) -> int | None:
    """The index of the result, of the same layout, that takes this buffer; None unless the storage
    of the result is the buffer's only holder."""
    storage = device_data.holder() if device_data.holder is not None else None
    if (
        storage is None
        or storage not in requested
        or storage.value is device_data
        or storage.data not in (None, device_data)
    ):
        return None
    index, pinned = requested[storage]
    return index if pinned is sharding and storage.meta.struct == device_data.meta.struct else None
