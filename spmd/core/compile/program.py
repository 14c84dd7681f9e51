"""A compiled program, and in words why a graph is not it."""

import re
from typing import Any

from .. import metrics
from ..ir.graph import Graph, Leaf, Node, Port
from ..ir.op import PADDED, Entry
from ..ir.source import Line, node_line
from ..sharding.value import Sharding

_LIST = re.compile(r"\[[-\d, ]*\]")  # a shape, in the text of an op's arguments

# So many programs of one barrier that differ in shapes alone are worth a hint.
MANY = 8


class Program:
    """A compiled graph: the executable, where its results lie, and enough of the graph to say what changed later.

    inputs, outputs: what a run takes and gives. donated: per leaf, whether a run takes its buffer; foreign: the inputs
    whose mesh has the devices in another order than the program, and how they lie in it; respelled: the outputs of
    which that is so, and how they are named. calls_host: whether a run calls Python, which may raise. smallest: which
    output takes least. bytes_needed: what a run allocates on the devices of this process, over all of them.
    fingerprint: with several processes, what they compared. loops: (turns, ops of a turn) of each.
    """

    __slots__ = (
        "__weakref__", "bytes_needed", "calls_host", "donated", "entries", "executable", "fingerprint", "foreign",
        "inputs", "leaves", "line", "lines", "loops", "name", "outputs", "pinned", "record", "respelled", "results",
        "smallest",
    )  # fmt: skip

    def __init__(self, name: str, line: Line, graph: Graph, executable: Any, results: list[Sharding]):
        self.name = name
        self.line = line
        self.executable = executable
        self.results = results
        self.entries = [node.entry for node in graph.nodes]
        self.lines = [node_line(node) for node in graph.nodes]
        self.leaves = [(leaf.meta, lies) for leaf, lies in zip(graph.leaves, graph.lies, strict=True)]
        self.pinned = list(graph.pinned)
        self.donated = graph.donated
        self.inputs = graph.inputs()
        self.outputs = graph.outputs()
        self.loops = tuple((loop.turns, loop.period) for loop in graph.loops)
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
        self.bytes_needed = 0
        self.fingerprint = b""
        self.record: metrics.CompileRecord | None = None

    def _lies(self, port: Port) -> Sharding:
        """How an output lies: as asked, else as the compiler chose."""
        return (
            self.results[port.places] if isinstance(port.places, int) else self.results[max(port.places)].behind_rows()
        )


def difference(before: Program, graph: Graph, *, num_alike: int) -> str:
    """The first thing in which a graph differs from a program that the same barrier ran before.

    num_alike: how many of its programs have the same ops, on whatever shapes.
    """
    changed = changed_input(before, graph)
    if changed is not None:
        return (
            changed if num_alike < 2 else f"{changed} ({num_alike} programs here differ from this one by shapes alone)"
        )
    entries = [node.entry for node in graph.nodes]
    for old, node in zip(before.entries, graph.nodes, strict=False):
        if node.entry.statics == PADDED != old.statics and node.entry.name == old.name:
            return (
                f"{old.name}: the length ({old.statics}) differs from run to run and is an operand from now on at "
                f"{Line(node.code, node.instruction)}"
            )
    for old, node in zip(before.entries, graph.nodes, strict=False):
        if old is not node.entry:
            return f"{_changed_op(old, node.entry)} at {Line(node.code, node.instruction)}"
    if len(before.entries) != len(entries):
        return f"the graph has {len(entries)} ops, before {len(before.entries)}"
    for (meta, sharding), leaf, lies in zip(before.leaves, graph.leaves, graph.lies, strict=False):
        if meta is not leaf.meta:
            return f"an input is now {leaf.meta!r}, before {meta!r}"
        if sharding is not lies:
            return f"the input {leaf.meta!r} now lies as {lies!r}, before as {sharding!r}"
    if before.pinned != graph.pinned:
        return f"other results are kept: {len(graph.pinned)} now, {len(before.pinned)} before, or annotated differently"
    return "same ops, wired or donated differently (another set of tensors is alive at the barrier)"


def changed_input(before: Program, graph: Graph) -> str | None:
    """Of the inputs whose shape or dtype has changed the greatest, where nothing else has; else None."""
    if len(before.entries) != len(graph.nodes) or len(before.leaves) != len(graph.leaves):
        return None
    if not all(_is_reshaped(old, node.entry) for old, node in zip(before.entries, graph.nodes, strict=True)):
        return None
    changed = [
        (leaf, meta) for (meta, _), leaf in zip(before.leaves, graph.leaves, strict=True) if meta is not leaf.meta
    ]
    if not changed:
        return None
    leaf, meta = max(changed, key=lambda pair: pair[0].meta.nbytes)
    reader = _first_reader(leaf, graph.nodes)
    return f"an input is now {leaf.meta!r}, before {meta!r}; {reader.entry.name} reads it at {node_line(reader)}"


def _is_reshaped(old: Entry, new: Entry) -> bool:
    """Whether two ops are one, but for shapes."""
    return old is new or (old.name == new.name and _LIST.sub("", old.statics) == _LIST.sub("", new.statics))


def _first_reader(leaf: Leaf, nodes: list[Node]) -> Node:
    return next(node for node in nodes if any(operand is leaf for operand in node.operands))


def _changed_op(old: Entry, new: Entry) -> str:
    if old.name != new.name:
        return f"op {new.name} instead of {old.name}"
    if old.moving is not None and old.moving[0] is new:
        return f"{new.name}: the position ({old.statics}) differs from run to run and is an operand from now on"
    if old.statics != new.statics:
        return f"{new.name}: the static arguments ({new.statics}) were ({old.statics})"
    return f"{new.name}: makes {new.metas!r}, before {old.metas!r}, or reads other shapes or dtypes"
