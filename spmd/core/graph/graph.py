"""The recorded values, Node and TupleElement; the Graph of one program; the Region, an op's
body."""

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from operator import attrgetter
from types import CodeType
from typing import NamedTuple, TypeGuard

from ...ops.partition import NAMES
from ..base.config import config
from ..sharding.topology import stand_in
from ..sharding.value import Sharding
from .meta import Meta, dense_meta
from .op import OpSpec, digest
from .store import DeviceData, Replaced, StackGroup, next_serial

# The flags that make two programs of one graph.
SETTINGS = (
    "partitioner",
    "compiler_options",
    "scan_layers",
    "max_logits_bytes",
    "parallel",
    "document_length",
    "micro_batches",
)
settings = attrgetter(*SETTINGS)


# With slots, as a step records thousands of nodes, each of which would else have a dict.
@dataclass(slots=True, eq=False, repr=False)
class Node:
    """One recorded op: its OpSpec, its operands, its scalar arguments, and the user's line.

    A Node stands for its result; an op with several results has one Node and a `TupleElement` per
    result. `serial` counts recorded ops: sorting by it is a topological order; it is a fraction for
    an op that a pass inserts between two others. `sequence`: autograd's number of the forward op.
    """

    op: OpSpec
    operands: "Sequence[Value]"
    numbers: Sequence[float | int] = ()
    code: CodeType | None = None
    instruction: int = 0
    sequence: int = -1
    serial: float = field(init=False, default_factory=next_serial)

    @property
    def meta(self) -> Meta:
        return self.op.metas[0]

    def with_operands(self, operands: "Iterable[Value]") -> "Node":
        """Returns a copy of the op with other operands, recorded now."""
        return Node(
            self.op, tuple(operands), self.numbers, self.code, self.instruction, self.sequence
        )


@dataclass(slots=True, eq=False, repr=False)
class TupleElement:
    """One result of an op that has several."""

    node: Node
    index: int

    @property
    def meta(self) -> Meta:
        return self.node.op.metas[self.index]


Value = Node | TupleElement | DeviceData

# The op that reads padded data without its padding (see `passes.dynamic`).
UNPADDED = "spmd.unpadded"


def is_data(value: Value) -> bool:
    """True if a value exists without a run: device data, or the unpadded view of padded device
    data."""
    return type(value) is DeviceData or is_unpadded(value)


def is_unpadded(value: Value | None) -> TypeGuard[Node]:
    """True if a value is the unpadded view of padded device data."""
    return (
        type(value) is Node and value.op.name == UNPADDED and type(value.operands[0]) is DeviceData
    )


def results(node: Node) -> Sequence[Value]:
    """Returns a value for each result of a recorded op."""
    count = len(node.op.metas)
    return [node] if count == 1 else [TupleElement(node, index) for index in range(count)]


def origin(value: Value) -> Node | None:
    """Returns the recorded op that computes a value, or None for device data."""
    return (
        value
        if isinstance(value, Node)
        else value.node
        if isinstance(value, TupleElement)
        else None
    )


def result_index(value: Value) -> int:
    """Returns the index of a value among the results of its op; 0 unless it is a tuple element."""
    return value.index if type(value) is TupleElement else 0


# Of a value, hashable: the results of one node are new TupleElements at each call of `results`.
Name = Node | DeviceData | tuple[Node, int]


def value_name(value: Value) -> Name:
    """Returns a key that identifies a value, equal for equal tuple elements."""
    return (value.node, value.index) if isinstance(value, TupleElement) else value


def topological(roots: Sequence[Value]) -> tuple[list[Node], list[DeviceData]]:
    """Returns every node that the roots need, as recorded, and their device data in the order of
    first use."""
    nodes = up_to(roots, ())
    inputs = [operand for node in nodes for operand in node.operands if type(operand) is DeviceData]
    return nodes, list(dict.fromkeys(inputs))


