"""A graph rebuilt op by op, for the passes over the graph that is compiled."""

import dataclasses
from collections.abc import Iterable, Sequence

from ..graph.graph import Graph, Node, Value, results, value_name
from ..graph.op import OpSpec


class Rewrite:
    """The nodes of a new graph in order, each with the recorded ones that it was made of, and what the values of the
    old graph are now, by name.

    All nodes are new: their scalar arguments are places among those of the recorded ops.
    """

    def __init__(self, old: Graph):
        self.old = old
        self.numbers = _places_of_numbers(old.nodes) if old.recorded is None else {n: n.numbers for n in old.nodes}
        self.nodes: list[Node] = []
        self.sources: dict[Node, Sequence[Node]] = {}
        self.now: dict[object, Value] = {}

    def value(self, value: Value) -> Value:
        """Returns the new graph's value for one of the old graph; any other as it is."""
        return self.now.get(value_name(value), value)

    def add(
        self,
        op: OpSpec,
        operands: Iterable[Value],
        like: Node,
        numbers: Sequence[float | int] = (),
        sources: Sequence[Node] = (),
    ) -> Node:
        """Adds an op at the user's line of a node of the old graph; sources: as that node's, unless given."""
        result = Node(op, tuple(map(self.value, operands)), numbers, like.code, like.instruction, like.sequence)
        self.nodes.append(result)
        self.sources[result] = sources or self.old.sources.get(like, (like,))
        return result

    def replace(self, values: Iterable[Value], made: Node) -> None:
        """Makes the results of a new node stand for these values of the old graph."""
        self.now |= zip(map(value_name, values), results(made), strict=True)

    def copy(self, node: Node) -> None:
        """Adds an op of the old graph."""
        self.replace(results(node), self.add(node.op, node.operands, node, self.numbers[node]))

    def graph(self) -> Graph:
        """Returns the new graph."""
        return dataclasses.replace(
            self.old,
            nodes=self.nodes,
            roots=list(map(self.value, self.old.roots)),
            recorded=self.old.recorded or self.old,
            sources=self.sources,
        )


def _places_of_numbers(nodes: Sequence[Node]) -> dict[Node, Sequence[float | int]]:
    """Returns the places of the scalar arguments of each op among the floats and among the integers of all."""
    count = {"f": 0, "i": 0}
    found: dict[Node, Sequence[float | int]] = {}
    for node in nodes:
        places: list[float | int] = []
        for kind in node.op.numbers if node.numbers else "":
            places.append(count[kind])
            count[kind] += 1
        found[node] = places
    return found
