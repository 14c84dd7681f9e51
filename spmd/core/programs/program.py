"""A compiled program: the facts that are kept of its graph, also for what is said of later graphs, and its log line."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base import counters
from ..base.config import config
from ..base.move import Move
from ..graph.graph import SETTINGS, Graph, Node, Port, TupleElement, Value, origin, pack_numbers
from ..graph.op import OpSpec
from ..graph.source import Line, lines_of, node_line
from ..lower.lower import FOUND_LOOP
from ..sharding.value import Sharding


class Program:
    """A compiled graph: the executable, the results' shardings, and enough of the graph to describe later changes.

    inputs, outputs: the ports of a run. donated: per input, whether a run takes its buffer; foreign: the inputs whose
    mesh has the devices in another order than the program, with their sharding in its order; respelled: the outputs of
    which that is true, with their own sharding. calls_host: whether a run calls Python, which may raise. smallest: the
    output with fewest bytes. bytes_needed: the bytes that a run allocates on the devices of this process, over all of
    them. is_planned: it was compiled for a plan, and no run has needed it yet. is_loaded: it was not compiled here, but
    read from the disk. is_unrolled: XLA would copy the stacks of its layers, which therefore are no loops. made_by: for
    each result the place of its op among `entries` and `lines`. fingerprint: the digest that several processes
    compared. loops: (first op, trip count, ops of an iteration) of each. requested: the graph, for the description of
    later changes (see `Requested`). exchanges: its collectives, each with the place of the op that it came
    from. moves: those that no annotation requests, in the same way. numbers: for the floats and the integers, the
    order in which the program takes the scalar arguments of the recorded ops; None for theirs. paths: the module of
    each op, where they were noted (`ir.module_paths`).
    """

    def __init__(self, name: str, line: Line, graph: Graph, executable: Any, results: list[Sharding]):
        self.name = name
        self.line = line
        self.executable = executable
        self.results = results
        recorded = graph.recorded or graph
        self.entries = [node.op for node in recorded.nodes]
        self.lines = lines_of(recorded.nodes)
        at: dict[Node | None, int] = {node: index for index, node in enumerate(recorded.nodes)}
        self.made_by = [at.get(origin(root), -1) for root in recorded.roots]
        self.numbers: tuple[np.ndarray, ...] | None = None
        if graph.recorded is not None:
            self.numbers = tuple(np.array(places, np.int64) for places in pack_numbers(graph.nodes))
        self.donated = graph.donated
        self.requested: Requested
        self.inputs = graph.arguments()
        self.outputs = graph.results()
        self.loops = tuple(
            (at[graph.sources[node][0]], node.op.lowering.iterations, len(graph.sources[node]))  # type: ignore[attr-defined]
            for node in graph.nodes
            if node.op.name == FOUND_LOOP
        )
        order = graph.mesh.device_ids
        self.foreign = [
            (i, port.sharding.over(order))
            for i, port in enumerate(self.inputs)
            if port.sharding is not None and port.sharding.device_ids != order
        ]
        self.respelled = [
            (i, sharding.jax)
            for i, port in enumerate(self.outputs if results else ())
            if (sharding := self._sharding(port)).device_ids != order
        ]
        self.smallest = min(range(len(self.outputs)), key=lambda i: self.outputs[i].meta.nbytes)
        self.calls_host = False
        self.is_planned = self.is_loaded = self.is_unrolled = False
        self.bytes_needed = 0
        self.fingerprint = b""
        self.record: counters.CompileRecord | None = None
        self.exchanges: tuple[tuple[counters.Collective, int | None], ...] = ()
        self.moves: tuple[tuple[Move, int], ...] = ()
        self.paths: tuple[str, ...] = ()

    def _sharding(self, port: Port) -> Sharding:
        """Returns the sharding of an output: the requested one, else the one that the compiler chose."""
        return (
            self.results[port.places] if isinstance(port.places, int) else self.results[max(port.places)].behind_rows()
        )

    def is_at(self, line: Line) -> bool:
        """True if the program was compiled for the sync at this line."""
        return self.line.code is line.code and self.line.number == line.number


Place = tuple[int, int]  # (number of the op, number of its result) of a value; (~i, 0) for input i


class Requested:
    """The graph for which a program was compiled: ops and their lines, inputs (meta, sharding), the places of the
    operands of each op and of the results (roots), the shardings requested for the results, the donated inputs, the
    flags.

    run: the number of the run that needed it first.
    """

    __slots__ = ("donated", "entries", "inputs", "lines", "pinned", "roots", "run", "settings", "wiring")

    def __init__(self, graph: Graph, run: int):
        self.entries = [node.op for node in graph.nodes]
        self.lines = [node_line(node) for node in graph.nodes]
        self.inputs = list(zip((data.meta for data in graph.inputs), graph.shardings, strict=True))
        place_of = _places(graph)
        self.wiring = [tuple(map(place_of, node.operands)) for node in graph.nodes]
        self.roots = list(map(place_of, graph.roots))
        self.pinned = list(graph.pinned)
        self.donated = graph.donated
        self.settings = {name: getattr(config, name) for name in SETTINGS}
        self.run = run

    def value(self, place: Place) -> str:
        """Describes a value by its place."""
        at, _ = place
        if at < 0:
            return f"input {~at} ({self.inputs[~at][0]!r})"
        return f"the result of {self.entries[at].name} at {self.lines[at]}"


def _places(graph: Graph) -> Callable[[Value], Place]:
    """Returns the function from a value of a graph to its place."""
    position: dict[Value, int] = {device_data: ~i for i, device_data in enumerate(graph.inputs)}
    position |= {node: i for i, node in enumerate(graph.nodes)}
    return lambda value: (position[value.node], value.index) if type(value) is TupleElement else (position[value], 0)


def listing(requested: Requested, program: Program | None = None) -> dict[str, Any]:
    """Returns the graph as lists and text: inputs, ops with their lines, results, donation, flags."""
    facts: dict[str, Any] = {
        "flags": {name: str(value) for name, value in requested.settings.items()},
        "inputs": [[repr(meta), repr(sharding)] for meta, sharding in requested.inputs],
        "ops": [_op(op) for op in requested.entries],
        "lines": [str(line) for line in requested.lines],
        "wiring": [[list(place) for place in places] for places in requested.wiring],
        "results": [
            [list(place), None if sharding is None else repr(sharding)]
            for place, sharding in zip(requested.roots, requested.pinned, strict=True)
        ],
        "donated": list(requested.donated),
    }
    if program is not None and program.record is not None:
        facts["bytes"] = {"arguments": program.record.argument_bytes, "temporaries": program.record.temp_bytes}
    return facts


def _op(op: OpSpec) -> list[str]:
    statics = f"({op.statics})" if op.statics else ""
    sharded = "" if op.sharding is None else f" as {op.sharding!r}"
    return [op.name, f"{op.name}{statics} -> {', '.join(map(repr, op.metas))}{sharded}", op.encoded[:16]]


# In a cause: what stands behind the first statement, and the lines of the user.
_REST = re.compile(r"; .*| at \S+:\d+ in .*", re.DOTALL)
Notes = tuple[tuple[str, str], ...]
Reader = Callable[[Program, Graph], dict[str, Any]]
# What packages read from an executable, as fields of its line (`counters.CompileRecord`): of the program once it is
# compiled; of a run, for the graph, as it was recorded, that needs the program.
of_program: list[Reader] = []
of_run: list[Reader] = []


def record(
    program: Program, graph: Graph, name: str, cause: str, line: Line, seconds: float, miscompiles: Notes = ()
) -> counters.CompileRecord:
    """Returns a program's line of the compile log."""
    memory = program.executable.memory_analysis()
    fields: dict[str, Any] = {}
    for read in of_program:
        fields |= read(program, graph)
    if "flops" not in fields:  # a reader that counts loops has XLA's count already
        fields["flops"] = num_flops(program.executable)
    return counters.CompileRecord(
        **fields,
        **_of_run(program, graph.recorded or graph, name, cause, line),
        seconds=seconds,
        nodes=len(program.entries),
        argument_bytes=getattr(memory, "argument_size_in_bytes", 0),
        output_bytes=getattr(memory, "output_size_in_bytes", 0),
        temp_bytes=getattr(memory, "temp_size_in_bytes", 0),
        alias_bytes=getattr(memory, "alias_size_in_bytes", 0),
        passes=(*graph.notes, *miscompiles),
    )