def walk(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields these nodes in order, and before each node those of its regions."""
    for node in nodes:
        # The ops inside first, as they are lowered before the results of their op are there.
        for region in node.op.lowering.regions:
            yield from walk(region.nodes)
        yield node


def pack_numbers(nodes: Sequence[Node]) -> tuple[list[float], list[int]]:
    """Returns the scalar arguments of the nodes, in the order in which the program unpacks them."""
    # Two vectors for all scalar arguments of a program: separate arguments would cost a transfer
    # each, and constants a compilation for each value, as of a learning rate that decays.
    floats: list[float] = []
    integers: list[int] = []
    for node in nodes:
        if node.numbers:
            for kind, number in zip(node.op.numbers, node.numbers, strict=True):
                (floats if kind == "f" else integers).append(number)  # type: ignore[arg-type]  # of the type of its kind
    return floats, integers


# Integers are passed as int64; larger ones that torch takes (for uint64, and rounded for floats)
# are static.
LARGEST = 2**63 - 1


def is_one_number(values: Sequence[object]) -> bool:
    """True if a list of scalar arguments is one number many times, as an optimizer's bias
    corrections are.

    It is one operand then: XLA compiles the kernels of many tensors as one when they read the same
    number.
    """
    kinds = set(map(type, values))
    are_numbers = len(kinds) == 1 and bool not in kinds and issubclass(kinds.pop(), (float, int))
    return are_numbers and values.count(values[0]) == len(values)


_serial = attrgetter("serial")


class Port(NamedTuple):
    """One argument or result of a program: one input or root, by its index, or a stack group of
    them.

    meta, sharding: those of the stack, for a stack group.
    """

    indices: int | StackGroup
    meta: Meta
    sharding: Sharding | None
    is_donated: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """The part of the lazy graph that becomes one program.

    The key leaves out `onto` and `free`: they only choose the memory of results.

    Attributes:
        nodes: in the order of recording.
        inputs: in the order of first use.
        shardings: of each input in the program; its data may be placed otherwise.
        roots: the values to compute.
        pinned: the required sharding of each root; None: the compiler chooses.
        donated: per input, True if a result may take its buffer.
        mesh: the devices, in the program's order.
        stack_groups: indices of inputs that form one argument, a stack [rows, *shape]. The inputs
            of a group have one meta and one sharding, and are donated together.
        stacked: the stack groups of results, as indices of roots; ~i is input i of a donated group,
            returned unchanged.
        onto: per input, the index of the root that overwrites it.
        free: inputs that no tensor holds and no later op reads: a pass may donate them.
        columns: stack groups of inputs that are separate arguments and are stacked by the program.
        replaced: by result, or stack of results, the inputs of equal meta and sharding that it
            overwrites: their device data takes its buffer.
        recorded: the graph before the passes, if they replaced its nodes. Scalar arguments of the
            new nodes are indices into those of the recorded ops.
        sources: for each new node its recorded nodes; for a loop, those of its first iteration.
        notes: (pass, its change or its reason for none) of each pass with a note.
    """

    nodes: list[Node]
    inputs: list[DeviceData]
    shardings: list[Sharding]
    roots: list[Value]
    pinned: list[Sharding | None]
    donated: tuple[bool, ...]
    mesh: Sharding
    stack_groups: tuple[StackGroup, ...] = ()
    stacked: tuple[StackGroup, ...] = ()
    onto: Sequence[int | None] = ()
    free: Collection[DeviceData] = ()
    columns: Sequence[StackGroup] = ()
    replaced: Replaced = field(default_factory=dict)
    recorded: "Graph | None" = None
    sources: Mapping[Node, Sequence[Node]] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> list[Port]:
        """Returns the program's arguments: the stack groups, then the other inputs."""
        return self._ports(self.inputs, self.shardings, self.stack_groups, self.donated)

    def results(self) -> list[Port]:
        """Returns the program's results: the stack groups, then the other roots."""
        return self._ports(self.roots, self.pinned, self.stacked)

    @staticmethod
    def _ports(
        values: Sequence[Value],
        shardings: Sequence[Sharding | None],
        groups: Sequence[StackGroup],
        donated: Sequence[bool] = (),
    ) -> list[Port]:
        """Returns the ports of these values: the stack groups, then each value outside of them."""
        # Groups first: an argument of a program is a stack or one input, and jax pairs donated ones
        # with results in order.
        ports = []
        for group in groups:
            row_index = max(group)  # among results, an input has an index below 0 (`stacked`)
            meta, sharding = values[row_index].meta, shardings[row_index]
            assert sharding is not None, (
                "a stack group has the sharding that its rows are pinned to"
            )
            stack = dense_meta((len(group), *meta.shape), meta.dtype)
            is_donated = bool(donated) and any(map(donated.__getitem__, group))
            ports.append(Port(group, stack, sharding.behind_rows(), is_donated))
        grouped = set().union(*groups)
        for index, value in enumerate(values):
            if index not in grouped:
                ports.append(
                    Port(index, value.meta, shardings[index], bool(donated) and donated[index])
                )
        return ports

    def meshes(self) -> list[Sharding]:
        """Returns the meshes of inputs, annotations and results, as replicated shardings; the
        program's mesh first."""
        requested = (node.op.sharding for node in walk(self.nodes))
        shardings = dict.fromkeys((self.mesh, *self.shardings, *self.pinned, *requested))
        return list(dict.fromkeys(s.replicated() for s in shardings if s is not None))

    def key(self) -> Hashable:
        """Returns the key of the program: ops with their static arguments, wiring, shardings,
        donation, flags, target.

        The scalar arguments are not in it. Op specs and metas are interned, so the key compares by
        identity.
        """
        key: list[Hashable] = [*flags(), self.donated, self.mesh]
        key.extend(self.shardings)
        key.extend(wiring(self.nodes, self.inputs, self.roots))
        key += [tuple(self.pinned), self.stack_groups, self.stacked]
        return tuple(key)

    @property
    def encoded(self) -> str:
        """The key as text that is the same in every process (see `op.encode`)."""
        return digest(self.key())


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the lazy graph that is the body of an op (see `Lowering.regions`); immutable.

    nodes: in order; inputs: the body's parameters, in order, without data; roots: the body's
    results.
    """

    nodes: list[Node]
    inputs: list[DeviceData]
    roots: list[Value]

    @staticmethod
    def of(
        roots: Sequence[Value], parameters: Sequence[Value], nodes: Sequence[Node] | None = None
    ) -> "Region":
        """Returns copies of the ops from the parameters to the roots as a region.

        nodes: these ops in order; default: the order of recording.

        Raises ValueError if the roots need data that is no parameter. Unused parameters are inputs
        of the region, too.
        """
        # Abstract inputs, and copies of the nodes: a body outlives the values on which it was
        # recorded, and would else keep their buffers.
        inputs = [DeviceData(value.meta, is_abstract=True) for value in parameters]
        input_of: dict[object, Value] = {}
        for value, device_data in zip(parameters, inputs, strict=True):
            input_of.setdefault(value_name(value), device_data)
        copies: dict[Node, Node] = {}

        def copied(value: Value) -> Value:
            region_input = input_of.get(value_name(value))
            if region_input is not None:
                return region_input
            maker = origin(value)
            if maker is None:
                raise ValueError(f"the region needs {value.meta!r}, which it is not given")
            return (
                TupleElement(copies[maker], value.index)
                if isinstance(value, TupleElement)
                else copies[maker]
            )

        for node in between(roots, parameters) if nodes is None else nodes:
            copies[node] = node.with_operands(map(copied, node.operands))
        return Region(list(copies.values()), inputs, list(map(copied, roots)))

    @property
    def encoded(self) -> str:
        """The key of the region, as text (see `op.encode`), without the scalar arguments."""
        return digest(wiring(self.nodes, self.inputs, self.roots))


def between(roots: Sequence[Value], sources: Iterable[Value], *, since: int = 0) -> list[Node]:
    """Returns the nodes from these values to the roots, in the order of recording; none recorded
    before `since`."""
    return up_to(roots, {value_name(value) for value in sources}, since=since)


def up_to(roots: Sequence[Value], names: Collection[Name], *, since: int = 0) -> list[Node]:
    """Returns the nodes that the roots need, as `between` does, up to the values of these names
    (`value_name`)."""
    # No nodes from before `since`: values that existed when a body began are read from outside of
    # it. A stack of its own and no recursion: a graph is as deep as a step is long, which Python's
    # stack is not.
    visited: set[Node] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        node = value.node if type(value) is TupleElement else value
        if (
            type(node) is Node
            and node not in visited
            and node.serial >= since
            and not (names and value_name(value) in names)
        ):
            visited.add(node)
            stack.extend(node.operands)
    # By serial, not by the order of the walk: equal steps must give equal keys, in whatever order
    # their roots are.
    return sorted(visited, key=_serial)


def depending(
    roots: Sequence[Value],
    condition: Callable[[Node], bool],
    sources: Iterable[Value] = (),
    *,
    since: int = 0,
) -> dict[Node, None]:
    """Returns the nodes of `between` that meet a condition, and their dependents, in order."""
    nodes: dict[Node, None] = {}
    for node in between(roots, sources, since=since):
        if condition(node) or not nodes.keys().isdisjoint(map(origin, node.operands)):
            nodes[node] = None
    return nodes


def components(nodes: Sequence[Node]) -> list[set[Node]]:
    """Returns ops in order as disjoint sets, in the order of their first ops; a set reads only data
    and results of its own ops."""
    set_of: dict[Node, set[Node]] = {}
    for node in nodes:
        joined = {node}
        makers = [maker for maker in map(origin, node.operands) if maker in set_of]
        for component in {id(set_of[maker]): set_of[maker] for maker in makers}.values():
            # The smaller set is added to the larger one, or many small unions would take quadratic
            # time.
            if len(component) > len(joined):
                joined, component = component, joined
            joined |= component
            set_of.update(dict.fromkeys(component, joined))
        set_of[node] = joined
    return list({id(members): members for members in set_of.values()}.values())


def wiring(
    nodes: Sequence[Node], inputs: Sequence[DeviceData], roots: Sequence[Value]
) -> list[Hashable]:
    """Returns the ops, the operands of each, and the roots, all by position."""
    # Positions in place of values, so that two steps over other data have one key. One integer for
    # each operand, with the index of the result above bit 40: this runs at each sync, and no tuple
    # is made or hashed for it.
    position: dict[Value, int] = {}
    key: list[Hashable] = [len(inputs)]
    for i, device_data in enumerate(inputs):
        position[device_data] = ~i
        key.append(device_data.meta)
    for i, node in enumerate(nodes):
        position[node] = i
        key.append(node.op)
        for operand in node.operands:
            if type(operand) is TupleElement:
                key.append(position[operand.node] + (operand.index + 1 << 40))
            else:
                key.append(position[operand])
    key.append(tuple([_operand_code(root, position) for root in roots]))
    return key


def stretch_wiring(nodes: Sequence[Node]) -> tuple[list[Hashable], list[Name]]:
    """Returns the operands of ops, equal for isomorphic stretches of them: results by position,
    values from outside by number, below 0; and the names of the latter by number."""
    position: dict[Value, int] = {}
    outside: dict[Name, int] = {}
    operands: list[Hashable] = []
    for index, node in enumerate(nodes):
        position[node] = index
        for operand in node.operands:
            owner = operand.node if type(operand) is TupleElement else operand
            operands.append(
                _operand_code(operand, position)
                if owner in position
                # In the order of first reads.
                else ~outside.setdefault(value_name(operand), len(outside))
            )
    return operands, list(outside)


def flags() -> tuple[Hashable, ...]:
    """Returns the parts of a program's key outside of its graph."""
    # The partition rules by name, too: with those of one more package the same graph lowers to
    # another program.
    return *settings(config), *NAMES, stand_in.value


def _operand_code(value: Value, position: dict[Value, int]) -> int:
    """Returns the integer of a value in a wiring: its op's position and its result index + 1."""
    return (
        position[value.node] + (value.index + 1 << 40)
        if isinstance(value, TupleElement)
        else position[value]
    )


def replace_operands(values: Mapping[object, Value], nodes: Iterable[Node]) -> None:
    """Replaces values, by name, among the operands of these ops."""
    for node in nodes:
        # Most nodes read none of these values, and keep their tuple of operands.
        if any(value_name(operand) in values for operand in node.operands):
            node.operands = tuple(
                [values.get(value_name(operand), operand) for operand in node.operands]
            )
