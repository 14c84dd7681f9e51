"""Every collective of an optimised program: kind, mesh axes, bytes, count and op; the same as a
table with lines."""

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ...core import Collective, Sharding, topology
from ...core.extend import Computation, Graph, Instruction, Module, Target, hlo_text

KINDS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
_STARTS = {f"{kind}-start": kind for kind in KINDS} | {kind: kind for kind in KINDS}


# A collective of a program, with the place of the recorded op that it came from; None where XLA
# names none.
Exchange = tuple[Collective, int | None]


class PlacedCollective(NamedTuple):
    """A collective with its line of the program's text; the line of a chain is its first. joined:
    the ops of its operands, where XLA has combined collectives of several ops in one; `node` is the
    first op's."""

    row: Collective
    node: int | None
    computation: Computation
    line: Instruction
    joined: tuple[int, ...] = ()


def collectives(module: Module, graph: Graph) -> list[PlacedCollective]:
    """Returns the collectives of the program of a graph, in the order of its text, without the
    names of the ops."""
    num_nodes = len(graph.nodes)
    # by the text of the groups
    axes_of = functools.cache(functools.partial(_axes, meshes=graph.meshes()))
    result: list[PlacedCollective] = []
    chains: set[str] = set()
    links = links_of(module)
    for computation, line in module.lines():
        kind = collective_kind(line) or kind_between_slices(line)
        chain = chain_of(line)
        if kind is None or chain in chains:
            continue
        if chain:
            chains.add(chain)
        axes, size, link = axes_of(_groups_text(line))
        if size == 1:
            continue
        arrays = [
            array
            for operand in operands_of(computation, line)
            for array in hlo_text.arrays(operand.shape)
        ]
        data = sum(nbytes for _, _, nbytes in arrays)
        is_sliced = kind == "all-reduce" and _is_sliced(module, computation, line)
        if is_sliced and kind_in(computation, kind) != kind:
            kind, is_sliced = kind_in(computation, kind), False
        data *= size if kind == "all-gather" else 1
        node = node_index(scope_of(computation, line), num_nodes)
        if node is None:
            node = _reader_of_argument(line.scope, graph)
        # Of a chain the first link is the start, the last one the end.
        start = start_of(computation, line)
        is_async = links[chain] > 2 if chain else _is_overlapped(*start)
        count, core = computation.count, core_of(start[1])
        row = Collective(
            kind,
            axes,
            size,
            data,
            count,
            is_sliced=is_sliced,
            link=link,
            is_async=is_async,
            core=core,
            dtype=", ".join(sorted({dtype for dtype, _, _ in arrays})),
        )
        result.append(
            PlacedCollective(row, node, computation, line, joined(computation, line, num_nodes))
        )
    return result


def joined(computation: Computation, line: Instruction, num_nodes: int) -> tuple[int, ...]:
    """The op of each operand of a combined collective; XLA gives it the name of the first one.

    () for one op.
    """
    scopes = (scope_of(computation, maker) for maker in operands_of(computation, line))
    places = tuple(index for scope in scopes if (index := node_index(scope, num_nodes)) is not None)
    return places if len(set(places)) > 1 else ()


def operands_of(computation: Computation, line: Instruction) -> list[Instruction]:
    """The lines of a computation that make the operands of one of them."""
    return [computation.by_name[name] for name in line.operands if name in computation.by_name]


def bytes_of(computation: Computation, line: Instruction) -> int:
    """The bytes of the operands and results of a line."""
    return sum(
        hlo_text.num_bytes(instruction.shape)
        for instruction in (line, *operands_of(computation, line))
    )


def collective_kind(line: Instruction) -> str | None:
    """The kind of the collective that a line is or starts; None for another line."""
    return _STARTS.get(line.opcode)


def kind_in(computation: Computation, kind: str) -> str:
    """The kind of a collective inside a computation: a TPU's compiler writes a reduce-scatter as an
    all-reduce."""
    return "reduce-scatter" if computation.name.startswith("all-reduce-scatter") else kind


