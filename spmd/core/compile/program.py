"""A compiled program, and what is kept of the graph that it was made from."""

from typing import Any

from .. import metrics
from ..ir.graph import Graph, Port, origin
from ..ir.source import Line, node_line
from ..sharding.value import Sharding

# So many programs of one barrier that differ in shapes alone are worth a hint.
MANY = 4


class Program:
    """A compiled graph: the executable, where its results lie, and enough of the graph to say what changed later.

    inputs, outputs: what a run takes and gives. donated: per leaf, whether a run takes its buffer; foreign: the inputs
    whose mesh has the devices in another order than the program, and how they lie in it; respelled: the outputs of
    which that is so, and how they are named. calls_host: whether a run calls Python, which may raise. smallest: which
    output takes least. bytes_needed: what a run allocates on the devices of this process, over all of them.
    is_planned: it was compiled for a plan, and no run has needed it yet. is_unrolled: XLA would copy the stacks of its
    layers, which therefore are no loops.
    made_by: of each result the place of its op among `entries` and `lines`.
    fingerprint: with several processes, what they compared. loops: (first op, turns, ops of a turn) of each. asked:
    what the graph was, for the words of what changes later (see `difference.Asked`). exchanges: its collectives,
    each with the place of the op that it came from.
    """

    __slots__ = (
        "__weakref__", "asked", "bytes_needed", "calls_host", "donated", "entries", "exchanges", "executable",
        "fingerprint", "foreign", "inputs", "is_planned",
        "is_unrolled", "line", "lines", "loops", "made_by", "name", "outputs", "record",
        "respelled", "results", "smallest",
    )  # fmt: skip

    def __init__(self, name: str, line: Line, graph: Graph, executable: Any, results: list[Sharding]):
        self.name = name
        self.line = line
        self.executable = executable
        self.results = results
        self.entries = [node.entry for node in graph.nodes]
        self.lines = [node_line(node) for node in graph.nodes]
        places: dict[Any, int] = {node: place for place, node in enumerate(graph.nodes)}
        self.made_by = [places.get(origin(root), -1) for root in graph.roots]
        self.donated = graph.donated
        self.asked: Any = None
        self.inputs = graph.inputs()
        self.outputs = graph.outputs()
        self.loops = tuple((loop.start, loop.turns, loop.period) for loop in graph.loops)
        order = graph.mesh.device_ids
        self.foreign = [
            (i, port.sharding.over(order))
            for i, port in enumerate(self.inputs)
            if port.sharding is not None and port.sharding.device_ids != order
        ]
        self.respelled = [
            (i, lies.jax)
            for i, port in enumerate(self.outputs if results else ())
            if (lies := self._lies(port)).device_ids != order
        ]
        self.smallest = min(range(len(self.outputs)), key=lambda i: self.outputs[i].meta.nbytes)
        self.calls_host = False
        self.is_planned = self.is_unrolled = False
        self.bytes_needed = 0
        self.fingerprint = b""
        self.record: metrics.CompileRecord | None = None
        self.exchanges: tuple[tuple[metrics.Collective, int | None], ...] = ()

    def _lies(self, port: Port) -> Sharding:
        """How an output lies: as asked, else as the compiler chose."""
        return (
            self.results[port.places] if isinstance(port.places, int) else self.results[max(port.places)].behind_rows()
        )

    def is_at(self, line: Line) -> bool:
        """Whether it was made for the barrier of this line."""
        return self.line.code is line.code and self.line.number == line.number
