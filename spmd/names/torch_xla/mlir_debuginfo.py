"""Debug texts as locations of StableHLO: `torch.ops.xla.write_mlir_debuginfo`."""

import importlib
import json
from typing import Any

import torch
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from torch.export import ExportedProgram

from ...loops.interop.call_jax import register_lowering
from .xla_ops import XLA_LIB

XLA_LIB.define("write_mlir_debuginfo(Tensor x, str data) -> Tensor")
XLA_LIB.impl("write_mlir_debuginfo", lambda x, data: x.clone(), "CompositeExplicitAutograd")
torch.library.register_autograd(
    "xla::write_mlir_debuginfo", lambda _, gradient: (gradient, None), lib=XLA_LIB
)

_debug_text_p = Primitive("spmd_debug_text")
_debug_text_p.def_abstract_eval(lambda x, data: x)
batching.primitive_batchers[_debug_text_p] = lambda values, dims, data: (
    _debug_text_p.bind(*values, data=data),
    dims[0],
)


def _locate(_: Any, x: Any, *, data: str) -> Any:
    """Gives the op that makes a value the text as its location. An argument has no such op."""
    if not isinstance(x.owner, mlir.ir.Block):
        x.owner.location = mlir.ir.Location.name(data)
    return [x]


# In a cached lowering the value is an argument.
mlir.register_lowering(_debug_text_p, _locate, cacheable=False)


@register_lowering(torch.ops.xla.write_mlir_debuginfo.default)
def _lowered(x: Any, data: str) -> Any:
    return _debug_text_p.bind(x, data=data)


def write_mlir_debuginfo(x: torch.Tensor, data: str) -> torch.Tensor:
    """Returns the tensor; a text is the location of the op that makes it, in programs and exports.

    The text takes the place of module path and line. A tensor that no op of the program makes has
    no location. Source: `torch_xla.experimental.xla_mlir_debuginfo`.

    >>> import torch, spmd
    >>> from spmd.torch_xla.mlir_debuginfo import write_mlir_debuginfo
    >>> exported = spmd.export(lambda x: write_mlir_debuginfo(x + 1, "MY_ADD"), (torch.ones(2),))
    >>> 'loc("MY_ADD")' in exported.stablehlo()
    True
    """
    result: torch.Tensor = torch.ops.xla.write_mlir_debuginfo(x, data)
    return result


def with_node_metadata(program: ExportedProgram) -> ExportedProgram:
    """Returns a program in torch's core ops, each with its metadata as debug text: JSON of its
    stack trace, the modules around it and the function that it comes from."""
    program = program.run_decompositions()
    serde = importlib.import_module("torch._export.serde.serialize")  # imports DTensor, and Dynamo
    serializer = serde.GraphModuleSerializer(program.graph_signature, program.module_call_graph)
    op, graph = torch.ops.xla.write_mlir_debuginfo.default, program.graph
    for node in [*graph.nodes]:
        if node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor):
            metadata = serializer.serialize_metadata(node)
            metadata.pop("from_node", None)  # has addresses, by which processes would differ
            if "torch_fn" in node.meta:  # all that an export without Dynamo knows of the function
                metadata.setdefault("source_fn_stack", ",".join(node.meta["torch_fn"]))
            with graph.inserting_after(node):
                located = graph.call_function(op, (node, json.dumps(metadata)))
            located.meta = dict(node.meta)
            node.replace_all_uses_with(located, lambda user, located=located: user is not located)
    program.graph_module.recompile()
    return program