def groups_of(line: Instruction, num_devices: int) -> list[tuple[int, ...]]:
    """The groups of devices, by their place in the program, of a collective; of a permutation
    pairs."""
    return groups(_groups_text(line), num_devices)


# A TPU's compiler spreads one collective over the fusions that it overlaps with: each fusion has a
# line of it.
_CHAIN = re.compile(r'channel_id=\d+.*chain_id="\d+"')


def chain_of(line: Instruction) -> str:
    """The name of the collective that a line is one of several of; "" for one of a single line."""
    match = _CHAIN.search(line.tail) if line.opcode in _STARTS else None
    return "" if match is None else match[0]


def links_of(module: Module) -> Counter[str]:
    """Counts the lines over which each collective is spread."""
    return Counter(filter(None, (chain_of(line) for _, line in module.lines())))


Key = tuple[str, str]


def key_of(computation: Computation, line: Instruction) -> Key:
    """The name of a collective, the same for all lines that it is spread over."""
    chain = chain_of(line)
    return ("", chain) if chain else (computation.name, line.name)


def collectives_within(
    module: Module, call: Instruction
) -> Iterator[tuple[Computation, Instruction, str]]:
    """The collectives that a line calls, with their computation and kind: of a fusion, of an
    asynchronous call."""
    for _, name in call.called:
        inner = module.computations[name]
        for line in inner.lines:
            kind = collective_kind(line)
            if kind is not None:
                yield inner, line, kind_in(inner, kind)
            elif line.opcode in ("fusion", "call"):
                yield from collectives_within(module, line)


def start_of(computation: Computation, line: Instruction) -> tuple[Computation, Instruction]:
    """The line of the schedule that starts a collective: the line itself, or the asynchronous call
    around it."""
    start = computation, line
    while computation.caller is not None and computation.caller[1].opcode not in (
        "while",
        "conditional",
    ):
        computation, line = computation.caller
        start = (computation, line) if line.opcode.endswith("-start") else start
    return start


_THREAD = re.compile(r'async_execution_thread="(\w+)"')


def core_of(start: Instruction) -> str:
    """The cores of the chip that run an asynchronous call: "sparsecore", or "" for those of all
    other lines."""
    thread = _THREAD.search(start.tail) if start.opcode.endswith("-start") else None
    return "" if thread is None or thread[1] == "main" else thread[1]


def _is_overlapped(computation: Computation, line: Instruction) -> bool:
    """True if something is computed between the start of a collective and its end; lines are in
    execution order."""
    name = line.name
    for later in (
        computation.lines[computation.lines.index(line) + 1 :]
        if line.opcode.endswith("-start")
        else ()
    ):
        if later.opcode in _WORK:
            return True
        if name in later.operands and later.opcode.endswith("-done"):
            return False
        if name in later.operands and later.opcode.endswith("-update"):
            name = later.name
    return False


_WORK = {
    "fusion",
    "dot",
    "convolution",
    "custom-call",
    "while",
    "conditional",
    "call",
    "sort",
    "scatter",
    "reduce",
}


# A TPU's compiler makes an exchange between slices a send and a receive over the hosts' network,
# which name its kind.
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')


def kind_between_slices(line: Instruction) -> str | None:
    """The kind of the collective that a line sends for over the network between slices; None for
    another line."""
    match = _BETWEEN_SLICES.search(line.tail) if line.opcode == "send" else None
    if match is None:
        return None
    return "collective-permute" if match[1] == "ONE_TO_ONE" else match[1].lower().replace("_", "-")


def scope_of(computation: Computation, line: Instruction) -> str:
    """Returns the scope in which a line was traced; for a line that the compiler added, that of its
    operands, or else that of its reader. From jaxlib 0.12 on what moves data has the scope of the
    data: here that of its reader."""
    of_reader = _is_move(line) and _scope_behind(computation, line)
    return of_reader or _scope_before(computation, line) or _scope_behind(computation, line)


