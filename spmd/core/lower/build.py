"""A graph as one JAX function: arguments taken in, ops lowered, results given out; paddings removed and added."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from ..base.jax_private import hlo, ir
from ..graph.graph import DeviceData, Graph, Node, Port, walk
from ..ops import sharded
from ..sharding.constrain import constrain, cut, in_memory, is_slice, on_device, pad, space_of
from ..sharding.partitioner import ops_of
from ..sharding.value import HOST, Sharding
from .lower import (
    Chosen,
    Lists,
    Reporting,
    StackRow,
    Values,
    as_stack,
    find_stretch,
    joined,
    known_in,
    lower_nodes,
    made_of,
    plain,
    reports_to,
)

# What lowers the list ops of a graph with arrays on the host together (see `lower_nodes`).
lists_of: list[Callable[[Graph], Lists]] = []


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: Chosen | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns the graph as a function of physical shapes: (buffers of `graph.arguments()`..., float64 vector, int64
    vector) -> `graph.results()`.

    chosen: if given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """
    shardings = dict(zip(graph.inputs, graph.shardings, strict=True))
    memories = {node.op.memory for node in walk(graph.nodes)} | {sharding.memory for sharding in graph.shardings}
    lists = lists_of[0](graph) if HOST in memories else None
    recorded = graph.recorded or graph
    sources = [graph.sources.get(node, (node,)) for node in graph.nodes]
    reporting = Reporting(describe, chosen, {node: index for index, node in enumerate(recorded.nodes)})

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: Values = {}
        for port, buffer in zip(graph.arguments(), buffers, strict=True):
            _take_in(graph, port, buffer, values)
        placed = [sharding.in_program() for sharding in graph.shardings]
        dims = {data: sharded.dims_in(one, data.meta.shape) for data, one in zip(graph.inputs, placed, strict=True)}
        facts = sharded.Facts.of(placed)
        with reports_to(reporting), sharded.tracing(facts), known_in(graph.nodes, dims):
            for column in graph.columns:
                _stack([graph.inputs[i] for i in column], shardings, values)
            lower_nodes(graph.nodes, values, (floats, integers), shardings, sources, lists)
        return tuple(_give_out(graph, port, values) for port in graph.results())

    return program


def _take_in(graph: Graph, port: Port, buffer: jax.Array, values: Values) -> None:
    """Adds an argument, in logical shapes, to the values of the program."""
    assert port.sharding is not None, "every input has a sharding"
    array = buffer if buffer.shape == port.meta.shape else cut(on_device(buffer), port.meta.shape)
    if isinstance(port.places, int):
        values[graph.inputs[port.places]] = (array,)
    else:
        values |= {graph.inputs[place]: (StackRow(array, row),) for row, place in enumerate(port.places)}


def _give_out(graph: Graph, port: Port, values: Values) -> jax.Array:
    """Returns a result of the program, in its physical shape."""
    if isinstance(port.places, int):
        array = plain(made_of(graph.roots[port.places], values))
    else:
        wanted = [graph.inputs[~place] if place < 0 else graph.roots[place] for place in port.places]
        array = as_stack([made_of(value, values) for value in wanted])
    if port.sharding is None:
        return array
    is_even = port.sharding.padded_shape(port.meta.shape) == array.shape
    if is_even and port.sharding.memory == HOST == space_of(array) and not is_slice(array):
        return array  # written in place there
    # Placed here, as jit would pair results with donated arguments of any memory.
    return in_memory(pad(on_device(array), port.sharding, port.meta.shape), port.sharding.memory)


def _stack(inputs: Sequence[DeviceData], shardings: Mapping[DeviceData, Sharding], values: Values) -> None:
    """Joins inputs of one shape and dtype into an array of which they become the rows, unless they are rows already."""
    values_of_rows = [values[device_data][0] for device_data in inputs]
    if find_stretch(values_of_rows) is not None:
        return
    sharding, shape = shardings[inputs[0]], inputs[0].meta.shape
    stack = joined(values_of_rows)
    if sharding.padded_shape(shape) == shape:
        stack = constrain(stack, sharding.behind_rows())
    for row, (device_data, value) in enumerate(zip(inputs, values_of_rows, strict=True)):
        values[device_data] = (StackRow(stack, row, value.plain if isinstance(value, StackRow) else value),)


def argument_struct(port: Port) -> jax.ShapeDtypeStruct:
    """Returns the physical shape, dtype and sharding of an input, for which jax compiles."""
    meta, sharding = port.meta, port.sharding
    assert sharding is not None, "every input has a sharding"
    return jax.ShapeDtypeStruct(sharding.padded_shape(meta.shape), meta.struct.dtype, sharding=sharding.in_program())


def hide_complex_constants(graph: Graph, module: ir.Module) -> None:
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
    constants: set[ir.Value] = set()
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


def _is_complex(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and isinstance(value.type.element_type, ir.ComplexType)


def _may_be_known(value: ir.Value) -> bool:
    """True if XLA may know a value that is no constant here: an integer (x - x is 0), or an array without elements."""
    kind = value.type
    return isinstance(kind, ir.RankedTensorType) and (isinstance(kind.element_type, ir.IntegerType) or 0 in kind.shape)
