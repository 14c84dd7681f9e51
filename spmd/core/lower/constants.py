"""Hides from XLA that a complex array is filled with one number."""

from typing import Any

from ..base.jax_private import hlo, ir
from ..graph.graph import Graph, walk
from ..sharding.partitioner import ops_of


def hide_complex_constants(graph: Graph, module: Any) -> None:
    """Puts optimization barriers into a program over devices where XLA could find that one number fills a complex
    array.

    XLA replaces the sum over devices of an array of one number by an array of another; for a complex one it makes that
    number without a shape, and aborts the process. Both partitioners make such sums, also to move a part of zeros.
    """
    if has_complex(graph):
        hide(module)


def has_complex(graph: Graph) -> bool:
    """True if a program is over several devices and has a complex array."""
    metas = [device_data.meta for device_data in graph.inputs] + [
        meta for node in walk(graph.nodes) for meta in node.op.metas
    ]
    return len(graph.mesh.device_ids) > 1 and any(meta.dtype.is_complex for meta in metas)


def hide(module: Any) -> None:
    """Puts the barriers into a module."""
    constants: set[Any] = set()
    for op in ops_of(module):
        if not all(value in constants or _may_be_known(value) for value in op.operands):
            continue
        for result in op.results:
            if not _is_complex(result) or not result.type.rank:
                constants.add(result)
            elif op.name == "stablehlo.broadcast_in_dim":
                # An optimization barrier behind it would put the array into memory.
                with op.location, ir.InsertionPoint(op):
                    op.operands[0] = hlo.OptimizationBarrierOp([op.operands[0]]).results[0]
            else:
                with op.location, ir.InsertionPoint.after(op):
                    hidden = hlo.OptimizationBarrierOp([result])
                result.replace_all_uses_except(hidden.results[0], hidden.operation)


def _is_complex(value: Any) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and isinstance(value.type.element_type, ir.ComplexType)


def _may_be_known(value: Any) -> bool:
    """True if XLA may know a value that is no constant here: an integer (x - x is 0), or an array without elements."""
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and (isinstance(kind.element_type, ir.IntegerType) or 0 in kind.shape)
