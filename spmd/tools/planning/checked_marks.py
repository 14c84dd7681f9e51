"""The annotation that removes a move: candidates, each compiled with, until one does."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch

from ...core import DeviceData, Move, Sharding, Spec, annotations, counters, specs
from ...core.extend import (
    Graph,
    Line,
    Node,
    Program,
    Rewrite,
    Value,
    compiler,
    executables,
    lowering,
    user_lines,
    walks,
)
from ..hlo.unrequested_moves import Placement, spec_text, undoes

_MOVES = 8  # of a program, largest first, that are checked
_VALUES = 8  # around a move
_TRIES = 48  # annotations that are compiled with for one move
_TRIES_FOR_BETTER = 4  # after the first one that removes it
_MORE_FLOPS = 1.25  # that an annotation may cost; more, and the devices compute the same
_MORE_MEMORY = 1.05  # from which on another annotation is searched for

# The value -> its layout; None: no annotation. By `value_name`, of inputs and of recorded values;
# ("copy", input): of a copy of an input, which all ops read in its place.
Edits = Mapping[Any, Sharding | None]


class Cost(NamedTuple):
    """The figures of a program by which two annotations are compared; all are per device."""

    moved: int
    flops: float
    memory: int

    @staticmethod
    def of(program: Program) -> "Cost":
        record = program.record
        assert record is not None, "it was compiled"
        memory = (
            record.argument_bytes + record.temp_bytes + record.output_bytes - record.alias_bytes
        )
        return Cost(
            sum(row.moved_bytes for row, _ in program.facts.exchanges), record.flops, memory
        )


def checked(graph: Graph, program: Program, above: int, line: Line) -> tuple[Placement, ...]:
    """Returns the moves of a program, those of more than `above` bytes with an annotation that
    removes them, where one is found. Compiles programs, and runs none."""
    search = _Search(graph, program, above, line)
    large = [placement for placement in program.facts.moves if placement[0].largest > above][
        :_MOVES
    ]
    search.near = [
        value
        for move, node_index in large
        for value in _values(graph, graph.nodes[node_index], move)
    ]
    checked_moves = {id(placement): search.checked(*placement) for placement in large}
    return tuple(
        (checked_moves.get(id(placement), placement[0]), placement[1])
        for placement in program.facts.moves
    )


class _Search:
    """The search for the moves of one program. near: the values near all of them. tried: what
    became of an annotation; helped: those that removed a move, which are tried first for the next
    one."""

    def __init__(self, graph: Graph, program: Program, above: int, line: Line):
        self.graph, self.above, self.line = graph, above, line
        self.before = Cost.of(program)
        self.tried: dict[Any, tuple[list[Placement], Cost] | None] = {}
        self.wishes: dict[Any, Sharding | None] = {}
        self.helped: list[tuple[Value, Sharding]] = []
        self.near: list[Value] = []
        self.unused = "" if program.record is None else " ".join(program.record.unused_axes)

    def checked(self, move: Move, node_index: int) -> Move:
        """The move with an annotation that removes it; as it is where none of those tried does."""
        best: tuple[Any, Value, Sharding, Cost] | None = None
        left_to_try = _TRIES
        for value, sharding in itertools.chain(self.helped, self._candidates(move, node_index)):
            key = walks.value_name(value), sharding
            if key not in self.tried:
                self.tried[key] = self._compiled({key[0]: sharding})
                left_to_try -= 1
            tried = self.tried[key]
            if tried is not None and self._removes(move, node_index, *tried):
                remaining, cost = tried
                other_bytes = sum(
                    other_move.bytes
                    for other_move, _ in remaining
                    if other_move.largest > self.above
                )
                rank = (
                    cost.memory > self.before.memory * _MORE_MEMORY,
                    other_bytes,
                    cost.moved,
                    cost.memory,
                )
                if best is None or rank < best[0]:
                    best = rank, value, sharding, cost
                    left_to_try = min(left_to_try, _TRIES_FOR_BETTER)
                if not rank[0] and not other_bytes:
                    break
            if left_to_try <= 0:
                break
        if best is None:
            return move
        _, value, sharding, cost = best
        self.helped = [
            (value, sharding),
            *(candidate for candidate in self.helped if candidate != (value, sharding)),
        ]
        moved = f"all collectives then move {cost.moved:,} B, now {self.before.moved:,} B"
        return dataclasses.replace(
            move, mark=f"{_text(self.graph, value, sharding)} ({moved})", is_checked=True
        )

    def _removes(
        self, move: Move, node_index: int, placements: Sequence[Placement], cost: Cost
    ) -> bool:
        is_left = any(
            index == node_index
            and other_move.value == move.value
            and other_move.largest >= move.largest
            for other_move, index in placements
        )
        is_less = cost.moved <= self.before.moved - move.bytes // 2
        return not is_left and is_less and cost.flops <= self.before.flops * _MORE_FLOPS

    def _candidates(self, move: Move, node_index: int) -> Iterator[tuple[Value, Sharding]]:
        """Yields values and layouts to try, each once: first the layouts that XLA would choose for
        the values near the move, then all that cut them evenly, one of each value and then the
        next."""
        visited = set()
        for value, sharding in self._choices(
            _values(self.graph, self.graph.nodes[node_index], move), move
        ):
            key, layout = (walks.value_name(value), sharding), _layout(self.graph, value)
            if (
                sharding is not None
                and sharding is not layout
                and key not in visited
                and not self._undoes(value, sharding)
            ):
                yield value, sharding
            visited.add(key)

    def _undoes(self, value: Value, sharding: Sharding) -> bool:
        """True for a layout without an axis of the value's mark that an op cannot use, which is a
        finding by itself."""
        layout = _layout(self.graph, value)
        return layout is not None and undoes(
            _spec_of(value, layout), _spec_of(value, sharding), self.unused
        )

    def _choices(
        self, values: Sequence[Value], move: Move
    ) -> Iterator[tuple[Value, Sharding | None]]:
        for value in (*values, *self.near):
            if is_mark(value) or type(value) is DeviceData:
                yield value, self._wish(value)
        mesh = self.graph.mesh
        yield from (
            (values[0], layout)
            for layout in _layouts(values[0], mesh)
            if _spec_of(values[0], layout) == move.after
        )
        for several in itertools.zip_longest(*(_layouts(value, mesh) for value in values)):
            yield from zip(values, several, strict=True)

    def _wish(self, value: Value) -> Sharding | None:
        """The layout that XLA chooses for an annotated value without its annotation; for an input
        that of a copy of it, where every device has the input whole."""
        key, mesh = walks.value_name(value), self.graph.mesh
        if key not in self.wishes:
            is_open = mesh.with_spec(Spec((specs.OPEN,) * len(value.meta.shape)))
            edits: Edits = (
                {value: None}
                if is_mark(value)
                else {value: mesh.replicated(), ("copy", value): is_open}
            )
            result, places = _edited(self.graph, edits)
            of = (
                result.nodes[places.index(self.graph.nodes.index(value))]
                if is_mark(value)
                else result.nodes[0]
            )
            more = dataclasses.replace(
                result, roots=[*result.roots, of], pinned=[*result.pinned, None]
            )
            program = self._program(more)
            # XLA's choice may be one that no spec can name, over a mesh of its own.
            layout = None if program is None else program.results[-1]
            self.wishes[key] = (
                layout if layout is not None and layout.axis_names == mesh.axis_names else None
            )
        return self.wishes[key]

    def _compiled(self, edits: Edits) -> tuple[list[Placement], Cost] | None:
        """The moves, by the places of the ops of this graph, and the cost of its program with other
        annotations; None where the partitioner cannot keep to them."""
        result, places = _edited(self.graph, edits)
        program = self._program(result)
        if program is None:
            return None
        return [(move, places[index]) for move, index in program.facts.moves], Cost.of(program)

    def _program(self, graph: Graph) -> Program | None:
        with counters.silent():
            try:
                return compiler.compile_graph(
                    executables.compiled_graph(graph),
                    "plan",
                    self.line,
                    "an annotation is tried",
                    is_planned=True,
                )
            except (lowering.LoweringError, torch.OutOfMemoryError):
                # it cannot be made, which is an answer
                return None


# --- candidates -----------------------------------------------------------------------------------


def _layout(graph: Graph, value: Value) -> Sharding | None:
    if type(value) is DeviceData:
        return graph.shardings[graph.inputs.index(value)]
    return value.op.sharding if is_mark(value) else None


def _spec_of(value: Value, sharding: Sharding) -> str:
    return spec_text(sharding.partition_spec(len(value.meta.shape)))


def _values(graph: Graph, node: Node, move: Move) -> list[Value]:
    """The values near a move: what is moved, then the nearest annotated ones and inputs before and
    behind the op, then results without an annotation."""
    name, _, number = move.value.partition(" ")
    moved = node.operands[int(number)] if name == "operand" else node
    readers: dict[Any, list[Node]] = {}
    for reader in graph.nodes:
        for operand in reader.operands:
            readers.setdefault(walks.origin(operand) or operand, []).append(reader)
    later = [*_nearest([node], lambda reader: readers.get(reader, ()))]
    beside = (operand for reader in later for operand in reader.operands)
    near: dict[Any, Value] = {}
    makers, operands, nearby_values = (
        _nearest(values, _operands) for values in ([moved], node.operands, beside)
    )
    for value in (*makers, *later, *operands, *nearby_values):
        if value.meta.shape and (is_mark(value) or type(value) is DeviceData):
            near.setdefault(walks.value_name(value), value)
    plain = [
        candidate
        for candidate in dict.fromkeys((moved, node))
        if type(candidate) is Node and walks.value_name(candidate) not in near
    ]
    return [*list(near.values())[:_VALUES], *plain] or [node]


_STEPS = 48
_V = TypeVar("_V", bound=Value)


def _operands(value: Value) -> Sequence[Value]:
    """The values that a value is made of; none of an input."""
    maker = walks.origin(value)
    return () if maker is None else maker.operands


def _nearest(values: Iterable[_V], neighbours: Callable[[_V], Sequence[_V]]) -> Iterator[_V]:
    """Yields values and others that each leads to, nearest first, up to annotations."""
    todo, visited = list(values), set()
    for _ in range(_STEPS):
        if not todo:
            return
        value = todo.pop(0)
        name = walks.value_name(value)
        if name not in visited:
            visited.add(name)
            yield value
            todo += () if is_mark(value) else neighbours(value)


def _layouts(value: Value, mesh: Sharding) -> list[Sharding]:
    """The layouts that cut a value evenly: none, then those over most devices first."""
    shape, names = (
        tuple(value.meta.shape),
        [name for name, size in mesh.mesh_axes().items() if size > 1],
    )
    layouts: list[tuple[int, Sharding]] = []
    for dims in itertools.product(range(-1, len(shape)), repeat=len(names)):
        axes = [
            tuple(name for name, dim in zip(names, dims, strict=True) if dim == index)
            for index in range(len(shape))
        ]
        sharding = mesh.with_spec(Spec.of(*axes))
        if sharding.padded_shape(shape) == shape:
            layouts.append((math.prod(sharding.tiles(len(shape))), sharding))
    return [sharding for _, sharding in sorted(layouts, key=lambda pair: (pair[0] > 1, -pair[0]))]


# --- words ----------------------------------------------------------------------------------------


def _text(graph: Graph, value: Value, sharding: Sharding) -> str:
    """The annotation in words: the value, its line, and both layouts."""
    shape, old_layout = list(value.meta.shape), _layout(graph, value)
    instead = "" if old_layout is None else f" instead of {_spec_of(value, old_layout)}"
    node = walks.origin(value)
    if node is None:
        reader = next(candidate for candidate in graph.nodes if value in candidate.operands)
        of = (
            f"the input {shape} that {user_lines.source_of(reader).op.name} reads at "
            f"{_place(graph, reader)}"
        )
    else:
        # A gradient is annotated in a hook of its tensor.
        name = "gradient" if user_lines.source_of(node).sequence >= 0 else "result"
        of = f"the {name} {shape} of {user_lines.source_of(node).op.name} at {_place(graph, node)}"
    return f"mark_sharding of {of} as {_spec_of(value, sharding)}{instead}"


def _place(graph: Graph, node: Node) -> str:
    """The file and the number of an op's line."""
    line = user_lines.line_of(node, graph.nodes)
    return "an unknown line" if line.code is None else f"{line.code.co_filename}:{line.number}"


