"""The graph for which a program was compiled, as facts that are kept with it: for what is said of later graphs."""

from collections.abc import Callable
from typing import Any

from ..base.config import config
from ..graph.graph import Graph, TupleElement, Value
from ..graph.op import OpSpec
from ..graph.source import node_line
from .program import Program

# The flags that make two programs of one graph.
SETTINGS = ("partitioner", "compiler_options", "scan_layers", "max_logits_bytes")

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
        place = _places(graph)
        self.wiring = [tuple(map(place, node.operands)) for node in graph.nodes]
        self.roots = list(map(place, graph.roots))
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
    found: dict[str, Any] = {
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
        found["bytes"] = {"arguments": program.record.argument_bytes, "temporaries": program.record.temp_bytes}
    return found


def _op(op: OpSpec) -> list[str]:
    statics = f"({op.statics})" if op.statics else ""
    sharded = "" if op.sharding is None else f" as {op.sharding!r}"
    return [op.name, f"{op.name}{statics} -> {', '.join(map(repr, op.metas))}{sharded}", op.encoded[:16]]
