"""A graph as text, for `config.print_graphs` and `config.graphs_file`: an op a line."""

import itertools
import sys

from ...core import DeviceData, config, jax_facts
from ...core.extend import Graph, Program, Value, user_lines, walks

# The most lines of a graph; its middle is left out.
_LINES = 60
_COLUMNS = 240


def text_of(graph: Graph, head: str, most: int = _LINES) -> str:
    """Returns a graph under a headline: its ops with operands, results and user's lines, and its
    results.

    most: lines of ops; the middle of a longer graph is left out.
    """
    inputs = {device_data: f"in{index}" for index, device_data in enumerate(graph.inputs)}
    places = {node: f"%{index}" for index, node in enumerate(graph.nodes)}

    def named(value: Value) -> str:
        maker = walks.origin(value)
        if maker is None:
            assert type(value) is DeviceData, "what no op computes is data"
            return inputs[value]
        return places[maker] + (f".{walks.result_index(value)}" if len(maker.op.metas) > 1 else "")

    lines = []
    for node, line in zip(graph.nodes, user_lines.lines_of(graph.nodes), strict=True):
        metas = [
            f"{count} x {meta!r}" if (count := len(list(group))) > 1 else repr(meta)
            for meta, group in itertools.groupby(node.op.metas)
        ]
        operands, sharding = _short(list(map(named, node.operands))), node.op.sharding
        as_marked = "" if sharding is None else f" {sharding!r}"
        text = f"{places[node]} = {node.op.name}({operands}) -> {_short(metas)}{as_marked}"
        lines.append(f"{text}  {line}"[:_COLUMNS])
    if len(lines) > most:
        num_hidden = len(lines) - most
        lines[most // 2 : -most // 2] = [f"... {num_hidden:,} ops ..."]
    size = f"{len(graph.nodes):,} ops, {len(graph.inputs):,} inputs"
    return "\n  ".join(
        [f"{head}: {size}", *lines, f"results: {_short(list(map(named, graph.roots)))}"]
    )


def append_to_file(program: Program, graph: Graph, head: str) -> None:
    """Appends a graph to the file that `config.graphs_file` names; of several processes each has
    its own, with its number at the end."""
    several = (
        f".{jax_facts.distributed_state.process_id}"
        if jax_facts.distributed_state.num_processes > 1
        else ""
    )
    with open(config.graphs_file + several, "a") as file:
        file.write(text_of(graph, head, len(graph.nodes)) + "\n\n")


def _short(names: list[str]) -> str:
    return ", ".join(
        names if len(names) <= 8 else [*names[:4], f"... {len(names) - 5} more ...", names[-1]]
    )


def print_graph(graph: Graph, head: str) -> None:
    print(f"spmd: {text_of(graph, head)}", file=sys.stderr, flush=True)
