"""Equal masks of attention, which are one value: attention notes the numbers of its mask in each
layer (`record.calls.known_masks`), and a loop of layers would carry a mask for each from its
forward to its backward, as data."""

from functools import partial

from ..graph.graph import Graph, Node, origin, results, value_name
from ..graph.rewrite import Rewrite, rewrite

KNOWN_MASK = "spmd.known_mask"


def once(graph: Graph, _: bool) -> tuple[Graph, str]:
    """Returns the graph with the first of equal masks in place of each, and their number in words.

    The first operand of such an op is the mask as recorded, the others are what it is computed of.
    """
    first: dict[object, Node] = {}
    equal: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op.name == KNOWN_MASK:
            same = first.setdefault((node.op, *map(value_name, node.operands[1:])), node)
            equal |= {node: same} if same is not node else {}
    if not equal:
        return graph, ""
    rules = {node: partial(_stand_for, same) for node, same in equal.items()}
    return rewrite(graph, rules), f"{len(equal)} masks are that of another layer"


def _stand_for(same: Node, new: Rewrite, node: Node) -> None:
    """Has the result of an earlier node stand for that of a later one."""
    made = origin(new.value(results(same)[0]))
    assert made is not None, "an op has made it"
    new.replace(results(node), made)
