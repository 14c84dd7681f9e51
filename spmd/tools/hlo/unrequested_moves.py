"""The moves of an optimised program that no annotation requests (see `Move`): a pass over its
collectives.

Collectives of one op that follow each other are one move, from the layout of the first one's
operand to that of the last one's result. The text of a partitioned program has the shapes of single
shards, and a value's whole shape is that of an operand or a result of the recorded op: the two
together are its layout.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ...core import DeviceData, Move, Sharding
from ...core.extend import (
    Computation,
    Graph,
    Instruction,
    Module,
    Node,
    Value,
    hlo_text,
    user_lines,
    walks,
)
from .hlo_collectives import PlacedCollective, operands_of, scope_of, slices

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Collectives in a row. befores: the shapes that a shard has on its way to the first one, the
    nearest first; afters: behind the last one; is_cut: that is each device's own slice, and nothing
    reads what is not in it."""

    links: list[PlacedCollective]
    befores: list[Shape]
    afters: list[Shape]
    is_cut: bool


# Opcodes whose result has the elements of their operands and no others.
_MOVING = {
    "copy",
    "convert",
    "bitcast",
    "get-tuple-element",
    "tuple",
    "transpose",
    "reshape",
    "concatenate",
    "slice",
    "all-gather-done",
    "collective-permute-done",
    "all-reduce-done",
    "parameter",
}
_MOST_LINES = 64  # lines that are followed


def chain_of(
    module: Module, first: PlacedCollective, by_line: Mapping[tuple[str, str], PlacedCollective]
) -> Chain:
    """Returns the chain that begins with a collective. by_line: all of them by computation and
    line."""
    links = [first]
    for line, _ in _readers(module, first.computation, first.line, by_line):
        link = by_line.get((first.computation.name, line.name))
        if link is not None and _is_next(first, link) and link not in links:
            links.append(link)
    last = links[-1]
    count = _num_elements(last)
    shapes = [
        shape
        for _, reader_shapes in _readers(module, last.computation, last.line, {})
        for shape in reader_shapes
    ]
    wholes = [shape for shape in [_shape(last.line), *shapes] if math.prod(shape) == count]
    cut = _own_slice(module, last)
    return Chain(links, _befores(module, first), wholes if cut is None else [cut], cut is not None)


def _is_next(first: PlacedCollective, candidate: PlacedCollective) -> bool:
    """True for collectives of one op, or of one value, whose scope XLA gives to what moves it
    (jaxlib 0.12)."""
    return candidate.node == first.node or (
        candidate.node is not None and "" != candidate.line.scope == first.line.scope
    )


def _num_elements(link: PlacedCollective) -> int:
    """The elements of a shard after a collective."""
    is_gather = link.row.kind == "all-gather"
    lines = [link.line] if is_gather else operands_of(link.computation, link.line)
    return sum(math.prod(_shape(line)) for line in lines)


def _readers(
    module: Module,
    computation: Computation,
    line: Instruction,
    by_line: Mapping[tuple[str, str], PlacedCollective],
) -> Iterator[tuple[Instruction, list[Shape]]]:
    """Yields the lines that a line's elements reach by being moved alone, each with the shapes that
    they have there; through collectives as well, those of `by_line`."""
    todo, visited = [line], {line.name}
    while todo and len(visited) < _MOST_LINES:
        source = todo.pop(0)
        for reader in computation.readers.get(source.name, []):
            if reader.name in visited:
                continue
            visited.add(reader.name)
            is_link = (computation.name, reader.name) in by_line
            shapes, goes_on = [_shape(reader)], reader.opcode in _MOVING or is_link
            if reader.opcode == "fusion":
                inside, goes_on = _through(module.computations[reader.called[0][1]], reader, source)
                shapes = [*inside, *shapes] if goes_on else inside
            elif not goes_on:
                shapes = []
            if _takes_own_slice(module, computation, reader):
                # not for the shapes behind the last collective: they are of the slice
                goes_on = bool(by_line)
            if goes_on:
                todo.append(reader)
            yield reader, shapes


def _through(
    inner: Computation, fusion: Instruction, operand: Instruction
) -> tuple[list[Shape], bool]:
    """The shapes that an operand's elements have inside a fusion, and whether the fusion moves them
    and no more."""
    todo = _parameters(inner, fusion, operand)
    shapes: list[Shape] = []
    visited: set[str] = set()
    while todo:
        source = todo.pop(0)
        shapes.append(_shape(source))
        for reader in inner.readers.get(source.name, []):
            if reader.opcode in (*_MOVING, "dynamic-slice") and reader.name not in visited:
                visited.add(reader.name)
                todo.append(reader)
    return shapes, inner.lines[-1].name in visited


