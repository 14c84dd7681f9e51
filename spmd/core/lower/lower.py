"""Lowers the ops of a program, or of a region in it, in order."""

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import torch

from ...ops import sharded
from ..base import interrupt
from ..base.jax_private import xla_client
from ..base.state import held
from ..graph.graph import DeviceData, Node, Region, TupleElement, Value
from ..graph.op import Layouts, OpSpec
from ..sharding.constrain import body
from ..sharding.partitioner import report_sharding
from ..sharding.topology import program
from ..sharding.value import DEVICE, Sharding
from .stack_rows import (
    ANY_MEMORY,
    TAKE_ROWS,
    Made,
    StackRow,
    element,
    move_rows,
    part,
    plain,
    rows_on_device,
)


class LoweringError(RuntimeError):
    """No program could be made; the message names the op and the user's line, `node` is the op
    (None: unknown)."""

    def __init__(self, message: str, node: Node | None):
        super().__init__(message)
        self.node = node


# The name of the op that a stretch of isomorphic iterations becomes.
FOUND_LOOP = "spmd.layers"
# By op name: a function from (op, result index) to the value with the sharding of that result, an
# operand or a root of a body.
SHARDED_AS: dict[str, Callable[[Node, int], Value]] = {}

Vectors = tuple[jax.Array, jax.Array]  # scalar arguments: float64 and int64


class PackedNumbers:
    """The scalar arguments of a program that are not unpacked yet (`graph.pack_numbers`)."""

    def __init__(self, floats: jax.Array, integers: jax.Array):
        self._packed = {"f": floats, "i": integers}
        self._position = {"f": 0, "i": 0}

    def of(self, op: OpSpec) -> list[jax.Array]:
        """Returns the next scalar arguments, those of one op: one by one, or as two vectors for its
        regions."""
        if op.lowering.regions:
            return [self._several(kind, op.numbers.count(kind)) for kind in "fi"]
        return [element(*self._next(kind)) for kind in op.numbers]

    def _several(self, kind: str, count: int) -> jax.Array:
        start = self._position[kind]
        self._position[kind] += count
        return part(self._packed[kind], start, count)

    def _next(self, kind: str) -> tuple[jax.Array, int]:
        self._position[kind] += 1
        return self._packed[kind], self._position[kind] - 1


Values = dict[Value, Sequence[Made]]


def program_value(value: Value, values: Mapping[Value, Sequence[Made]]) -> Made:
    """Returns the array or row of a program for a value of its graph."""
    return values[value.node][value.index] if isinstance(value, TupleElement) else values[value][0]


# Holds the function that finds the known dims of the values of a graph or a region from those of
# its inputs (None: unknown); empty until `propagation` registers it.
known_of: list[
    Callable[[Sequence[Node], Mapping[DeviceData, sharded.Dims | None]], sharded.Values]
] = []


# Annotated ops, each with the sharding that the partitioner gave it.
Choices = list[tuple[Node, xla_client.HloSharding]]


class Reporting(NamedTuple):
    """The callbacks while one program is traced (see `build`).

    op_index: by recorded op. has_host_memory: whether arrays of the program may be in the host's
    memory. loop_body: the recorded ops of the body of a found loop, while it is lowered.
    """

    describe: Callable[[Node], str]
    choices: Choices | None
    op_index: Mapping[Node, int]
    has_host_memory: bool = True
    loop_body: Sequence[Node] | None = None


class _LoweringThread(threading.local):
    reporting = Reporting(repr, None, {})  # the thread's, while it traces
    dims: sharded.Values = sharded.Values({}, {})  # of the graph or region whose ops are lowered


_thread = _LoweringThread()


def reports_to(reporting: Reporting) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which this thread's tracing reports to this `Reporting`."""
    return held(_thread, reporting=reporting)


def unreported() -> contextlib.AbstractContextManager[None]:
    """Returns a context that traces without reports of the partitioner's shardings, as the values
    inside are on one shard."""
    return reports_to(_thread.reporting._replace(choices=None))


