"""Inlines calls of recorded functions, for all later passes."""

from collections.abc import Sequence

from ..graph.graph import Graph, Node, results, value_name
from ..graph.rewrite import Rewrite, rewrite
from ..lower.region import Called


def inlined(graph: Graph, may_scan: bool) -> tuple[Graph, str]:
    """Returns the graph with the ops of its body in place of each call, whether or not it may be
    scanned; and the number of calls, in words."""
    num_calls = sum(isinstance(node.op.lowering, Called) for node in graph.nodes)
    result = rewrite(
        graph, {}, of_kinds={Called: lambda new, node: _inline(new, node, node, new.numbers[node])}
    )
    return result, f"{num_calls} calls of {len(result.nodes) - len(graph.nodes) + num_calls} ops"


def _inline(new: Rewrite, call: Node, recorded: Node, numbers: Sequence[float | int]) -> None:
    """Adds the ops of a call. recorded: the graph's op that contains the call; numbers: the call's
    own scalar arguments."""
    assert isinstance(call.op.lowering, Called)
    body = call.op.lowering.body
    new.new_values |= {
        data: new.value(value) for data, value in zip(body.inputs, call.operands, strict=True)
    }
    start = 0
    for node in body.nodes:
        node_numbers = numbers[start : start + len(node.op.numbers)]
        start += len(node_numbers)
        if isinstance(node.op.lowering, Called):
            _inline(new, node, recorded, node_numbers)
        else:
            new.replace(
                results(node), new.add(node.op, node.operands, node, node_numbers, (recorded,))
            )
    new.new_values |= {
        value_name(value): new.value(root)
        for value, root in zip(results(call), body.roots, strict=True)
    }
