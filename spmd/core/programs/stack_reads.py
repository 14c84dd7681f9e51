"""Stacks whose split dim a Python loop reads row by row, as if rows were stages: every device
computes with all."""

from collections import defaultdict
from collections.abc import Iterator

from ..graph.graph import Graph, Node, Value, value_name
from ..sharding.value import Sharding


def rows_read(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Yields a sentence, and the first reader, for each sharded value whose rows along a split dim
    are all read, by ops of their own. Reads of one row, or of some rows, are no loop over
    stages."""
    shardings: dict[Value, Sharding | None] = dict(zip(graph.inputs, graph.shardings, strict=True))
    readers: defaultdict[tuple[object, str], dict[str, Node]] = defaultdict(dict)
    for node in graph.nodes:
        shardings[node] = node.op.sharding
        # a static position: a dynamic start is a scalar argument, and not in `statics`
        if node.op.name == "aten.select.int" and node.op.statics.startswith("dim="):
            dim_text, _, index = node.op.statics.partition(", ")
            readers[value_name(node.operands[0]), dim_text].setdefault(index, node)
    for (_, dim_text), rows in readers.items():
        node, dim = next(iter(rows.values())), int(dim_text.removeprefix("dim="))
        shape, sharding = list(node.operands[0].meta.shape), shardings.get(node.operands[0])
        if sharding is not None and len(rows) == shape[dim] > 1 < sharding.tiles(len(shape))[dim]:
            yield _sentence(sharding, shape, dim), node


def _sentence(sharding: Sharding, shape: list[int], dim: int) -> str:
    """Returns the advice on a stack whose rows are read one by one: to shard another dim, if one
    divides evenly."""
    ways, entries = (
        sharding.tiles(len(shape))[dim],
        dict(enumerate(sharding.partition_spec(len(shape)))),
    )
    free_dims = [i for i, entry in entries.items() if entry is None and shape[i] % ways == 0]
    spec = entries | {dim: None} | dict.fromkeys(free_dims[:1], entries[dim])
    advice = (
        f"P({', '.join(map(repr, spec.values()))}) splits each row"
        if free_dims
        else "leave that dim whole"
    )
    return (
        f"the rows of {shape} are split {ways} ways over {entries[dim]!r} and read one by one: "
        f"each device computes with all {shape[dim]}; {advice}"
    )
