"""Devices written into the graphs of `torch.export`: they follow their module to another device.

A program that was exported on the CPU says `device="cpu"` wherever it makes a tensor
(`torch.arange`, `.to(x.device)`), also in the module that `ExportedProgram.module()` and
`torch.export.unflatten` return.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from ..core import points

# The classes of these modules, if a script has imported torch.export.
_EXPORTED = (
    ("torch.export._unlift", "_StatefulGraphModule"),
    ("torch.export.unflatten", "UnflattenedModule"),
)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def follow(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor] = _same) -> None:
    """Writes the device of a module's tensors into the graphs of an exported program. fn: what has
    moved them, which says where a module without tensors goes."""
    classes = tuple(
        vars(sys.modules[name])[kind] for name, kind in _EXPORTED if name in sys.modules
    )
    if not isinstance(module, classes):
        return
    first = next((tensor for tensor in (*module.parameters(), *module.buffers())), None)
    device = (fn(torch.empty(0, device="cpu")) if first is None else first).device
    for inner in module.modules():
        graph = getattr(inner, "graph", None)
        if not isinstance(graph, fx.Graph) or not any(
            [_rewrite(node, device) for node in graph.nodes]  # noqa: C419
        ):
            continue
        # A part of an unflattened program has its code in another module.
        for owner in (inner, getattr(inner, "graph_module", None)):
            if isinstance(owner, fx.GraphModule):
                owner.recompile()


def _rewrite(node: fx.Node, device: torch.device) -> bool:
    """Writes this device into a node that names another; returns True if it did."""

    def moved(value: Any) -> Any:
        is_other = (
            isinstance(value, torch.device)
            and value.type in ("cpu", "xla")
            and value.type != device.type
        )
        return device if is_other else value

    args, kwargs = (
        fx.node.map_aggregate(node.args, moved),
        fx.node.map_aggregate(node.kwargs, moved),
    )
    if args == node.args and kwargs == node.kwargs:
        return False
    node.args, node.kwargs = args, kwargs
    return True


points.after_move.append(follow)
