"""A graph as one JAX function: arguments taken in, ops lowered, results given out; paddings removed
and added."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

import jax

from ...ops import sharded
from ..base.config import config
from ..graph.graph import DeviceData, Graph, Node, Port, walk
from ..sharding.constrain import constrain, cut, in_memory, is_slice, on_device, pad, space_of
from ..sharding.value import HOST, Sharding
from .lower import Choices, Reporting, Values, known_in, lower_nodes, program_value, reports_to
from .stack_rows import Stacked, StackRow, as_stack, joined, plain


def build(
    graph: Graph,
    describe: Callable[[Node], str],
    choices: Choices | None = None,
    *,
    is_exported: bool = False,
) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns the graph as a function of physical shapes: (buffers of `graph.arguments()`...,
    float64 vector, int64 vector) -> `graph.results()`.

    choices: if given, receives (annotated node, the sharding that the partitioner gave it) during
    compilation. is_exported: as in `Facts`.
    """
    shardings = dict(zip(graph.inputs, graph.shardings, strict=True))
    memories = {
        *map(attrgetter("op.memory"), walk(graph.nodes)),
        *map(attrgetter("memory"), graph.shardings),
    }
    # Errors and reports name the recorded ops, which passes may have replaced.
    recorded = graph.recorded or graph
    sources = [graph.sources.get(node, (node,)) for node in graph.nodes]
    reporting = Reporting(
        describe,
        choices,
        {node: index for index, node in enumerate(recorded.nodes)},
        HOST in memories,
    )

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: Values = {}
        for port, buffer in zip(graph.arguments(), buffers, strict=True):
            _take_in(graph, port, buffer, values)
        program_shardings = [sharding.in_program() for sharding in graph.shardings]
        dims = {
            data: sharded.dims_in(layout, data.meta.shape)
            for data, layout in zip(graph.inputs, program_shardings, strict=True)
        }
        facts = sharded.Facts.of(program_shardings, config.document_length, is_exported)
        with reports_to(reporting), sharded.tracing(facts), known_in(graph.nodes, dims):
            # Stack groups that arrive as separate arguments become rows of one array here.
            for group in graph.columns:
                _stack([graph.inputs[i] for i in group], shardings, values)
            lower_nodes(graph.nodes, values, (floats, integers), shardings, sources)
        return tuple(_give_out(graph, port, values) for port in graph.results())

    return program


def _take_in(graph: Graph, port: Port, buffer: jax.Array, values: Values) -> None:
    """Adds an argument, in logical shapes, to the values of the program."""
    assert port.sharding is not None, "every input has a sharding"
    array = buffer if buffer.shape == port.meta.shape else cut(on_device(buffer), port.meta.shape)
    # GSPMD takes replicated for unsaid: from one reader's sharding it would shard the others', and
    # gather.
    array = (
        constrain(array, port.sharding)
        if len(port.sharding.device_ids) > 1
        and port.sharding.is_replicated()
        and port.sharding.memory != HOST
        else array
    )
    if isinstance(port.indices, int):
        values[graph.inputs[port.indices]] = (array,)
    else:
        values |= {
            graph.inputs[index]: (StackRow(array, row),) for row, index in enumerate(port.indices)
        }


def _give_out(graph: Graph, port: Port, values: Values) -> jax.Array:
    """Returns a result of the program, in its physical shape."""
    if isinstance(port.indices, int):
        array = plain(program_value(graph.roots[port.indices], values))
    else:
        rows = [graph.inputs[~index] if index < 0 else graph.roots[index] for index in port.indices]
        array = as_stack([program_value(value, values) for value in rows])
    if port.sharding is None:
        return array
    is_even = port.sharding.padded_shape(port.meta.shape) == array.shape
    if is_even and port.sharding.memory == HOST == space_of(array) and not is_slice(array):
        return array  # written in place there
    # Placed here, as jit would pair results with donated arguments of any memory.
    return in_memory(pad(on_device(array), port.sharding, port.meta.shape), port.sharding.memory)


def _stack(
    inputs: Sequence[DeviceData], shardings: Mapping[DeviceData, Sharding], values: Values
) -> None:
    """Joins inputs of one shape and dtype into an array of which they become the rows, unless they
    are rows already."""
    values_of_rows = [values[device_data][0] for device_data in inputs]
    if Stacked.of(values_of_rows) is not None:
        return
    sharding, shape = shardings[inputs[0]], inputs[0].meta.shape
    rows, is_even = joined(values_of_rows), sharding.padded_shape(shape) == shape
    stack = constrain(rows, sharding.behind_rows()) if is_even else rows
    for row, (device_data, value) in enumerate(zip(inputs, values_of_rows, strict=True)):
        values[device_data] = (
            StackRow(stack, row, value.plain if isinstance(value, StackRow) else value),
        )


def argument_struct(port: Port) -> jax.ShapeDtypeStruct:
    """Returns the physical shape, dtype and sharding of an input, for which jax compiles."""
    meta, sharding = port.meta, port.sharding
    assert sharding is not None, "every input has a sharding"
    return jax.ShapeDtypeStruct(
        sharding.padded_shape(meta.shape), meta.struct.dtype, sharding=sharding.in_program()
    )
