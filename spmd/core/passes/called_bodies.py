"""Calls of recorded functions become the ops that were recorded, so that all other passes see those."""

from collections.abc import Sequence

from ..graph.graph import Graph, Node, results, value_name
from ..lower.region import Called
from .rewrite import Rewrite


def inlined(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with the ops of each call in its place, and how many calls there were, in words."""
    calls = sum(isinstance(node.op.lowering, Called) for node in graph.nodes)
    if not calls:
        return graph, ""
    made = Rewrite(graph)
    for node in graph.nodes:
        if isinstance(node.op.lowering, Called):
            _inline(made, node, node, made.numbers[node])
        else:
            made.copy(node)
    return made.graph(), f"{calls} calls of {len(made.nodes) - len(graph.nodes) + calls} ops"


def _inline(made: Rewrite, call: Node, recorded: Node, numbers: Sequence[float | int]) -> None:
    """Adds the ops of a call. recorded: the op of the graph that it is part of; numbers: its own scalar arguments."""
    body = call.op.lowering.body  # type: ignore[attr-defined]  # a `Called`
    made.now |= {device_data: made.value(value) for device_data, value in zip(body.inputs, call.operands, strict=True)}
    start = 0
    for node in body.nodes:
        own = numbers[start : start + len(node.op.numbers)]
        start += len(own)
        if isinstance(node.op.lowering, Called):
            _inline(made, node, recorded, own)
        else:
            made.replace(results(node), made.add(node.op, node.operands, node, own, (recorded,)))
    made.now |= {value_name(value): made.value(root) for value, root in zip(results(call), body.roots, strict=True)}
