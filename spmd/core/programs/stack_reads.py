"""Stacks whose split dim a Python loop reads row by row, as if rows were stages: every device
computes with all."""

from collections import defaultdict
from collections.abc import Iterator

from ..graph.graph import Graph, Name, Node, Value, results, value_name
from ..loop.row_ops import TakeRows
from ..lower.lower import FOUND_LOOP
from ..lower.stack_rows import TAKE_ROWS
from ..sharding.value import Sharding


def rows_read(graph: Graph) -> Iterator[tuple[str, Node]]:
    """Yields a sentence, and the first reader as it was recorded, for each sharded value whose rows
    along a split dim are all read, by ops of their own or by a loop on all devices. Reads of one
    row, or of some rows, are no loop over stages."""
    shardings: dict[Value, Sharding | None] = dict(zip(graph.inputs, graph.shardings, strict=True))
    readers: defaultdict[tuple[Name, int], dict[object, Node]] = defaultdict(dict)
    taken: dict[Name, tuple[Name, int]] = {}  # the rows that one op takes
    values: dict[Name, Value] = {}
    for node in graph.nodes:
        shardings[node] = node.op.sharding
        values |= {value_name(operand): operand for operand in node.operands}
        # a static position: a dynamic start is a scalar argument, and not in `statics`
        if node.op.name == "aten.select.int" and node.op.statics.startswith("dim="):
            dim_text, _, index = node.op.statics.partition(", ")
            dim = int(dim_text.removeprefix("dim="))
            readers[value_name(node.operands[0]), dim].setdefault(index, node)
        elif isinstance(node.op.lowering, TakeRows):
            stack = value_name(node.operands[0]), node.op.lowering.run.axis
            taken |= {value_name(row): stack for row in results(node)}
        elif node.op.name == FOUND_LOOP or type(node.op.lowering) not in TAKE_ROWS:
            for row in map(value_name, node.operands):
                if row in taken:
                    readers[taken[row]].setdefault(row, node)
    for (name, dim), rows in readers.items():
        node, stack_value = next(iter(rows.values())), values[name]
        shape, sharding = list(stack_value.meta.shape), shardings.get(stack_value)
        if sharding is not None and len(rows) == shape[dim] > 1 < sharding.tiles(len(shape))[dim]:
            yield _sentence(sharding, shape, dim), graph.sources.get(node, (node,))[0]


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