# --- graphs with other annotations ----------------------------------------------------------------


def is_mark(value: Value | None) -> TypeGuard[Node]:
    """True for an annotated value that stays in the devices' memory."""
    return type(value) is Node and value.op.name == "mark_sharding"


def _edited(graph: Graph, edits: Edits) -> tuple[Graph, list[int]]:
    """Returns the graph with these annotations, and for each op of it the place in the old graph
    (-1: a new one).

    An annotated value gets the other annotation in the place of its own, any other value one of its
    own. An input that a result is written over is state: the result, and what meets it in its
    update with the same shape and layout (gradient, moments), follow it.
    """
    edits = {**edits, **_state(graph, edits)}
    new, places = Rewrite(graph, is_recorded=True), list[int]()

    def mark(value: Value, sharding: Sharding | None, like: Node, shift: float) -> None:
        """Adds an annotation of a value before or behind an op; what reads the value reads it."""
        assert sharding is not None, "a value without an annotation has none to take away"
        node = new.add(annotations.mark_op(value.meta, sharding), (value,), like)
        node.serial += shift
        new.replace([value], node)
        places.append(-1)

    for key, sharding in edits.items():
        if isinstance(key, tuple) and key[0] == "copy":
            mark(key[1], sharding, graph.nodes[0], -0.5)
    for index, node in enumerate(graph.nodes):
        op, annotated = node.op, is_mark(node)
        if annotated and node in edits:
            instead = edits[node]
            op = (
                annotations.unmarked_op(node.meta)
                if instead is None
                else annotations.mark_op(node.meta, instead)
            )
        new.put(node, op, node.operands, node.numbers)
        places.append(index)
        for result in () if annotated else walks.results(node):
            if (name := walks.value_name(result)) in edits:
                mark(result, edits[name], node, 0.5)
    shardings = [
        edits.get(data) or sharding
        for data, sharding in zip(graph.inputs, graph.shardings, strict=True)
    ]
    pinned = [_pinned(graph, index, edits) for index in range(len(graph.roots))]
    return dataclasses.replace(new.graph(), shardings=shardings, pinned=pinned), places