def lower_nodes(
    nodes: Sequence[Node],
    values: Values,
    numbers: Vectors,
    shardings: Mapping[DeviceData, Sharding | None],
    sources: Sequence[Sequence[Node]] | None = None,
) -> None:
    """Lowers ops in order, of a program or of a region inside it; adds their results to `values`.

    numbers: the scalar arguments of all ops, in the order of `pack_numbers`. shardings: the known
    sharding of each input. sources: for each op its recorded ops; None for the ops of a region.
    """
    reporting = _thread.reporting
    packed = PackedNumbers(*numbers)
    # Each op's index is in its scope's name: by it `failing` finds the recorded op of an error that
    # XLA raises late.
    if sources is None:
        sources = [(node,) for node in nodes]
        indices = list(range(len(nodes)))
    else:
        indices = [reporting.op_index[recorded[0]] for recorded in sources]
    for node, recorded, index in zip(nodes, sources, indices, strict=True):
        if interrupt.HELD or interrupt.NOTED:
            interrupt.poll()
        operands = [program_value(operand, values) for operand in node.operands]
        layouts = [_known_sharding(operand, shardings) for operand in node.operands]
        arguments = node, recorded[0], operands, packed.of(node.op), layouts, reporting.describe
        if node.op.name == FOUND_LOOP:
            with reports_to(reporting._replace(loop_body=recorded)):
                values[node] = _apply(*arguments)
            for stack, new_stack, rows in node.op.lowering.replaced(operands, values[node]):  # type: ignore[attr-defined]
                move_rows(stack, new_stack, rows, values)
            continue
        with jax.named_scope(f"{node.op.name}#{index}"):
            values[node] = _apply(*arguments)
        sharded.place_unused(reporting.describe, recorded[0])
        if reporting.choices is not None and node.op.name == "mark_sharding":
            # A recorded call may contain the annotation: then `node` itself is it.
            annotated = recorded[0] if recorded[0].op.name == "mark_sharding" else node
            values[node] = (_reported(annotated, plain(values[node][0]), reporting.choices),)


def lower_region(
    region: Region, index: int, arrays: Sequence[jax.Array], numbers: Vectors, layouts: Layouts
) -> list[jax.Array]:
    """Lowers a region to its results for these arrays, one for each of its inputs. index: the
    region's index among those of its op.

    layouts: the known sharding of each array (None: unknown).
    """
    reporting = _thread.reporting
    region_dims = _thread.dims.regions.get((sharded.op(), index))
    values: Values = {
        device_data: (array,) for device_data, array in zip(region.inputs, arrays, strict=True)
    }
    shardings = dict(zip(region.inputs, layouts, strict=True))
    with contextlib.ExitStack() as stack:
        if region_dims is not None:
            stack.enter_context(held(_thread, dims=region_dims))
        else:  # a manual computation: its values are shards, of which nothing is known
            stack.enter_context(sharded.tracing(sharded.facts()._replace(mesh=_mesh_inside())))
            stack.enter_context(known_in(region.nodes, {}))
        sources = None
        if reporting.loop_body is None:
            stack.enter_context(body())
            stack.enter_context(jax.named_scope(f"region{index}"))
        else:
            sources = [(node,) for node in reporting.loop_body]
            stack.enter_context(reports_to(reporting._replace(loop_body=None)))
        lower_nodes(region.nodes, values, numbers, shardings, sources)
    return [plain(program_value(root, values)) for root in region.roots]


def known_in(
    nodes: Sequence[Node], inputs: Mapping[DeviceData, sharded.Dims | None]
) -> contextlib.AbstractContextManager[None]:
    """Returns the context of lowering the ops of a graph or a region, in which this thread knows
    the dims of their values, found from those of the inputs."""
    return held(_thread, dims=known_of[0](nodes, inputs) if known_of else sharded.Values({}, {}))


