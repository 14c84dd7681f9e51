"""The shardings asked for against those the compiler chose."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..config import config
from ..ir.graph import Graph, Node, Value, origin
from ..ir.source import describe
from ..sharding.tracing import program_devices
from ..sharding.value import Sharding
from .lower import LoweringError


def chosen_shardings(graph: Graph, executable: Any) -> list[Sharding]:
    """The results' shardings; raises when the compiler chose other than what was asked for (both partitioners may)."""
    outputs = list(zip(graph.outputs(), executable.output_shardings, strict=True))
    if config.check_shardings:
        for port, chosen in zip(graph.inputs(), executable.input_shardings[0], strict=False):
            assert port.sharding is not None, "every input lies somewhere"
            compare(graph, lambda: "argument", port.meta, port.sharding, chosen)
        for port, chosen in outputs:
            if port.sharding is not None:
                root = graph.roots[port.places if isinstance(port.places, int) else max(port.places)]
                compare(graph, partial(_label, root), port.meta, port.sharding, chosen, origin(root))
    free = {port.places: chosen for port, chosen in outputs if port.sharding is None}
    meshes = graph.meshes() if free else []
    return [
        Sharding.from_jax(free[place], len(root.meta.shape), meshes) if pinned is None else pinned
        for place, (root, pinned) in enumerate(zip(graph.roots, graph.pinned, strict=True))
    ]


def compare(
    graph: Graph, what: Callable[[], str], meta: Any, asked: Sharding, chosen: Any, node: Node | None = None
) -> None:
    with program_devices(graph.mesh.device_ids):
        is_as_asked = asked.allows(chosen, len(meta.shape))
    if not is_as_asked:
        raise LoweringError(
            f"the partitioner ({config.partitioner}) laid out the {what()} {meta!r} as {chosen} instead of {asked!r}",
            node,
        )


def _label(root: Value) -> str:
    node = origin(root)
    return f"result of {'a leaf' if node is None else describe(node)}"