def _pinned(graph: Graph, root_index: int, edits: Edits) -> Sharding | None:
    """The layout that a result must have: that of the input that it is written over, or its own
    annotation."""
    for data, onto in zip(graph.inputs, graph.onto, strict=False):
        if onto == root_index and edits.get(data) is not None:
            return edits[data]
    root = graph.roots[root_index]
    return (
        edits[walks.value_name(root)]
        if walks.value_name(root) in edits and is_mark(root)
        else graph.pinned[root_index]
    )


def _state(graph: Graph, edits: Edits) -> dict[Any, Sharding | None]:
    """The layouts of what meets an input of `edits` in its update: of its shape, and of the layout
    that it has now."""
    data_shardings = dict(zip(graph.inputs, graph.shardings, strict=True))
    shardings: dict[Any, Sharding | None] = {}
    for data, onto in zip(graph.inputs, graph.onto, strict=False):
        if data not in edits or onto is None:
            continue
        for node in walks.between([graph.roots[onto]], [data]):
            for value in (node, *node.operands):
                if value.meta.shape == data.meta.shape:
                    its = (
                        data_shardings.get(value)
                        if type(value) is DeviceData
                        else value.op.sharding
                        if is_mark(value)
                        else None
                    )
                    if its is data_shardings[data] and value not in edits:
                        shardings[value] = edits[data]
    return shardings
