"""Lowers nodes to one JAX function: the graph's ops in order, scalar arguments unpacked, paddings removed and added."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import torch

from ..ir.graph import DeviceData, Graph, Node, Port, Region, Value
from ..ir.loops import Loop
from ..ir.op import Layouts
from ..ops import split
from ..sharding.constrain import body, constrain, cut, in_memory, is_slice, on_device, pad, space_of
from ..sharding.partitioner import report_sharding
from ..sharding.value import DEVICE, HOST, Sharding
from . import hoisted, lm_head, peeled, updates
from .fori_loop import Lower, lower_loop
from .numbers import Numbers, Vectors
from .stack_rows import Made, Row, as_stack, find_stretch, joined, made_of, plain, rows_on_device


class LoweringError(RuntimeError):
    """No program could be made; the message names the op and the user's line, `node` is the op (None: unknown)."""

    def __init__(self, message: str, node: Node | None):
        super().__init__(message)
        self.node = node


Values = dict[Value, Sequence[Made]]


def build(
    graph: Graph, describe: Callable[[Node], str], chosen: list[tuple[Node, Any]] | None = None
) -> Callable[..., tuple[jax.Array, ...]]:
    """Returns the graph as a function of physical shapes: (buffers of `graph.arguments()`..., float64 vector, int64
    vector) -> `graph.results()`.

    chosen: if given, receives (annotated node, the sharding that the partitioner gave it) during compilation.
    """
    shardings = dict(zip(graph.inputs, graph.shardings, strict=True))
    by_head = lm_head.find(graph)
    written = updates.Written.of(graph)
    wanted = hoisted.find(graph)

    def program(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        *buffers, floats, integers = arguments
        values: Values = {}
        inputs = [
            (_take_in(graph, port, buffer, values), port.sharding)
            for port, buffer in zip(graph.arguments(), buffers, strict=True)
        ]
        with _reports_to(_Reporting(describe, chosen, by_head)), _known_sharding_of(inputs):
            for column in graph.columns:
                _stack([graph.inputs[i] for i in column], shardings, values)
            lower_nodes(graph.nodes, values, (floats, integers), shardings, graph.loops, written, wanted)
        return tuple(_give_out(graph, port, values) for port in graph.results())

    return program


def _known_sharding_of(arrays: Sequence[tuple[jax.Array, Sharding | None]]) -> contextlib.AbstractContextManager[None]:
    """Makes the shardings of arrays known to the rules that read them (`ops.split`)."""
    return split.inside(
        [array for array, _ in arrays], [None if sharding is None else sharding.in_program() for _, sharding in arrays]
    )


def _take_in(graph: Graph, port: Port, buffer: jax.Array, values: Values) -> jax.Array:
    """Adds an argument, in logical shapes, to the values of the program."""
    assert port.sharding is not None, "every input has a sharding"
    array = buffer if buffer.shape == port.meta.shape else cut(on_device(buffer), port.meta.shape)
    if isinstance(port.places, int):
        values[graph.inputs[port.places]] = (array,)
    else:
        values |= {graph.inputs[place]: (Row(array, row),) for row, place in enumerate(port.places)}
    return array


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
    given = [values[device_data][0] for device_data in inputs]
    if find_stretch(given) is not None:
        return
    sharding, shape = shardings[inputs[0]], inputs[0].meta.shape
    stack = joined(given)
    if sharding.padded_shape(shape) == shape:
        stack = constrain(stack, sharding.behind_rows())
    for row, (device_data, one) in enumerate(zip(inputs, given, strict=True)):
        values[device_data] = (Row(stack, row, one.plain if isinstance(one, Row) else one),)


class _Reporting(NamedTuple):
    """The callbacks while one program is traced (see `build`)."""

    describe: Callable[[Node], str]
    chosen: list[tuple[Node, Any]] | None
    heads: Mapping[Node, lm_head.Head]


_tracing = threading.local()  # .reporting


@contextlib.contextmanager
def _reports_to(reporting: _Reporting) -> Iterator[None]:
    before, _tracing.reporting = getattr(_tracing, "reporting", None), reporting
    try:
        yield
    finally:
        _tracing.reporting = before


@contextlib.contextmanager
def unreported() -> Iterator[None]:
    """Traces without reports of the partitioner's shardings: inside, values are on one shard."""
    with _reports_to(_tracing.reporting._replace(chosen=None)):
        yield


def lower_nodes(
    nodes: Sequence[Node],
    values: Values,
    numbers: Vectors,
    shardings: Mapping[DeviceData, Sharding | None],
    loops: Sequence[Loop] = (),
    written: updates.Written = updates.NOTHING,
    wanted: Mapping[int, hoisted.Ahead] = MappingProxyType({}),
) -> None:
    """Lowers ops in order, of a program or of a region inside it; adds their results to `values`.

    numbers: the scalar arguments of all, in the order of `pack_numbers`. shardings: the known sharding of each input.
    loops: the stretches of which one iteration is lowered; only values with readers outside are added for them.
    written: the inputs that results replace. wanted: by the first op of a loop, the values to compute before it.
    """
    reporting: _Reporting = _tracing.reporting
    packed = Numbers(*numbers)
    position = {node: index for index, node in enumerate(nodes)}

    def apply(
        node: Node, operands: list[Made], own: list[jax.Array], layouts: Layouts, lower: Lower | None = None
    ) -> Sequence[Made]:
        # The index lets an error that XLA raises late be traced back to this node (see `failing`).
        with jax.named_scope(f"{node.op.name}#{position[node]}"):
            made = _apply(node, operands, own, layouts, reporting.describe, lower)
        if reporting.chosen is not None and node.op.name == "mark_sharding":
            made = (_reported(node, plain(made[0]), reporting.chosen),)
        return made

    def layout_of(value: Value) -> Sharding | None:
        return _known_sharding(value, shardings)

    def lower_one(node: Node) -> None:
        own, lower = packed.of(node.op), None
        if node in reporting.heads:
            lower = reporting.heads[node].lowering(node, lambda value: plain(made_of(value, values)))
            if lower is None:
                return
        operands = [] if lower else [made_of(operand, values) for operand in node.operands]
        values[node] = apply(node, operands, own, list(map(layout_of, node.operands)), lower)
        for where in joins.get(node, ()):
            peeled.join(*where, values)

    starts = {loop.start: loop for loop in loops}
    joins = peeled.find(loops)
    done: set[Node] = set()
    end = 0
    for index, node in enumerate(nodes):
        if index in starts:
            loop = starts[index]
            if index in wanted:
                for one in wanted[index].ops:
                    lower_one(one)
                done.update(wanted[index].ops)
                hoisted.have(wanted[index].values, loop, values)
            drawn = packed.of_iterations([node.op for node in loop.body()], loop.iterations)
            lower_loop(loop, values, drawn, apply, layout_of, written.over)
            end = loop.stop
        if index >= end and node not in done:
            run = updates.lists_at(nodes, index, starts)
            found = updates.find(run, values, written) if run else []
            if found:
                position |= {step: position[step.of] for update in found for step in update.steps}
                owns = [packed.of(one.op) for one in run]
                updates.lower(found, run, values, owns, apply, layout_of)
                end = index + len(run)
            else:
                lower_one(node)


def lower_region(
    region: Region, index: int, arrays: Sequence[jax.Array], numbers: Vectors, layouts: Layouts
) -> list[jax.Array]:
    """Lowers a region to its results for these arrays, one for each of its inputs. index: of the region among its op's.

    layouts: the known sharding of each array (None: unknown).
    """
    values: Values = {device_data: (array,) for device_data, array in zip(region.inputs, arrays, strict=True)}
    shardings = _known_sharding_of(list(zip(arrays, layouts, strict=True)))
    with body(), jax.named_scope(f"region{index}"), shardings:
        lower_nodes(region.nodes, values, numbers, dict(zip(region.inputs, layouts, strict=True)))
    return [plain(made_of(root, values)) for root in region.roots]


# XLA's products of these are exact in the float32 in which it accumulates; a higher precision would only cost.
_NARROW = frozenset({torch.bfloat16, torch.float16})


def _apply(
    node: Node,
    operands: list[Made],
    numbers: list[jax.Array],
    layouts: Layouts,
    describe: Callable[[Node], str],
    lower: Lower | None = None,
) -> Sequence[Made]:
    """Returns the results of an op, by its own rule or by `lower`."""
    is_narrow = any(value.meta.dtype in _NARROW for value in node.operands)
    try:
        # An accelerator's own default for float32 is less than float32; `core.precision` has the setting for that.
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            takes_rows = node.op.lowering.takes_rows
            if operands and not node.op.lowering.any_memory:
                # If the op takes no rows, only the row that it reads is fetched of a stack on the host.
                operands = rows_on_device(operands if takes_rows else list(map(plain, operands)), layouts)
            if lower is not None:
                made = lower(list(map(plain, operands)))
            elif takes_rows:
                made = node.op.lower(operands, numbers, layouts)  # type: ignore[arg-type]  # takes rows
            else:
                made = node.op.lower(list(map(plain, operands)), numbers, layouts)
    except LoweringError as error:  # names the op in a region of this one
        raise LoweringError(str(error), node) from error
    except Exception as error:
        raise LoweringError(f"lowering {describe(node)} failed: {type(error).__name__}: {error}", node) from error
    for one, meta in zip(made, node.op.metas, strict=True):
        if one is None:  # made by a loop of `updates`
            continue
        array = one.stack if isinstance(one, Row) else one
        shape = array.shape[1:] if isinstance(one, Row) else array.shape
        if shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(shape)} where torch makes {meta!r}",
                node,
            )
    return made