def _parameters(inner: Computation, fusion: Instruction, operand: Instruction) -> list[Instruction]:
    """The lines by which a fusion takes an operand."""
    places = {str(index) for index, name in enumerate(fusion.operands) if name == operand.name}
    return [
        source
        for source in inner.lines
        if source.opcode == "parameter" and source.arguments in places
    ]


def _befores(module: Module, first: PlacedCollective) -> list[Shape]:
    """The shapes of a shard before the first collective, and before each device takes its slice for
    it."""
    computation, line = first.computation, first.line
    shapes: list[Shape] = []
    while len(shapes) < _MOST_LINES:
        operands = operands_of(computation, line)
        if not operands:
            break
        line = max(operands, key=lambda operand: math.prod(_shape(operand)))
        shapes.append(_shape(line))
        if line.opcode == "fusion":
            inner = module.computations[line.called[0][1]]
            shapes += [
                _shape(instruction)
                for instruction in reversed(inner.lines)
                if instruction.opcode in _MOVING
            ]
            if any(instruction.opcode not in (*_MOVING, *_NUMBERS) for instruction in inner.lines):
                break
        elif line.opcode not in _MOVING and not _takes_own_slice(module, computation, line):
            break
    return shapes


# The ops that compute the start of a slice.
_NUMBERS = {"dynamic-slice", "constant", "subtract", "add", "multiply", "partition-id"}


def _shape(line: Instruction) -> Shape:
    """The dims of a result; of several arrays those of the largest."""
    return max(((size, dims) for _, dims, size in hlo_text.arrays(line.shape)), default=(0, ()))[1]


# --- slices by the number of the device -----------------------------------------------------------


def _own_slice(module: Module, last: PlacedCollective) -> Shape | None:
    """The shape of the slice that each device keeps of a collective's result; None if the whole is
    read."""
    computation, line = last.computation, last.line
    while True:
        readers = [
            reader for reader in computation.readers.get(line.name, []) if reader.opcode != "tuple"
        ]
        cuts = [_own_slice_of(module, computation, line, reader) for reader in readers]
        if cuts and None not in cuts:
            return cuts[0]
        if len(readers) != 1 or readers[0].opcode not in _MOVING:
            return None
        line = readers[0]


def _own_slice_of(
    module: Module, computation: Computation, line: Instruction, reader: Instruction
) -> Shape | None:
    """The shape of the slice that a reader takes of a line for its device; None if it reads more of
    it."""
    if not _takes_own_slice(module, computation, reader):
        return None
    if reader.opcode == "dynamic-slice":
        return _shape(reader)
    inner = module.computations[reader.called[0][1]]
    todo = _parameters(inner, reader, line)
    cuts: list[Shape] = []
    for source in todo:  # which becomes longer
        for inside in inner.readers.get(source.name, []):
            if inside.opcode == "dynamic-slice":
                cuts.append(_shape(inside))
            elif inside.opcode not in (*_MOVING, *_UPDATES):
                return None
            elif inside not in todo:
                todo.append(inside)
    return max(cuts, key=math.prod, default=None)


# an update of a slice of a split dim: gathered, updated, cut
_UPDATES = {"dynamic-update-slice", "pad", "select"}


def _takes_own_slice(module: Module, computation: Computation, line: Instruction) -> bool:
    """True if a line takes a slice of an operand that starts at a place of its device's own."""
    return slices(module, line) and _is_numbered(computation, line)


def _is_numbered(computation: Computation, line: Instruction) -> bool:
    """True if a scalar that a line reads comes from the number of the device."""
    todo, num_visited = [line], 0
    while todo and num_visited < _MOST_LINES:
        scalar = todo.pop()
        num_visited += 1
        if scalar.opcode == "partition-id":
            return True
        operands = operands_of(computation, scalar)
        todo += [
            operand
            for operand in operands
            if math.prod(_shape(operand)) == 1 and operand.opcode != "parameter"
        ]
    return False


# --- layouts of recorded values -------------------------------------------------------------------


# of a spec, as a user writes it: an axis, a tuple of axes or None for each dim
Entries = tuple[Any, ...]


class Moved(NamedTuple):
    """A value that is moved: the op that it is an operand or a result of, its name there, and both
    layouts (None: not known)."""

    node: Node
    name: str
    shape: Shape
    before: Entries | None
    after: Entries | None


