"""Compares the requested shardings with those that the compiler chose."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..base.config import config
from ..graph.graph import Graph, Node, Value, origin
from ..graph.source import describe
from ..lower.lower import LoweringError
from ..sharding.value import Sharding


def chosen_shardings(graph: Graph, executable: Any) -> list[Sharding]:
    """Returns the results' shardings; raises LoweringError if the compiler chose another than the requested one (both
    partitioners may). Inside of `program_devices`, as `compare` is."""
    outputs = list(zip(graph.results(), executable.output_shardings, strict=True))
    if config.check_shardings:
        for port, chosen in zip(graph.arguments(), executable.input_shardings[0], strict=False):
            assert port.sharding is not None, "every input has a sharding"
            compare(graph, lambda: "argument", port.meta, port.sharding, chosen)
        for port, chosen in outputs:
            if port.sharding is not None:
                root = graph.roots[port.places if isinstance(port.places, int) else max(port.places)]
                compare(graph, partial(_label, root), port.meta, port.sharding, chosen, origin(root))
    free = {port.places: chosen for port, chosen in outputs if port.sharding is None}
    meshes = graph.meshes() if free else []
    return [
        Sharding.from_jax(free[index], len(root.meta.shape), meshes) if pinned is None else pinned
        for index, (root, pinned) in enumerate(zip(graph.roots, graph.pinned, strict=True))
    ]


def compare(
    graph: Graph, what: Callable[[], str], meta: Any, requested: Sharding, chosen: Any, node: Node | None = None
) -> None:
    """Raises LoweringError if the compiler chose another sharding than the requested one."""
    if not requested.allows(chosen, len(meta.shape)):
        raise LoweringError(
            f"the partitioner ({config.partitioner}) sharded the {what()} {meta!r} as {chosen} "
            f"instead of {requested!r}",
            node,
        )


def _label(root: Value) -> str:
    node = origin(root)
    return f"result of {'an input' if node is None else describe(node)}"