def _is_move(line: Instruction) -> bool:
    return 'is_spmd_generated="true"' in line.tail and line.opcode not in _NO_MOVES


_NO_MOVES = {
    "all-reduce",
    "all-reduce-start",
    "all-reduce-done",
    "reduce-scatter",
    "get-tuple-element",
}


_MOST_LINES = 64  # that a search for a scope looks at


def _scope_behind(computation: Computation, line: Instruction) -> str:
    readers = [*computation.readers.get(line.name, ())]
    for reader in itertools.islice(readers, _MOST_LINES):  # which become more
        if node_index(reader.scope, 1 << 60) is not None and not _is_move(reader):
            return reader.scope
        # what is fused without a scope may be of any op
        if reader.scope or reader.opcode != "fusion":
            readers += [
                next_reader
                for next_reader in computation.readers.get(reader.name, ())
                if next_reader not in readers
            ]
    return ""


def _scope_before(computation: Computation, line: Instruction) -> str:
    visited: set[tuple[str, str]] = set()
    todo = [(computation, line)]
    while todo and len(visited) < _MOST_LINES:
        inside, source = todo.pop(0)
        if node_index(source.scope, 1 << 60) is not None:
            return source.scope
        if (inside.name, source.name) in visited:
            continue
        visited.add((inside.name, source.name))
        if source.opcode == "parameter" and inside.caller is not None:
            outside, call = inside.caller
            operand = 0 if call.opcode == "while" else int(source.arguments)
            todo += [
                (outside, outside.by_name[name]) for name in call.operands[operand : operand + 1]
            ]
        else:
            todo += [(inside, operand) for operand in operands_of(inside, source)]
    return ""


_ARGUMENT = re.compile(r"arguments\[(\d+)\]")


def _reader_of_argument(scope: str, graph: Graph) -> int | None:
    """Returns the place of the first op that reads an argument, if a line has the argument's name:
    from jaxlib 0.12 on the gather of an argument has it."""
    named = _ARGUMENT.fullmatch(scope)
    if named is None:
        return None
    inputs = graph.arguments()
    if int(named[1]) >= len(inputs):  # the scalar arguments follow the inputs
        return None
    indices = inputs[int(named[1])].indices
    data = {graph.inputs[i] for i in ((indices,) if isinstance(indices, int) else indices)}
    return next(
        (i for i, node in enumerate(graph.nodes) if not data.isdisjoint(node.operands)), None
    )


# --- the groups of devices ------------------------------------------------------------------------

_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs)="
    r"(?:\{\{.*?\}\}|\{[^{}]*\}|mesh\[.*?\{.*?\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?)"
)
_HOST_GROUPS = re.compile(r'_xla_megascale_target=("[^"]*"|\{\{.*?\}\})')
_PRODUCT = re.compile(r'"\{([\d,:]+)\}x\{([\d,:]+)\}"')
# the ids of a slice's devices, of a TPU topology, begin at so many times its number
_SLICE_STEP = 100_000
_MESH = re.compile(r"mesh\[(.*?)\](?:,?\s*device_ids=(\S+?))?\s*\{(.*?)\}")
_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'?([\w.\-]+)'?(?::\((\d+)\)(\d+))?")


def _groups_text(line: Instruction) -> str:
    match = _HOST_GROUPS.search(line.tail) or _GROUPS.search(line.tail)
    return "" if match is None else match[0]


