"""A compiled program, and in words why a graph is not it."""

import re
from typing import Any

from . import metrics
from .ir import Entry, Leaf, Line, Meta, Node
from .lower import Graph
from .sharding import Sharding
from .source import node_line

_LIST = re.compile(r"\[[-\d, ]*\]")  # a shape, in the text of an op's arguments

# So many programs of one barrier that differ in shapes alone are worth a hint.
MANY = 8


class Program:
    """A compiled graph: the executable, where its results lie, and enough of the graph to say what changed later."""

    __slots__ = ("entries", "executable", "leaves", "line", "lines", "name", "pinned", "record", "results")

    def __init__(self, name: str, line: Line, graph: Graph, executable: Any, results: list[Sharding]):
        self.name = name
        self.line = line
        self.executable = executable
        self.results = results
        self.entries = [node.entry for node in graph.nodes]
        self.lines = [(node.code, node.instruction) for node in graph.nodes]
        self.leaves: list[tuple[Meta, Sharding]] = []
        for leaf in graph.leaves:
            assert leaf.sharding is not None, "placement.assign gives each input one"
            self.leaves.append((leaf.meta, leaf.sharding))
        self.pinned = list(graph.pinned)
        self.record: metrics.CompileRecord | None = None


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
        if old is not node.entry:
            return f"{_changed_op(old, node.entry)} at {Line(node.code, node.instruction)}"
    if len(before.entries) != len(entries):
        return f"the graph has {len(entries)} ops, before {len(before.entries)}"
    for (meta, sharding), leaf in zip(before.leaves, graph.leaves, strict=False):
        if meta is not leaf.meta:
            return f"an input is now {leaf.meta!r}, before {meta!r}"
        if sharding is not leaf.sharding:
            return f"the input {leaf.meta!r} now lies as {leaf.sharding!r}, before as {sharding!r}"
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
