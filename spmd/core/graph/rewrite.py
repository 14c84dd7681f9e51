"""rewrite: a graph rebuilt op by op, by rules: the engine of all passes that make a graph of
another."""

# Why one engine: a pass that makes ops must keep what the rest of a compilation reads of them (the
# user's line, the recorded ops behind each, the indices of scalar arguments). Here that is done
# once, and a pass is a table of rules.

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from .graph import Graph, Node, Value, results, value_name
from .op import Lowering, OpSpec


class Rewrite:
    """A graph rewritten node by node.

    nodes: all new; their scalar arguments are indices into those of the recorded ops. sources: for
    each node, its recorded nodes. new_values: by name of the old value. is_recorded: the
    result counts as recorded: its ops keep scalar arguments and serial numbers.
    """

    def __init__(self, old: Graph, *, is_recorded: bool = False):
        self.old = old
        self.is_recorded = is_recorded
        # Numbers become indices into the vectors of the recorded graph's numbers; a rewritten graph
        # has such indices already.
        keeps_numbers = is_recorded or old.recorded is not None
        self.numbers = (
            {node: node.numbers for node in old.nodes}
            if keeps_numbers
            else _indices_of_numbers(old.nodes)
        )
        self.nodes: list[Node] = []
        self.sources: dict[Node, Sequence[Node]] = {}
        self.new_values: dict[object, Value] = {}

    def value(self, value: Value) -> Value:
        """Returns the new graph's value for one of the old graph; any other as it is."""
        return self.new_values.get(value_name(value), value)

    def add(
        self,
        op: OpSpec,
        operands: Iterable[Value],
        like: Node,
        numbers: Sequence[float | int] = (),
        sources: Sequence[Node] = (),
    ) -> Node:
        """Adds and returns an op at the user's line of the old node `like`. sources: its recorded
        nodes; default: those of `like`."""
        result = Node(
            op,
            tuple(map(self.value, operands)),
            numbers,
            like.code,
            like.instruction,
            like.sequence,
        )
        if self.is_recorded:
            result.serial = like.serial
        self.nodes.append(result)
        # With the source, so that errors, costs and the log name the line of the op that was
        # recorded.
        self.sources[result] = sources or self.old.sources.get(like, (like,))
        return result

    def replace(self, values: Iterable[Value], node: Node) -> None:
        """Makes the results of a new node stand for these values of the old graph."""
        self.new_values |= zip(map(value_name, values), results(node), strict=True)

    def put(
        self, node: Node, op: OpSpec, operands: Iterable[Value], numbers: Sequence[float | int] = ()
    ) -> Node:
        """Adds an op whose results replace those of a node of the old graph; returns the op."""
        result = self.add(op, operands, node, numbers)
        self.replace(results(node), result)
        return result

    def copy(self, node: Node) -> None:
        """Adds an op of the old graph."""
        self.put(node, node.op, node.operands, self.numbers[node])

    def drop(self, node: Node) -> None:
        """Adds nothing for an op of the old graph: its results are not read, or another rule
        replaces them."""

    def graph(self) -> Graph:
        """Returns the new graph."""
        new = dataclasses.replace(
            self.old, nodes=self.nodes, roots=list(map(self.value, self.old.roots))
        )
        if self.is_recorded:
            return new
        return dataclasses.replace(
            new, recorded=self.old.recorded or self.old, sources=self.sources
        )


Rule = Callable[[Rewrite, Node], None]


def rewrite(
    graph: Graph,
    rules: Mapping[Node, Rule],
    *,
    of_kinds: Mapping[type[Lowering], Rule] = MappingProxyType({}),
) -> Graph:
    """Returns the graph with each op that has a rule replaced by what its rule adds; the others are
    copied.

    rules: by the op; a rule may add more of them, for later ops. of_kinds: by the kind of an op's
    lowering.
    """
    new = Rewrite(graph)
    for node in graph.nodes:
        # The op's own rule first: a pass that has found a pattern knows more than the kind of an op
        # says.
        rule = rules.get(node) or of_kinds.get(type(node.op.lowering)) or Rewrite.copy
        rule(new, node)
    return new.graph()


def _indices_of_numbers(nodes: Sequence[Node]) -> dict[Node, Sequence[float | int]]:
    """Returns the indices of each op's scalar arguments in the vectors of all floats and of all
    integers."""
    # Indices and not values: a rewritten program takes the same two vectors as the graph that was
    # recorded.
    next_index = {"f": 0, "i": 0}
    by_node: dict[Node, Sequence[float | int]] = {}
    for node in nodes:
        indices: list[float | int] = []
        for kind in node.op.numbers if node.numbers else "":
            indices.append(next_index[kind])
            next_index[kind] += 1
        by_node[node] = indices
    return by_node