def spec_text(entries: Entries | None) -> str:
    """The spec as a user writes it.

    >>> spec_text(("data", None))
    "P('data', None)"
    """
    return "" if entries is None else f"P({', '.join(map(repr, entries))})"


def cuts(entries: Entries | None) -> set[tuple[int, Any]]:
    """The axes of a spec, each with its dim."""
    dim_entries = enumerate(entries or ())
    return {
        (dim, axis)
        for dim, entry in dim_entries
        for axis in (entry if isinstance(entry, tuple) else (entry,))
    }


def tiles_of(shape: Sequence[int], shard: Sequence[int]) -> tuple[int, ...] | None:
    """The number of tiles of each dim; None if shards of this shape are not those of an array of
    the other.

    >>> tiles_of((8, 6), (4, 6)), tiles_of((8, 6), (6, 8))
    ((2, 1), None)
    """
    if len(shape) != len(shard) or not all(
        0 < part <= dim for dim, part in zip(shape, shard, strict=True)
    ):
        return None
    tiles = tuple(-(-dim // part) for dim, part in zip(shape, shard, strict=True))
    is_even = all(
        -(-dim // cut) == part for dim, cut, part in zip(shape, tiles, shard, strict=True)
    )
    return tiles if is_even else None


class Layouts:
    """The layouts of the values of a graph, as far as inputs, annotations and shapes of shards give
    them.

    places: of the ops; axis_names: of all meshes.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.places = {node: index for index, node in enumerate(graph.nodes)}
        self.meshes = graph.meshes()
        self.axis_names = tuple(
            dict.fromkeys(name for mesh in self.meshes for name in mesh.axis_names)
        )
        self.inputs = dict(zip(graph.inputs, graph.shardings, strict=True))
        self.marks: dict[Any, list[Sharding]] = {}
        for node in graph.nodes:
            if node.op.name == "mark_sharding" and node.op.sharding is not None:
                self.marks.setdefault(walks.value_name(node.operands[0]), []).append(
                    node.op.sharding
                )

    def known(self, value: Value) -> Sharding | None:
        """The layout that an annotation, or data, gives a value."""
        node = walks.origin(value)
        sharding = (
            self.inputs.get(value)
            if type(value) is DeviceData
            else None
            if node is None
            else node.op.sharding
        )
        return None if sharding is None or sharding.is_open else sharding

    def marked_after(self, node: Node) -> set[Entries]:
        """The layouts that annotations of the result of an op request."""
        return {mark.partition_spec(len(node.meta.shape)) for mark in self.marks.get(node, ())}

    def moved(self, node: Node, befores: Sequence[Shape], afters: Sequence[Shape]) -> Moved | None:
        """The value that is moved from a shard of one of these shapes to one of the others.

        One with a known layout of such shards is taken first, then one of which both can be shards.
        """
        for is_known in (True, False):
            for holder, name, value in self._values(node):
                if (
                    moved := self._moved(holder, name, value, befores, afters, is_known)
                ) is not None:
                    return moved
        # XLA may have a layout on the way that no spec can name.
        for name, value in (
            ("the result", node),
            *((f"operand {i}", operand) for i, operand in enumerate(node.operands)),
        ):
            shape = tuple(value.meta.shape)
            if any(tiles_of(shape, shard) for shard in befores):
                after = self._first_named(shape, afters)
                if after is not None:
                    return Moved(node, name, shape, None, after)
        return None

    def looked_up(self, node: Node, axes: Sequence[str]) -> Moved | None:
        """The operand that is cut over these axes; it would have to be whole along them."""
        for holder, name, value in self._values(node):
            sharding, shape = self.known(value), tuple(value.meta.shape)
            spec = None if sharding is None else sharding.partition_spec(len(shape))
            if (
                spec is not None
                and {axis for _, axis in cuts(spec)}.issuperset(axes)
                and value is not node
            ):
                return Moved(
                    holder, name, shape, spec, tuple(_without(entry, axes) for entry in spec)
                )
        return None

    def _moved(
        self,
        holder: Node,
        name: str,
        value: Value,
        befores: Sequence[Shape],
        afters: Sequence[Shape],
        is_known: bool,
    ) -> Moved | None:
        shape, sharding = tuple(value.meta.shape), self.known(value)
        old = None if is_known else self._first_named(shape, befores)
        if is_known and sharding is not None and shape and sharding.shard_shape(shape) in befores:
            old = sharding.partition_spec(len(shape))
        if old is None:
            return None
        after = self._first_named(
            shape,
            afters,
            old,
            self.marked_after(holder) if shape == tuple(holder.meta.shape) else (),
        )
        return Moved(holder, name, shape, old, after) if is_known or after is not None else None

    def _first_named(
        self, shape: Shape, shards: Sequence[Shape], *preferences: Any
    ) -> Entries | None:
        named = (self._named(shape, shard, *preferences) for shard in shards)
        return next((spec for spec in named if spec is not None), None)

    def _values(self, node: Node) -> Iterator[tuple[Node, str, Value]]:
        """Yields the operands of an op, its result, and the operands of the ops before it that XLA
        takes as one with it (views), each with the op and its name there."""
        todo, visited = [node], {node}
        yield from (
            (node, f"operand {index}", operand) for index, operand in enumerate(node.operands)
        )
        yield node, "the result", node
        while todo and len(visited) < _MOST_SPECS:
            for maker in map(walks.origin, todo.pop(0).operands):
                if maker is not None and maker not in visited:
                    visited.add(maker)
                    todo.append(maker)
                    yield from (
                        (maker, f"operand {index}", value)
                        for index, value in enumerate(maker.operands)
                    )

    def _named(
        self,
        shape: Shape,
        shard: Shape,
        unlike: Entries | None = None,
        marked: Collection[Entries] = (),
    ) -> Entries | None:
        """The spec whose shards have a shape; None if no mesh has one. Of several an annotation's,
        then the one with most axes where another layout, `unlike`, has them, but not that
        itself."""
        tiles = tiles_of(shape, shard)
        if tiles is None:
            return None
        for mesh in self.meshes:
            named = [
                entries
                for spec in itertools.islice(mesh.specs(tiles), _MOST_SPECS)
                if (entries := tuple(map(_entry, spec))) != unlike
            ]
            if named:
                return max(
                    named,
                    key=lambda candidate: (
                        candidate in marked,
                        len(cuts(candidate) & cuts(unlike)),
                    ),
                )
        return None


_MOST_SPECS = 16


def _entry(axes: tuple[str, ...]) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else axes


def _without(entry: Any, axes: Sequence[str]) -> Any:
    remaining_axes = tuple(
        axis for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis not in axes
    )
    return _entry(() if remaining_axes == (None,) else remaining_axes)


# --- moves ----------------------------------------------------------------------------------------


_AXIS = re.compile(r"'[^']*'")  # in a spec
# A move, with the place of the recorded op.
Placement = tuple[Move, int]


def moves(
    module: Module, graph: Graph, collectives: Sequence[PlacedCollective], unused: str = ""
) -> tuple[Placement, ...]:
    """Returns the moves of a program, of these collectives, without lines; most bytes first.

    graph: as it was recorded. unused: sentences on axes that an op cannot use, whose marks are not
    to be undone. Equal moves of one op are one.
    """
    layouts = Layouts(graph)
    by_line = {
        (collective.computation.name, collective.line.name): collective
        for collective in collectives
    }
    done: set[tuple[str, str]] = set()
    result: dict[Any, Placement] = {}
    for collective in collectives:
        if collective.node is None or (collective.computation.name, collective.line.name) in done:
            continue
        chain = chain_of(module, collective, by_line)
        done |= {(link.computation.name, link.line.name) for link in chain.links}
        last = chain.links[-1].node
        move, index = _move(collective.node if last is None else last, chain, layouts, unused)
        if move is not None:
            key = dataclasses.replace(move, bytes=0), index
            equal = result.get(key)
            result[key] = (
                dataclasses.replace(move, bytes=move.bytes + (equal[0].bytes if equal else 0)),
                index,
            )
    return tuple(sorted(result.values(), key=lambda placement: -placement[0].bytes))


def _move(node_index: int, chain: Chain, layouts: Layouts, unused: str) -> tuple[Move | None, int]:
    """The move of a chain of collectives, None for a requested one, and the index of its op."""
    node = layouts.graph.nodes[node_index]
    rows = [link.row for link in chain.links]
    is_lookup = _is_lookup(chain)
    if _is_sum(chain) and not is_lookup:
        return None, node_index
    axes = tuple(dict.fromkeys(axis for row in rows for axis in row.axes))
    value = (
        layouts.looked_up(node, axes)
        if is_lookup
        else layouts.moved(node, chain.befores, chain.afters)
    )
    is_given_up = value is not None and _is_given_up(chain, value.shape)
    # XLA may name a gather that an annotation requests after the op that reads its result.
    holders = [node] if value is None else [node, value.node]
    is_annotation = any(holder.op.name in _ANNOTATIONS for holder in holders)
    is_requested = is_annotation or (value is not None and _is_marked(value, layouts))
    if is_requested and not is_given_up:
        return None, node_index
    move = Move(
        "given up" if is_given_up else "move",
        user_lines.source_of(node).op.name,
        collectives=tuple(dict.fromkeys(row.kind for row in rows)),
        axes=axes,
        largest=max(row.bytes for row in rows),
        bytes=sum(row.moved_bytes for row in rows),
    )
    if value is None:
        return move, node_index
    changed = (
        {axis for _, axis in cuts(value.before) ^ cuts(value.after or value.before)}
        if value.before
        else set()
    )
    # it comes back: updated, or by two annotations
    if is_given_up and chain.afters[0] in chain.befores:
        value = value._replace(after=value.before)
    op, old, new = (
        user_lines.source_of(value.node).op.name,
        spec_text(value.before),
        spec_text(value.after),
    )
    name = _markable(value)
    is_advised = name and new not in ("", old) and not undoes(old, new, unused)
    mark = f"mark_sharding of {name}, {list(value.shape)}, as {new}" if is_advised else ""
    move = dataclasses.replace(
        move,
        op=op,
        value=value.name,
        shape=value.shape,
        before=old,
        after=new,
        axes=tuple(axis for axis in layouts.axis_names if axis in changed) or axes,
        mark=mark,
    )
    return move, layouts.places[value.node]


def _markable(moved: Moved) -> str:
    """The moved value as one that a step can annotate: of a backward op the forward result that it
    reads, else ""."""
    value: Value = moved.node
    if moved.name.startswith("operand") and user_lines.source_of(moved.node).sequence >= 0:
        value = moved.node.operands[int(moved.name.split()[1])]
    maker = walks.origin(value)
    if moved.node.op.name == "aten.select.int" and moved.name.startswith("operand"):
        return ""  # one row of a split dim: the sentence on all rows has the cure
    # a parameter or an input, or a gradient
    if maker is None or user_lines.source_of(maker).sequence >= 0:
        return ""
    return (
        f"{'the result' if value is not moved.node else moved.name} of "
        f"{user_lines.source_of(maker).op.name}"
    )


def undoes(old_spec: str, new_spec: str, unused: str) -> bool:
    """True if a spec lacks an axis of the one before that an op cannot use: the sentences `unused`
    say so instead."""
    dropped_axes = set(_AXIS.findall(old_spec)) - set(_AXIS.findall(new_spec))
    return any(axis in unused for axis in dropped_axes)


# --- which moves were requested -------------------------------------------------------------------

# Ops that say how a value is to be sharded, and those whose body is the user's own exchange.
_ANNOTATIONS = {
    "mark_sharding",
    "spmd.renew",
    "spmd.gather",
    "spmd.shard_as",
    "spmd.manual",
    "spmd.to_shard",
    "spmd.from_shards",
}
_SUMS = {"all-reduce", "reduce-scatter"}
# The ops that jax traces for a lookup: a sum over devices joins the elements that each has found.
_LOOKUPS = {
    "gather",
    "dynamic_slice",
    "dynamic_update_slice",
    "scatter",
    "concatenate",
    "slice",
    "pad",
    "rev",
    "sort",
}


def _is_sum(chain: Chain) -> bool:
    return {link.row.kind for link in chain.links} <= _SUMS


def _is_lookup(chain: Chain) -> bool:
    scopes = {scope_of(link.computation, link.line).rpartition("/")[2] for link in chain.links}
    return _is_sum(chain) and not scopes.isdisjoint(_LOOKUPS)


def _is_marked(value: Moved, layouts: Layouts) -> bool:
    """True for an operand that an op takes in the layout of its annotated result."""
    return _is_pointwise(value.node.op.name) and bool(layouts.marked_after(value.node))


@functools.cache
def _is_pointwise(name: str) -> bool:
    """True for an op that computes each element by itself: XLA moves its operand to where its
    result is annotated."""
    namespace, _, overload_name = name.partition(".")
    packet = (
        getattr(torch.ops.aten, overload_name.partition(".")[0], None)
        if namespace == "aten"
        else None
    )
    overloads = (
        [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]
    )
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def _is_given_up(chain: Chain, shape: tuple[int, ...]) -> bool:
    """True if devices gather a value and keep another slice of it."""
    kinds = {link.row.kind for link in chain.links}
    return (
        chain.is_cut
        and "all-gather" in kinds
        and any(tiles_of(shape, shard) for shard in chain.afters)
    )
