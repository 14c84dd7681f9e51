"""The shardings asked for against those the compiler chose."""

from typing import Any

from ..config import config
from ..ir.graph import Graph, Node, Value, origin
from ..ir.source import describe
from ..sharding.value import Sharding, program_devices
from .lower import LoweringError


def chosen_shardings(graph: Graph, executable: Any) -> list[Sharding]:
    """The results' shardings; raises when the compiler chose other than what was asked for (both partitioners may)."""
    if config.check_shardings:
        for leaf, lies, chosen in zip(graph.leaves, graph.lies, executable.input_shardings[0], strict=False):
            compare(graph, "argument", leaf.meta, lies, chosen)
        for root, pinned, chosen in zip(graph.roots, graph.pinned, executable.output_shardings, strict=True):
            if pinned is not None:
                compare(graph, f"result of {_label(root)}", root.meta, pinned, chosen, origin(root))
    meshes = graph.meshes()
    return [
        Sharding.from_jax(chosen, len(root.meta.shape), meshes) if pinned is None else pinned
        for root, pinned, chosen in zip(graph.roots, graph.pinned, executable.output_shardings, strict=True)
    ]


def compare(graph: Graph, what: str, meta: Any, asked: Sharding, chosen: Any, node: Node | None = None) -> None:
    with program_devices(graph.mesh.device_ids):
        is_equal = asked.in_program().is_equivalent_to(chosen, len(meta.shape))
    if not is_equal:
        raise LoweringError(
            f"the partitioner ({config.partitioner}) laid out the {what} {meta!r} as {chosen} instead of {asked!r}",
            node,
        )


def _label(root: Value) -> str:
    node = origin(root)
    return "a leaf" if node is None else describe(node)