def _known_sharding(value: Value, shardings: Mapping[DeviceData, Sharding | None]) -> Sharding | None:
    """Returns the sharding of an input, or the requested one of an annotated value if closed in all dims; else None."""
    if isinstance(value, DeviceData):
        return shardings[value]
    requested = value.op.sharding if isinstance(value, Node) and not value.op.lowering.regions else None
    return None if requested is None or requested.is_open else requested


def _reported(node: Node, array: jax.Array, chosen: list[tuple[Node, Any]]) -> jax.Array:
    """Has the partitioner report during compilation how it sharded an annotated value, if that is not padded."""
    requested = node.op.sharding
    assert requested is not None, "only annotations are reported"
    if requested.padded_shape(array.shape) != array.shape or not array.ndim or len(requested.devices) == 1:
        return array
    if requested.memory != DEVICE:
        return array  # the partitioner is done before anything is placed in a memory
    return report_sharding(array, lambda sharding: chosen.append((node, sharding)))


def argument_struct(port: Port) -> jax.ShapeDtypeStruct:
    """Returns the physical shape, dtype and sharding of an input, for which jax compiles."""
    meta, sharding = port.meta, port.sharding
    assert sharding is not None, "every input has a sharding"
    return jax.ShapeDtypeStruct(sharding.padded_shape(meta.shape), meta.struct.dtype, sharding=sharding.in_program())
