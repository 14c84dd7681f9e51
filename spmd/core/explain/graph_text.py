"""A graph as text, for `config.print_graphs`: an op a line."""

import itertools

from ..ir.graph import DeviceData, Graph, Value, origin, result_index
from ..ir.source import node_line

# The most lines of a graph; its middle is left out.
_LINES = 60
_COLUMNS = 240


def text_of(graph: Graph, name: str, what: str) -> str:
    """Returns a graph after the pass `name`: its ops with operands, results and user's lines, and its results."""
    inputs = {device_data: f"in{place}" for place, device_data in enumerate(graph.inputs)}
    places = {node: f"%{place}" for place, node in enumerate(graph.nodes)}

    def named(value: Value) -> str:
        maker = origin(value)
        if maker is None:
            assert type(value) is DeviceData, "what no op computes is data"
            return inputs[value]
        return places[maker] + (f".{result_index(value)}" if len(maker.op.metas) > 1 else "")

    lines = []
    for node in graph.nodes:
        metas = [
            f"{count} x {meta!r}" if (count := len(list(group))) > 1 else repr(meta)
            for meta, group in itertools.groupby(node.op.metas)
        ]
        operands, sharding = _short(list(map(named, node.operands))), node.op.sharding
        as_marked = "" if sharding is None else f" {sharding!r}"
        made = f"{places[node]} = {node.op.name}({operands}) -> {_short(metas)}{as_marked}"
        lines.append(f"{made}  {node_line(node)}"[:_COLUMNS])
    if len(lines) > _LINES:
        left = len(lines) - _LINES
        lines[_LINES // 2 : -_LINES // 2] = [f"... {left:,} ops ..."]
    head = f"after '{name}' ({what}): {len(graph.nodes):,} ops, {len(graph.inputs):,} inputs"
    return "\n  ".join([head, *lines, f"results: {_short(list(map(named, graph.roots)))}"])


def _short(names: list[str]) -> str:
    return ", ".join(names if len(names) <= 8 else [*names[:4], f"... {len(names) - 5} more ...", names[-1]])
