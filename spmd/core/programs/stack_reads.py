"""Stacks whose split dim a Python loop reads row by row, as if rows were stages: every device computes with all."""

from collections import defaultdict
from collections.abc import Iterator

from ..graph.graph import Graph, Node, origin, value_name
from ..sharding.value import Sharding

_SELECT = "aten.select.int"


def rows_read(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Yields a sentence, and the first reader, for each sharded value whose rows along a split dim are all read, by ops
    of their own. One row, or some, are no loop over stages."""
    shardings = dict(zip(graph.inputs, graph.shardings, strict=True))
    readers: defaultdict[tuple[object, str], dict[str, Node]] = defaultdict(dict)
    for node in graph.nodes:
        if node.op.name == _SELECT:
            dim, _, index = node.op.statics.partition(", ")
            readers[value_name(node.operands[0]), dim].setdefault(index, node)
    for (_, text), rows in readers.items():
        node = next(iter(rows.values()))
        value, dim = node.operands[0], int(text.removeprefix("dim="))
        maker, shape = origin(value), list(value.meta.shape)
        sharding = shardings.get(value) if maker is None else maker.op.sharding  # type: ignore[call-overload]
        if sharding is not None and len(rows) == shape[dim] > 1 < sharding.tiles(len(shape))[dim]:
            yield _sentence(sharding, shape, dim), node


def _sentence(sharding: Sharding, shape: list[int], dim: int) -> str:
    ways, entries = sharding.tiles(len(shape))[dim], list(sharding.partition_spec(len(shape)))
    axis, entries[dim] = entries[dim], None
    free = [i for i, entry in enumerate(entries) if entry is None and i != dim and shape[i] % ways == 0]
    for i in free[:1]:
        entries[i] = axis
    cure = f"P({', '.join(map(repr, entries))}) splits each row" if free else "leave that dim whole"
    loop = f"the rows of {shape} are split {ways} ways over {axis!r} and read one by one"
    return f"{loop}: each device computes with all {shape[dim]}; {cure}"