def _mesh_inside() -> jax.sharding.AbstractMesh | None:
    """Returns the mesh of the axes that are not manual inside a manual computation; None if all
    are."""
    mesh = jax.sharding.get_abstract_mesh()
    return mesh if program.manual_axes and set(mesh.axis_names) - program.manual_axes else None


# XLA's products of these are exact in the float32 in which it accumulates; a higher precision would
# only cost.
_NARROW = frozenset({torch.bfloat16, torch.float16})


def _apply(
    node: Node,
    recorded: Node,
    operands: list[Made],
    numbers: list[jax.Array],
    layouts: Layouts,
    describe: Callable[[Node], str],
) -> Sequence[Made]:
    """Returns the results of an op; errors name the recorded one."""
    is_narrow = any(meta.dtype in _NARROW for meta in node.op.operands)
    try:
        # An accelerator's own default for float32 is less than float32;
        # `record.resolve.matmul_precision` has the user's setting.
        with jax.default_matmul_precision(None if is_narrow else "highest"):
            # An op that takes no rows gets each row as an array: of a stack on the host, that row
            # alone is fetched.
            arguments = (
                operands if type(node.op.lowering) in TAKE_ROWS else list(map(plain, operands))
            )
            if (
                arguments
                and _thread.reporting.has_host_memory
                and type(node.op.lowering) not in ANY_MEMORY
            ):
                arguments = rows_on_device(arguments, layouts)
            with _known_call(node, arguments):
                result = node.op.lowering.lower(node.op, arguments, numbers, layouts)  # type: ignore[arg-type]  # rows
    except LoweringError as error:  # names the op in a region of this one
        is_found_loop = node.op.name == FOUND_LOOP
        raise LoweringError(str(error), error.node if is_found_loop else recorded) from error
    except Exception as error:
        op_text = describe(recorded)
        raise LoweringError(
            f"lowering {op_text} failed: {type(error).__name__}: {error}", recorded
        ) from error
    for output, meta in zip(result, node.op.metas, strict=True):
        array = output.stack if isinstance(output, StackRow) else output
        shape = array.shape[1:] if isinstance(output, StackRow) else array.shape
        if shape != meta.struct.shape or array.dtype != meta.struct.dtype:
            raise LoweringError(
                f"the rule of {describe(node)} made {array.dtype}{list(shape)} where torch makes "
                f"{meta!r}",
                recorded,
            )
    return result


def _known_call(node: Node, operands: Sequence[Made]) -> contextlib.AbstractContextManager[None]:
    """Returns the context of lowering an op, in which its rule can look up its operands' axes."""
    values, regions = _thread.dims
    dims = [
        values.get((value.node, value.index) if type(value) is TupleElement else (value, 0))
        for value in node.operands
    ]
    return (
        sharded.call(operands, dims, node)
        if any(dims) or (node, 0) in regions
        else contextlib.nullcontext()
    )


def _known_sharding(
    value: Value, shardings: Mapping[DeviceData, Sharding | None]
) -> Sharding | None:
    """Returns the sharding of an input, or the requested one of an annotated value if closed in all
    dims; else None."""
    if isinstance(value, DeviceData):
        return shardings.get(value)
    node, index = (value.node, value.index) if isinstance(value, TupleElement) else (value, 0)
    if (source_value_of := SHARDED_AS.get(node.op.name)) is not None:
        return _known_sharding(source_value_of(node, index), shardings)
    requested = (
        value.op.sharding if isinstance(value, Node) and not value.op.lowering.regions else None
    )
    return None if requested is None or requested.is_open else requested


def _reported(node: Node, array: jax.Array, choices: Choices) -> jax.Array:
    """Returns an annotated value, whose sharding the partitioner reports during compilation unless
    the value is padded."""
    requested = node.op.sharding
    assert requested is not None, "only annotations are reported"
    if (
        requested.padded_shape(array.shape) != array.shape
        or not array.ndim
        or len(requested.devices) == 1
    ):
        return array
    if requested.memory != DEVICE:
        return array  # the partitioner is done before anything is placed in a memory
    return report_sharding(array, lambda sharding: choices.append((node, sharding)))