def _of_run(program: Program, graph: Graph, name: str, cause: str, line: Line) -> dict[str, Any]:
    """Returns the fields that belong to the run that needs a program."""
    codes = {place.code: None for place in (*program.lines, line) if place.code is not None}
    fields: dict[str, Any] = {
        "name": name, "cause": cause, "line": str(line),
        "loops": tuple((iterations, period) for _, iterations, period in program.loops),
        "functions": tuple(map(counters.place_of_code, codes)),
    }  # fmt: skip
    for read in of_run:
        fields |= read(program, graph)
    return fields


def taken(program: Program, graph: Graph, name: str, cause: str, line: Line) -> None:
    """Assigns a program that was compiled for a plan, or by an earlier process, to this graph: sets its source lines
    and adds its line to the compile log."""
    assert program.record is not None, "it was compiled"
    graph = graph.recorded or graph
    program.name, program.line, program.is_planned = name, line, False
    program.lines = lines_of(graph.nodes)
    program.record = dataclasses.replace(program.record, **_of_run(program, graph, name, cause, line))
    counters.record_compile(program.record)


def num_flops(executable: object) -> float:
    """XLA's own count of floating-point operations per device, the body of a loop counted once; 0 if it gives none."""
    costs = executable.cost_analysis() or {}  # type: ignore[attr-defined]  # jax has two classes for it
    costs = costs[0] if isinstance(costs, list) else costs
    return float(costs.get("flops", 0.0))


def short(cause: str) -> str:
    """Returns the first statement of a cause, without the user's line.

    >>> short("an input is now float32[5], before float32[8]; aten.mm reads it at a.py:3 in step: x @ w")
    'an input is now float32[5], before float32[8]'
    """
    return _REST.sub("", cause)