def groups(text: str, num_devices: int) -> list[tuple[int, ...]]:
    """Returns the groups of devices, by their place in the program, that the text of an instruction
    names.

    For a permutation a group is a pair of a source and a target. Empty: all devices are one group.
    """
    kind, _, value = text.partition("=")
    mesh = _MESH.match(value)
    iota = _IOTA.match(value)
    if mesh is not None:
        return _mesh_groups(*mesh.groups())
    if iota is not None:
        return [tuple(row) for row in _iota(iota[2], iota[3]).reshape(_numbers(iota[1])).tolist()]
    rows = [tuple(_numbers(row)) for row in re.findall(r"\{([\d,]+)\}", value)]
    return rows or ([] if kind.startswith("source") else [tuple(range(num_devices))])


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _iota(sizes: str, order: str | None) -> np.ndarray:
    """Returns the devices in a grid of these sizes, its dims in this order."""
    grid = np.arange(math.prod(_numbers(sizes))).reshape(_numbers(sizes))
    return grid if order is None else grid.transpose(_numbers(order))


def _mesh_groups(sizes_text: str, ids_text: str | None, axes_text: str) -> list[tuple[int, ...]]:
    """Returns the groups of the form that names the axes which a group spans; `'a':(2)4` is the
    part of size 4 of `a` behind one of 2."""
    sizes = {name: int(size) for name, size in re.findall(r"'?([\w.\-]+)'?=(\d+)", sizes_text)}
    shape, count = tuple(sizes.values()), 1
    ids = np.arange(math.prod(shape)) if ids_text is None else _order(ids_text)
    # Two devices are in one group if their places are equal but for the spanned parts, which are
    # zero in `first`.
    first = dict(zip(sizes, np.indices(shape).reshape(len(shape), -1), strict=True))
    for name, outer, size in _AXIS.findall(axes_text):
        part = int(size or sizes[name])
        step = sizes[name] // (int(outer or 1) * part)
        first[name] -= first[name] // step % part * step
        count *= part
    order = np.ravel_multi_index(tuple(first.values()), shape).argsort(kind="stable")
    return [tuple(row) for row in ids[order].reshape(-1, count).tolist()]


def _order(text: str) -> np.ndarray:
    """Returns the devices of a mesh in order: `([2,4]T(1,0))` are those of a grid, transposed; else
    a list."""
    match = _ORDER.search(text)
    if match is None:
        return np.array(_numbers(text))
    return _iota(match[1], match[2]).reshape(-1)


_ORDER = re.compile(r"\[([\d,]+)\]T\(([\d,]+)\)")


def _axes(text: str, meshes: Sequence[Sharding]) -> tuple[tuple[str, ...], int, str]:
    """Returns the mesh axes along which the devices of a group differ, the size of a group, and its
    devices' link."""
    order = meshes[0].device_ids
    target = meshes[0].target if meshes[0].target is not None else topology.stand_in.value
    devices = _host_groups(text, order, target) if "megascale" in text else groups(text, len(order))
    size = max((len(group) for group in devices), default=1)
    pairs = text.startswith("source") or "->" in text
    if pairs:
        devices = [pair for pair in devices if pair[0] != pair[1]]
    if size == 1 or not devices:
        return (), 1, ""
    link = _link(devices, order, topology.slices(target))
    for mesh in meshes:
        named = _axes_over(devices, mesh, order, is_exact=not pairs)
        if named:
            return named, size, link
    return (f"{len(devices)} groups of {size}" if not pairs else "devices",), size, link


def _host_groups(text: str, order: Sequence[int], target: Target) -> list[tuple[int, ...]]:
    """Returns the groups of an exchange between slices, by place in the program; its text has the
    devices' own ids.

    `"{1,2}x{0:7}"` are all devices 0 to 7 of slices 1 and 2, each with those of its number.
    """
    product = _PRODUCT.search(text)
    if product is not None:
        of_slices, of_devices = (_listed(part) for part in product.groups())
        named = [
            tuple(slice_number * _SLICE_STEP + device for slice_number in of_slices)
            for device in of_devices
        ]
    else:
        named = [tuple(_numbers(row)) for row in re.findall(r"\{([\d,>-]+)\}", text)]
    position = {topology.all_devices(target)[device].id: i for i, device in enumerate(order)}
    return [tuple(position[number] for number in group) for group in named]


def _listed(text: str) -> list[int]:
    """Parses `1,2` and `0:7`; the end of a range belongs to it."""
    ends = [part.split(":") for part in text.split(",")]
    return [number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)]


def _link(
    device_groups: Iterable[tuple[int, ...]], order: Sequence[int], of_device: Sequence[int]
) -> str:
    """Returns the network that links the devices of the groups; "" if there is one slice."""
    if len(set(of_device)) == 1:
        return ""
    is_between = any(
        len({of_device[order[index]] for index in group}) > 1 for group in device_groups
    )
    return "dcn" if is_between else "ici"


def _axes_over(
    device_groups: Sequence[tuple[int, ...]],
    mesh: Sharding,
    order: tuple[int, ...],
    *,
    is_exact: bool,
) -> tuple[str, ...]:
    """Returns the axes of a mesh that groups span; for pairs the axes along which source and target
    differ."""
    where = {device: i for i, device in enumerate(mesh.device_ids)}
    table = np.array([where[device] for device in order])[np.array(device_groups)]
    coordinates = np.stack(np.unravel_index(table, mesh.mesh_shape))
    may_diverge = (coordinates != coordinates[..., :1]).any(axis=(1, 2))
    names = tuple(
        name for name, is_other in zip(mesh.axis_names, may_diverge, strict=True) if is_other
    )
    sizes = mesh.mesh_axes()
    if is_exact and math.prod(sizes[name] for name in names) != table.shape[1]:
        return ()
    return names


# --- the op that it came from ---------------------------------------------------------------------

_MARK = re.compile(r"(?:^|/)[^/#]*#(\d+)(?=/|$|\[)")


def node_index(scope: str, num_nodes: int) -> int | None:
    """Returns the recorded op that an instruction came from, by the mark that `lower.build` leaves
    in its scope."""
    marks = [int(mark) for mark in _MARK.findall(scope) if int(mark) < num_nodes]
    return marks[0] if marks else None


def _is_sliced(module: Module, computation: Computation, line: Instruction) -> bool:
    """True if every reader of an all-reduce takes a slice of it."""
    readers = computation.readers.get(line.name, [])
    return bool(readers) and all(
        _is_sliced(module, computation, reader)
        if reader.opcode in _PASSED
        else slices(module, reader)
        for reader in readers
    )


# Opcodes whose result has the elements of their operand.
_PASSED = {"bitcast", "copy", "reshape", "convert", "get-tuple-element", "all-reduce-done"}


def slices(module: Module, line: Instruction) -> bool:
    """True for a dynamic slice, and for a fusion with one."""
    lines = module.computations[line.called[0][1]].lines if line.opcode == "fusion" else [line]
    return any(instruction.opcode == "dynamic-slice" for instruction in lines)


# --- the ops of all instructions ------------------------------------------------------------------


_WITHIN = ("fusion", "call", "custom-call")  # these run what they call as one


def origins(module: Module, num_nodes: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yields the name of each instruction, those inside fusions left out, the recorded ops that it
    came from, by their places, first the one that names it, and the bytes of its operands and
    results on one device."""
    for computation, line in module.lines(inner=False):
        places = dict.fromkeys(_places(module, computation, line, num_nodes))
        if not places:  # XLA's own: a copy of an argument is of the op that reads it
            readers = computation.readers.get(line.name, [])[:1]
            places = dict.fromkeys(
                p for reader in readers for p in _places(module, computation, reader, num_nodes)
            )
        yield line.name, tuple(places), bytes_of(computation, line)


def _places(
    module: Module, computation: Computation, line: Instruction, num_nodes: int
) -> Iterator[int]:
    index = node_index(scope_of(computation, line), num_nodes)
    if index is not None:
        yield index
    if collective_kind(line) is not None:
        yield from joined(computation, line, num_nodes)
    for _, name in line.called if line.opcode in _WITHIN else ():
        for inner in module.computations[name].lines:
            inner_index = node_index(inner.scope, num_nodes)
            if inner_index is not None:
                yield inner_index


Exchanges = tuple[Exchange, ...]
